"""Fuzz targets in Python: what strangers write, read by ropechat.

Each is a function of bytes with one rule: a named error or a result. Anything else that it raises is a
finding, and so are
the assertions about results. `SEEDS` gives each a few small valid inputs, `WORDS` what a mutation may put in.
"""

import contextlib
import datetime
import io
import json
import os
import tempfile
import unicodedata
from codecs import getincrementaldecoder
from collections.abc import Callable
from pathlib import Path

from textual.events import Paste

from ropechat.api.errors import ApiError
from ropechat.api.requests import read_ask
from ropechat.batch.journal import Journal, sealed
from ropechat.batch.line import CHAT, COMPLETIONS, LineError, parse_line
from ropechat.batch.reader import BatchReader, RowOptions
from ropechat.conversation import ConversationTree, NodeState, Role
from ropechat.engine.grammars import check_grammar
from ropechat.engine.templates.process import SHARED, TemplateFailureError
from ropechat.engine.templates.sandbox import environment
from ropechat.engine.templates.thoughts import find_format
from ropechat.errors import InternalError, RopechatError
from ropechat.inspector.others.read import read_records
from ropechat.sampling import Sampling
from ropechat.sampling.grammar import Grammar, Kind
from ropechat.settings.file import parse_settings, with_value
from ropechat.store.import_export import read_chat, to_json, to_markdown
from ropechat.store.imports.read import read_stream
from ropechat.store.queries import Chat
from ropechat.tokenizer.tokenizer import Tokenizer
from ropechat.tui.render.markdown import MarkdownText
from ropechat.tui.terminal.driver import PasteParser
from ropechat.util.fields import Field
from ropechat.util.text import clean, escape_json, one_line

RECORDED = Path(__file__).parents[1] / "inspector" / "recorded"
GOLDEN = Path(__file__).parents[1] / "golden"
_FOLDER = Path(tempfile.mkdtemp(prefix="ropechat-fuzz-", dir=os.environ.get("FUZZ_FOLDER")))
COMPILER = environment()
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5)


def _named(error: RopechatError) -> None:
    """A named error is a text that a terminal can show; a bug is none."""
    assert not isinstance(error, InternalError), error
    _visible(str(error))


def _visible(text: str) -> None:
    """Nothing in the text moves a cursor or turns the direction of writing."""
    for character in text:
        if character not in "\n\t\u200c\u200d":
            assert unicodedata.category(character) not in ("Cc", "Zl", "Zp", "Cs"), ascii(character)
            assert character not in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", ascii(character)


def tokenizer(data: bytes) -> None:
    """A tokenizer.json: validated, built by the library, used."""
    (_FOLDER / "tokenizer.json").write_bytes(data)
    try:
        _use(Tokenizer.load(_FOLDER, 512, keep=False), 512)
    except RopechatError as error:
        _named(error)


def _use(made: Tokenizer, vocab_size: int) -> None:
    ids = made.encode("Hello, wörld 42\n\n ")
    assert all(0 <= id < vocab_size for id in ids), ids
    made.decode(ids)
    for id in ids:
        made.token_bytes(id)


def gguf_vocabulary(data: bytes) -> None:
    """The keys of a vocabulary in GGUF, as JSON."""
    try:
        metadata = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(metadata, dict):
        return
    tokens = metadata.get("tokenizer.ggml.tokens")
    size = len(tokens) if isinstance(tokens, list) and tokens else 512
    try:
        _use(Tokenizer.from_gguf(_FOLDER / "m.gguf", lambda: metadata, size, keep=False), size)
    except RopechatError as error:
        _named(error)


def template(data: bytes) -> None:
    """A chat template, rendered in its process, and searched for the form of thoughts."""
    source = data.decode("utf-8", "replace")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    names = {"messages": messages, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    with contextlib.suppress(Exception):  # as the other process does, whose branches are not counted
        COMPILER.compile(source, raw=True)
    try:
        SHARED.render(source, names, NOW)
    except TemplateFailureError as error:
        if error.kind not in ("raised", "failed", "limit"):
            raise
    find_format(source, ["<think>", "</think>"], lambda messages, variables, asks: None)


def batch(data: bytes) -> None:
    """A batch file; the first byte chooses its form."""
    forms = ("jsonl", "openai", "json", "csv", "tsv", "lines")
    form = forms[data[0] % len(forms)] if data else "jsonl"
    where = _FOLDER / "in.jsonl"
    where.write_bytes(data[1:])
    try:
        reader = BatchReader(where, form=form, options=RowOptions(keep="all"))
        reader.check()
        for row in reader:
            assert (row.request is None) != (row.error is None)
            if row.error is not None:
                _named(row.error)
    except RopechatError as error:
        _named(error)


def openai_body(data: bytes) -> None:
    """The body of a request over HTTP; the first byte chooses the endpoint."""
    endpoint = (CHAT, COMPLETIONS)[data[0] % 2] if data else CHAT
    try:
        ask = read_ask(endpoint, parse_line(data[1:]), ("m",), 128)
        assert 1 <= ask.samples * len(ask.requests) <= 128
    except (LineError, ApiError):
        pass  # JSON escapes what is in them
    except RopechatError as error:
        _named(error)


def grammar(data: bytes) -> None:
    """A JSON schema, regular expression or Lark grammar, as the first byte says, compiled in its process."""
    kinds: tuple[Kind, ...] = ("json_schema", "regex", "lark")
    kind = kinds[data[0] % len(kinds)] if data else "json_schema"
    try:
        check_grammar(Grammar(kind, (data[1:].decode("utf-8", "surrogatepass"),)))
    except UnicodeDecodeError:
        pass  # files of other bytes are refused when they are read
    except RopechatError as error:
        _named(error)


def journal(data: bytes) -> None:
    """A journal that a run goes on with: all records that it takes are whole."""
    where = _FOLDER / "out.jsonl.journal"
    where.write_bytes(data)
    try:
        with Journal.resume(where) as opened:
            lines = where.read_bytes().split(b"\n")
            assert lines[-1] == b""
            assert len(lines) - 2 >= opened.lines
            opened.append({"id": "new", "sample": 0, "req": "r", "ok": True})
        with Journal.resume(where) as opened:
            assert opened.find("new", 0, "r") is not None
    except RopechatError as error:
        _named(error)


def settings(data: bytes) -> None:
    """A settings file, and a change of a value in it."""
    try:
        made = parse_settings(io.BytesIO(data), Path("config.toml"))
    except RopechatError as error:
        _named(error)
        return
    text = data.decode("utf-8-sig")
    changed = with_value(text, "tint", "entropy", made.lines.get("tint"))
    assert isinstance(changed, str)


def chat_import(data: bytes) -> None:
    """A chat of any program: what is taken can be exported and read again."""
    try:
        found = read_stream(io.BytesIO(data), "x.json")
    except RopechatError as error:
        _named(error)
        return
    for chat in found.chats:
        to_markdown(chat)
        again = to_json(chat)
        _visible(again)
        assert len(read_chat(Field(json.loads(again), "")).tree.nodes) == len(chat.tree.nodes)


def markdown(data: bytes) -> None:
    """A text that is written piece by piece looks as if it had been there at once."""
    text = clean(data[1:].decode("utf-8", "replace"))
    width = 20 + data[0] % 80 if data else 40
    whole, grown = MarkdownText(text, width), MarkdownText("", width)
    cut = len(text) // 3
    for piece in (text[:cut], text[cut : 2 * cut], text[2 * cut :]):
        grown.append(piece)
    for rows in (whole, grown):
        rows.close()
    assert whole.count == grown.count
    for number in range(whole.count):
        assert list(whole.pieces(number)) == list(grown.pieces(number)), number
        assert 0 <= whole.offset(number) <= len(text) + 1


def terminal_text(data: bytes) -> None:
    """Text for a terminal: nothing in it acts, wherever it is cut."""
    text = (
        data.decode("utf-8", "surrogatepass" if data[:1] < b"\x80" else "replace")
        if _valid(data)
        else (data.decode("latin-1"))
    )
    cleaned = clean(text)
    _visible(cleaned)
    assert clean(cleaned) == cleaned
    cut = len(text) // 2
    assert clean(text[:cut]) + clean(text[cut:]) == cleaned
    line = one_line(text)
    _visible(line)
    assert "\n" not in line
    assert "\t" not in line
    _visible(escape_json(text))


def keys(data: bytes) -> None:
    """What a terminal sends, in pieces of 1 to 8 bytes: the parser of the chat makes events of it."""
    parser, decode = PasteParser(), getincrementaldecoder("utf-8")("replace").decode
    at = 1
    while at < len(data):
        piece = decode(data[at : at + 1 + data[0] % 8])
        at += 1 + data[0] % 8
        for event in parser.feed(piece) if piece else ():
            if isinstance(event, Paste):
                assert "\x1b" not in event.text, ascii(event.text)
    list(parser.tick())


def records(data: bytes) -> None:
    """Logprobs that another program recorded."""
    try:
        for place, draws in read_records(io.BytesIO(data), "x.json"):
            assert isinstance(place, str)
            assert draws.tokens is not None
    except RopechatError as error:
        _named(error)


def _valid(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


TARGETS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one
    for one in (
        *(tokenizer, gguf_vocabulary, template, batch, openai_body, grammar, journal),
        *(settings, chat_import, markdown, terminal_text, keys, records),
    )
}
JSON = ("tokenizer", "gguf_vocabulary", "openai_body", "grammar", "chat_import", "records")
"""Targets whose inputs are JSON: half of the mutations change values in place of bytes."""


def _gguf_keys() -> list[bytes]:
    """Vocabularies of SentencePiece, of byte-level pairs, and Gemma 4's, which has merges for scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(16)), "▁a", "b", "▁ab"]
    pieces = {
        "model": "llama",
        "tokens": tokens,
        "scores": [-float(id) for id in range(len(tokens))],
        "token_type": [2, 3, 3, *[6] * 16, 1, 1, 1],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": True,
    }
    merged = {**pieces, "model": "gemma4", "merges": ["▁a b"]}
    del merged["scores"]
    letters = [*"Helowrd42,ĠĊÃ¶"]
    pairs = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": [*letters, "ll", "<|x|>"],
        "token_type": [*[1] * len(letters), 1, 3],
        "merges": ["l l"],
        "eos_token_id": len(letters) + 1,
    }
    return [
        json.dumps(
            {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
            | {"tokenizer.chat_template": "{{ messages }}"}
        ).encode()
        for keys in (pieces, merged, pairs)
    ]


def _journal() -> bytes:
    record = {"id": "a", "sample": 0, "req": "r", "ok": True, "text": "x", "usage": {"prompt_tokens": 3}}
    return sealed({"schema": "ropechat.batch/2"}) + sealed(record) + sealed({**record, "id": 2})


def _chats() -> list[bytes]:
    tree = ConversationTree()
    asked = tree.write(Role.USER, "hi")
    answer = tree.answer(asked.id, "m", Sampling(), None)
    tree.end(answer.id, NodeState.DONE, "stop", "yes")
    mapping = {
        "a": {"id": "a", "parent": None, "message": None},
        "b": {
            "id": "b",
            "parent": "a",
            "message": {
                "author": {"role": "user"},
                "content": {"content_type": "text", "parts": ["x"]},
                "create_time": 1.0,
            },
        },
    }
    chatgpt = [{"title": "t", "create_time": 1.0, "mapping": mapping, "current_node": "b"}]
    return [to_json(Chat("c", "t", tree)).encode(), json.dumps(chatgpt).encode()]


def seeds(name: str) -> list[bytes]:
    """A few small valid inputs of a target."""
    line = {"custom_id": "a", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    body = {**line, "temperature": 0.5, "stop": ["x"], "response_format": {"type": "json_object"}}
    del body["custom_id"]
    match name:
        case "tokenizer":
            return [
                (GOLDEN / f"{case}/tokenizer.json").read_bytes() for case in ("llama3_old", "llama1_mha_old")
            ]
        case "gguf_vocabulary":
            return _gguf_keys()
        case "template":
            loop = "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% endfor %}"
            return [loop.encode(), b"{% if add_generation_prompt %}<think>\n{{ bos_token }}{% endif %}"]
        case "batch":
            rows = json.dumps(line).encode() + b"\n" + json.dumps({"prompt": "x", "seed": 4}).encode()
            return [b"\0" + rows, b'\3prompt,id\nx,1\n"a\nb",2\n', b"\2[" + json.dumps(line).encode() + b"]"]
        case "openai_body":
            return [
                b"\0" + json.dumps(body).encode(),
                b'\1{"prompt": ["a", "b"], "echo": true, "logprobs": 2}',
            ]
        case "grammar":
            schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1, "b"]}}}}
            numbers = {"anyOf": [{"type": "integer", "minimum": 2, "multipleOf": 3}, {"pattern": "a+"}]}
            schemas = (schema | {"required": ["a"]}, numbers | {"$ref": "#/$defs/x", "$defs": {"x": True}})
            other = (b"\1(a|b)*[^c]{2,5}\\d?", b'\2start: A | "b" start\nA: /[a-z]+(x|y)*/\n')
            return [*(b"\0" + json.dumps(schema).encode() for schema in schemas), *other]
        case "journal":
            return [_journal()]
        case "settings":
            return [
                b'tint = "surprisal"\nthreads = 2\n[sampling]\ntemperature = 0.5\n'
                b'[keys]\n"answer.fork" = ["f"]\n'
            ]
        case "chat_import":
            return _chats()
        case "keys":
            return [b"\1a\x1b[A\x1b[200~x\x1b[31my\n\x1b[201~\x1bOP\x1b[<0;3;4M\x1b[27;5u\xc3\xa9"]
        case "records":
            files = ("openai_chat.json", "ollama.json", "llama_cpp.json")
            return [(RECORDED / file).read_bytes()[:8000] for file in files]
        case "markdown":
            return [
                b"\x20# a\n\n- b **c** `d`\n  1. e\n\n```py\nx\n```\n\n| a | b |\n|---|:-:|\n| c | d |\n> q\n"
            ]
    return ["a\u202e\x1b]0;x\x07\ud800".encode("utf-8", "surrogatepass"), "é👍\u200d\n".encode()]
