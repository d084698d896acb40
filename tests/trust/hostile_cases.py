"""Files made to harm that reviews found, as commands: F1 to F22 of the review of hostile input, and what
fuzzing found since.

`_changed` gives the command that reads a kind of file such files with bytes changed at random.
Those of F that need a program of their own are tests: F2 `kept keys after an edit of config.json` in
`rust/core/tests/kv_file.rs`, F7 in `rust/core/tests/pack_cache.rs`, F11 and F22 in
`tests/store/test_store_trouble.py`, F18 in
`tests/cli/test_serve.py`.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import sqlite3
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hostile import Case
from model_folders import GOLDEN, byte_tokenizer
from models import TINY, write_llama

from ropechat.batch.journal import sealed


def valid(folder: Path) -> Case:
    """A command with a model that is as it should be."""
    model = _model(folder / "valid")
    return Case("valid", ["run", "-m", str(model), "--raw", "--max-tokens", "3", "ab"], (0,))


def _model(path: Path, tokenizer: dict[str, Any] | None = None, **files: str) -> Path:
    """A tiny model with the byte tokenizer, or another one; further files by name."""
    write_llama(path, **TINY)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer or byte_tokenizer()))
    for name, text in files.items():
        (path / f"{name}.json").write_text(text)
    return path


def _run(path: Path, *more: str, text: str = "ab") -> list[str]:
    return ["run", "-m", str(path), "--raw", "--max-tokens", "3", *more, text]


def cases(folder: Path) -> Iterator[Case]:
    """All of them, in a folder of their own."""
    folder.mkdir()
    model = _model(folder / "model")
    yield from _schemas(folder, model)
    yield from _configs(folder)
    yield from _tokenizers(folder)
    yield from _ggufs(folder)
    yield from _chats(folder)
    yield from _batches(folder, model)
    yield from _words(folder, model)
    yield from _escapes(folder)
    yield from _changed(folder, model)


def _schemas(folder: Path, model: Path) -> Iterator[Case]:
    """F1: a grammar that takes all memory; one row of it must not end the batch."""
    for multiple in (65536, 16777216, 2147483648):
        schema = folder / f"multiple-{multiple}.json"
        schema.write_text(json.dumps({"type": "integer", "multipleOf": multiple}))
        yield Case(
            f"F1/multiple-{multiple}",
            _run(model, "--json-schema", str(schema)),
            (0, 2),
            seconds=20,
            megabytes=2500,
        )
    source = folder / "schema.jsonl"
    bad = {"type": "json_schema", "json_schema": {"schema": {"type": "integer", "multipleOf": 2147483648}}}
    rows = [{"prompt": "a"}, {"prompt": "b", "response_format": bad}, {"prompt": "c"}]
    source.write_text("".join(json.dumps({**row, "max_tokens": 2}) + "\n" for row in rows))
    out = folder / "schema.out.jsonl"
    command = ["batch", "-m", str(model), "--raw", "-o", str(out), "--quiet", str(source)]
    yield Case(
        "F1/one-row",
        command,
        (3,),
        lambda text: [] if "multipleOf" in text else ["multipleOf"],
        out=out,
        seconds=20,
        megabytes=2500,
    )


def _configs(folder: Path) -> Iterator[Case]:
    """F3, F6, F13: a config that asks for all memory, one that the layers do not fit, one of 120 MB."""

    def edited(name: str, case: str, **changes: Any) -> Path:
        path = folder / name
        shutil.copytree(GOLDEN / case, path)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | changes))
        return path

    mixture = edited("experts", "mixtral_old", num_hidden_layers=4096, num_local_experts=65536)
    yield Case("F3/experts", ["models", "check", str(mixture)], (2,))
    for width in (8, 24, 32, 48):
        heads = {"1": {"head_dim": 24}, "3": {"head_dim": width}}
        path = edited(f"heads-{width}", "gemma4_text", per_layer_config=heads)
        (path / "tokenizer.json").write_text(json.dumps(byte_tokenizer(added_tokens=[])))
        yield Case(f"F6/heads-{width}", ["models", "check", str(path)], (2,))
    large = _model(folder / "large", tokenizer_config='{"x": "' + "a" * (120 << 20) + '"}')
    yield Case("F13/tokenizer-config", ["models", "check", str(large)], (2,))


def _tokenizers(folder: Path) -> Iterator[Case]:
    """F4, F9, F10, F16: tokenizers that grow, never end or have no text."""
    plain = byte_tokenizer()
    ids = [1] * 8000
    piece = {"id": "x", "ids": ids, "tokens": ["a"] * 8000}
    single = [{"SpecialToken": {"id": "x", "type_id": 0}}] * 8000 + [{"Sequence": {"id": "A", "type_id": 0}}]
    post = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {"x": piece}}
    split = {"type": "Split", "pattern": {"Regex": r"(?:xy)*z"}, "behavior": "Isolated", "invert": False}
    wordpiece = {
        "type": "WordPiece",
        "vocab": plain["model"]["vocab"],
        "unk_token": "a",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 10**9,
    }
    made: dict[str, tuple[dict[str, Any], str]] = {
        "F4/template": (plain | {"post_processor": post}, "hi"),
        "F9/regex": (plain | {"pre_tokenizer": split}, "xy" * 20_000 + "w"),
        "F10/prepend": (plain | {"normalizer": {"type": "Prepend", "prepend": "a" * (30 << 20)}}, "hi"),
        "F10/wordpiece": (plain | {"model": wordpiece}, "a" * 20_000),
        "F16/suffix": (plain | {"model": plain["model"] | {"end_of_word_suffix": "\ud800"}}, "hi"),
    }
    for name, (tokenizer, text) in made.items():
        path = _model(folder / name.replace("/", "-"), tokenizer)
        yield Case(name, _run(path, text=text), (0, 2), seconds=10, megabytes=300)
    surrogate = _model(folder / "surrogate", tokenizer_config=json.dumps({"bos_token": "\ud800"}))
    yield Case("F16/bos", _run(surrogate), (0, 2))


def _ggufs(folder: Path) -> Iterator[Case]:
    """F5: one byte of a published file changed: a type that is smaller than the room of its tensor."""
    file = bytearray((GOLDEN / "gguf" / "llama3" / "f32.gguf").read_bytes())
    name = b"output_norm.weight"
    at = file.index(name) + len(name)
    dimensions = struct.unpack_from("<I", file, at)[0]
    file[at + 4 + 8 * dimensions] = 1  # F16 in place of F32
    path = folder / "type.gguf"
    path.write_bytes(file)
    yield Case("F5/type", ["models", "check", str(path)], (2,))
    draw = random.Random(5)
    whole = (GOLDEN / "gguf" / "llama3" / "q4_0.gguf").read_bytes()
    for number in range(20):
        changed = bytearray(whole)
        for _ in range(draw.randint(1, 8)):
            changed[draw.randrange(4000)] = draw.randrange(256)
        path = folder / f"flipped-{number}.gguf"
        path.write_bytes(changed)
        yield Case(f"F5/flipped-{number}", ["models", "check", str(path)], (0, 2))


def _chats(folder: Path) -> Iterator[Case]:
    """F8, F16, F17: exports with impossible times, other archives and databases."""

    def imported(name: str, path: Path) -> Case:
        return Case(name, ["chats", "import", str(path)], (0, 2))

    node = {"id": "a", "parent": None, "role": "user", "text": "x", "state": "done"}
    for number, time in enumerate(("1e300", "Infinity", "-1e300", "NaN", '"soon"')):
        path = folder / f"time-{number}.json"
        text = json.dumps({"ropechat": 1, "title": "t", "nodes": [{**node, "created": 0}]})
        path.write_text(text.replace('"created": 0', f'"created": {time}'))
        yield imported(f"F8/time-{number}", path)
    yield Case("F8/list", ["chats", "list"], (0,))
    lzma = folder / "lzma.zip"
    with zipfile.ZipFile(lzma, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("conversations.json", "[]")
    yield imported("F16/lzma", lzma)
    tables = {
        "none": "create table x(a)",
        "columns": "create table responses(id); insert into responses values(1)",
        "text": "create table responses(id, prompt, response, model, datetime_utc, conversation_id);"
        "insert into responses values(1, x'ff', x'fffe', 2, x'00', 3)",
    }
    for name, script in tables.items():
        path = folder / f"logs-{name}.db"
        with sqlite3.connect(path) as connection:
            connection.executescript(script)
        connection.close()
        yield imported(f"F17/{name}", path)


def _batches(folder: Path, model: Path) -> Iterator[Case]:
    """F12, F14, F19: journals with flipped bytes, a torn tail of 150 MB, a packed input that is cut."""

    def batch(source: Path, out: Path, *more: str) -> list[str]:
        return [
            "batch",
            "-m",
            str(model),
            "--raw",
            "--max-tokens",
            "2",
            "-o",
            str(out),
            "--quiet",
            *more,
            str(source),
        ]

    rows = b"".join(json.dumps({"id": i, "prompt": f"p{i}"}).encode() + b"\n" for i in range(4))
    source = folder / "in.jsonl"
    source.write_bytes(rows)
    cut = folder / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(rows * 100, mtime=0)[:-20])
    yield Case("F14/gzip", batch(cut, folder / "gz.jsonl"), (2, 3, 74))
    record = {"id": 1, "sample": 0, "req": "r", "ok": True, "text": "x"}
    whole = sealed({"schema": "ropechat.batch/2"}) + sealed(record) + sealed({**record, "id": 2})
    draw = random.Random(12)
    for number in range(20):
        changed = bytearray(whole)
        for _ in range(draw.randint(1, 10)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        out = folder / f"flip-{number}.jsonl"
        out.with_name(out.name + ".journal").write_bytes(changed)
        yield Case(f"F12/flips-{number}", batch(source, out, "--resume"), (0, 2))
    out = folder / "torn.jsonl"
    out.with_name(out.name + ".journal").write_bytes(
        sealed({"schema": "ropechat.batch/2"}) + b"x" * (150 << 20)
    )
    yield Case("F19/torn", batch(source, out, "--resume"), (0, 2), megabytes=400)


def _words(folder: Path, model: Path) -> Iterator[Case]:
    """F15, F16, F21: arguments, settings and names that are no text or look alike; no home folder."""
    path = folder / os.fsdecode(b"m\xff")
    shutil.copytree(model, path)
    yield Case("F15/path", ["models", "check", str(path)], (0, 2))
    yield Case("F16/regex", _run(model, "--regex", os.fsdecode(b"a\xff")), (2,))
    settings = folder / "deep.toml"
    settings.write_text("[" + ".".join(["a"] * 1500) + "]\nb = 1\n")
    os.chmod(settings, 0o600)
    yield Case("F16/toml", ["config", "check", str(settings)], (0, 2))
    homeless = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    yield Case("F16/no-home", ["config", "path"], (0, 2), without=homeless)
    alike = folder / "a\u200bb"
    yield Case(
        "F21/alike",
        ["models", "check", str(alike)],
        (2, 4),
        lambda text: ["⟨200B⟩"] if "\u200b" in text else [],
    )


ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"
"""What a terminal would act upon."""


def _escapes(folder: Path) -> Iterator[Case]:
    """Texts of files that become part of a message: a terminal must not act upon them."""
    plain = byte_tokenizer()
    raises = json.dumps(
        {"chat_template": "{{ raise_exception(messages[0]['content'] + '" + ESCAPES + "') }}"}
    )
    path = _model(folder / "raises", tokenizer_config=raises)
    yield Case("escapes/template", ["template", "-m", str(path), "--user", "u"], (2,), escapes=True)
    path = _model(folder / "version", plain | {"version": ESCAPES})
    yield Case("escapes/tokenizer", _run(path), (0, 2), escapes=True)
    path = _model(folder / "kind")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"model_type": ESCAPES}))
    yield Case("escapes/config", ["models", "check", str(path)], (2,), escapes=True)
    settings = folder / "escapes.toml"
    settings.write_text(json.dumps(ESCAPES) + " = 1\n")
    yield Case("escapes/settings", ["config", "check", str(settings)], (2,), escapes=True)
    chat = {"ropechat": 1, "title": ESCAPES, "nodes": [{"id": "a", "parent": None, "role": ESCAPES}]}
    source = folder / "escapes.json"
    source.write_text(json.dumps(chat))
    yield Case("escapes/chat", ["chats", "import", str(source)], (2,), escapes=True)
    source = folder / "escapes.jsonl"
    source.write_text(json.dumps({"prompt": "a", ESCAPES: 1, "max_tokens": ESCAPES}) + "\n")
    out = folder / "escapes.out.jsonl"
    yield Case("escapes/batch", ["batch", "-o", str(out), str(source)], (2, 3), escapes=True)


FILES = 8
"""Changed files of each kind."""
PIECES = (
    b"",
    b"\0",
    b"\xff",
    b'"',
    b"[",
    b"{",
    b"}",
    b"-1",
    b"1e999",
    b"null",
    b"\\ud800",
    b"9" * 30,
    b"(",
    b"*",
)


def _bytes_changed(data: bytes, draw: random.Random, first: int) -> bytes:
    """A few places among the first bytes with something else in them."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 2)):
        at = draw.randrange(min(first, len(changed)))
        changed[at : at + draw.randint(0, 4)] = draw.choice(PIECES)
    return bytes(changed)


def _changed(folder: Path, model: Path) -> Iterator[Case]:
    """Files of each kind, changed at random: an error that names the file, or a result."""
    import targets

    draw = random.Random(9)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"enum": [1, "b"]}, "maxItems": 3}},
    }
    template = {
        "chat_template": "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% endfor %}"
    }
    kinds: dict[str, tuple[bytes, str, list[str]]] = {
        "config": ((model / "config.json").read_bytes(), "config.json", ["models", "check", "{model}"]),
        "tokenizer": ((model / "tokenizer.json").read_bytes(), "tokenizer.json", _run(Path("{model}"))),
        "header": ((model / "model.safetensors").read_bytes(), "model.safetensors", _run(Path("{model}"))),
        "template": (json.dumps(template).encode(), "tokenizer_config.json", ["template", "-m", "{model}"]),
        "settings": (targets.seeds("settings")[0], "settings.toml", ["config", "check", "{file}"]),
        "chat": (targets.seeds("chat_import")[0], "chat.json", ["chats", "import", "{file}"]),
        "record": (targets.seeds("records")[0], "record.json", ["inspect", "--open", "{file}"]),
        "schema": (json.dumps(schema).encode(), "schema.json", _run(model, "--json-schema", "{file}")),
        "lark": (b'start: A | "b" start\nA: /[a-z]+(x|y)*/\n', "x.lark", _run(model, "--lark", "{file}")),
        "messages": (
            b'[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]',
            "messages.json",
            ["template", "-m", "builtin", "--messages", "{file}"],
        ),
    }
    for kind, (data, name, words) in kinds.items():
        for number in range(FILES):
            path = folder / f"changed-{kind}-{number}"
            if "{model}" in words:
                shutil.copytree(model, path)
            else:
                path.mkdir()
            (path / name).unlink(missing_ok=True)  # copies of a model may be links
            (path / name).write_bytes(_bytes_changed(data, draw, 4000))
            places = {"{model}": str(path), "{file}": str(path / name)}
            arguments = [places.get(word, word) for word in words]
            yield Case(f"changed/{kind}-{number}", arguments, (0, 2), seconds=10, megabytes=300)
