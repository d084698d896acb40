"""Tokenizers: random texts encoded and decoded, against the library on the original file and SentencePiece.

A tokenizer.json is read afresh and from ropechat's cache (which encodes short texts with a part of the
vocabulary). A GGUF vocabulary is compared with the tokenizer.json that it was made from: published pairs,
where there are any, and vocabularies that are stored here as llama.cpp's converter would.
"""

import json
import multiprocessing
import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import tokenizers.decoders
import tokenizers.models
from gguf_vocabularies import BYTE, CONTROL, KEY, NORMAL, UNKNOWN, USER_DEFINED, metadata
from golden_cases import GOLDEN
from report import Outcome, Report
from runs import Run
from sentencepiece import SentencePieceProcessor
from texts import Texts
from tokenizers import pre_tokenizers

from ropechat.engine._core import gguf_metadata
from ropechat.errors import RopechatError
from ropechat.tokenizer import Tokenizer

SUBJECT = "tokenizers"
FRESH = 100
"""Texts after which a vocabulary is opened from the cache again. A quarter is encoded with a part of it."""
LONG_EVERY, LONG_BYTES = 2500, 100_000
"""Each so many texts, one of so many bytes, which ropechat encodes in pieces."""
Ids = list[int]


@dataclass
class Pair:
    """One vocabulary twice. encode, decode: of the reference.

    cause: why a text is encoded, or why ids are decoded differently, by a difference of the two files that is
    no defect; "" for none. adds: whether the reference adds the special tokens that ours adds. reopens:
    whether to open it again now and then.
    """

    name: str
    open: Callable[[], Tokenizer]
    encode: Callable[[str, bool], Ids]
    decode: Callable[[Ids], str]
    pieces: Sequence[str]
    names: Sequence[str] = ()
    cause: Callable[[str, Ids], str] = lambda text, ids: ""
    adds: bool = True
    reopens: bool = False


_PAIRS: list[Pair] = []
"""Those of a run, which the processes that it forks have, too."""


def run(run: Run, report: Report) -> None:
    """Each vocabulary in a process, as many at a time as there are cores."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_CACHE_HOME": folder, "ROPECHAT_CACHE": "auto"}
        _PAIRS[:] = [pair for pair in (*_json_pairs(run), *_gguf_pairs(run)) if run.wants(pair.name)]
        with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
            for part in pool.map(partial(_one, run), range(len(_PAIRS))):
                report.merge(part)


def _one(run: Run, number: int) -> Report:
    """The outcomes of one vocabulary."""
    report = Report(run.folder, {})
    _check(_PAIRS[number], run, report)
    report.done(SUBJECT, _PAIRS[number].name)
    return report


def _check(pair: Pair, run: Run, report: Report) -> None:
    texts = Texts(f"{run.seed}/{pair.name}", pair.pieces, pair.names)
    tokenizer = pair.open()
    for index in range(run.count):
        if pair.reopens and index % FRESH == 0:
            tokenizer = pair.open()
        is_long = index % LONG_EVERY == LONG_EVERY - 1
        text = texts.long(LONG_BYTES) if is_long else texts.next()
        try:
            said = (_long_difference if is_long else _differences)(pair, tokenizer, text, texts)
        except RopechatError as error:
            report.add(SUBJECT, pair.name, Outcome.REFUSED, str(error)[:160])
            continue
        except Exception as error:
            kind = f"{type(error).__name__}: {error}"
            report.fail(SUBJECT, pair.name, Outcome.CRASH, kind, text=ascii(text), index=index)
            continue
        if not said:
            report.add(SUBJECT, pair.name, Outcome.EQUAL)
        elif cause := pair.cause(text, said.ids):
            report.add(SUBJECT, pair.name, Outcome.EXPLAINED, cause)
        else:
            kind, found, expected, _ = said
            text = f"{text[:200]}..." if is_long else text
            case = {"text": ascii(text), "found": found, "expected": expected, "index": index}
            report.fail(SUBJECT, pair.name, Outcome.WRONG, kind, **case)


class Difference(NamedTuple):
    """ids: that were decoded."""

    what: str
    found: Any
    expected: Any
    ids: Ids


def _long_difference(pair: Pair, tokenizer: Tokenizer, text: str, texts: Texts) -> Difference | None:
    """Of a text that is encoded in pieces, where they differ first."""
    found = [token.id for piece in tokenizer.encode_pieces(text) for token in piece]
    expected = pair.encode(text, True) if pair.adds else tokenizer.encode(text)
    if found == expected:
        return None
    at = next((i for i, (ours, theirs) in enumerate(zip(found, expected, strict=False)) if ours != theirs), 0)
    return Difference(f"encode_pieces, token {at}", found[at : at + 9], expected[at : at + 9], [])


def _differences(pair: Pair, tokenizer: Tokenizer, text: str, texts: Texts) -> Difference | None:
    """The first difference."""
    chance = texts.rng.random
    special = pair.adds and chance() < 0.5
    found, expected = tokenizer.encode(text, add_special_tokens=special), pair.encode(text, special)
    if found != expected:
        return Difference(f"encode, special tokens: {special}", found, expected, [])
    strange = [texts.rng.randrange(tokenizer.vocab_size) for _ in range(texts.rng.randint(1, 12))]
    for ids in (found, strange):
        decoded, expected_text = tokenizer.decode(ids), pair.decode(ids)
        if decoded != expected_text:
            return Difference(f"decode of {ids}", ascii(decoded), ascii(expected_text), ids)
        if chance() < 0.3:
            stream = tokenizer.stream()
            streamed = "".join([*map(stream.push, ids), stream.flush()])
            if streamed != decoded:
                return Difference(f"stream of {ids}", ascii(streamed), ascii(decoded), [])
    if chance() < 0.1:
        aligned = [token.id for token in tokenizer.encode_aligned(text)]
        if aligned != (expected := tokenizer.encode(text)):
            return Difference("ids of encode_aligned", aligned, expected, [])
    return None


# ---- tokenizer.json


def _json_pairs(run: Run) -> Iterator[Pair]:
    folders = sorted(path.parent for path in GOLDEN.rglob("tokenizer.json"))
    real = sorted(path.parent for path in run.real.rglob("tokenizer.json")) if run.real else []
    for folder in [*folders, *real]:
        base = GOLDEN if folder in folders else run.real
        yield _json_pair(str(folder.relative_to(base)), folder, keep=False)
        if (folder / "tokenizer.json").stat().st_size > 256 << 10:  # smaller ones are not cached
            yield _json_pair(f"{folder.relative_to(base)}, cached", folder, keep=True)


def _json_pair(name: str, folder: Path, *, keep: bool) -> Pair:
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    size = 1 + max(library.get_vocab(with_added_tokens=True).values())
    return Pair(
        name=name,
        open=lambda: Tokenizer.load(folder, size, keep=keep),
        reopens=keep,
        **_reference(library),
    )


def _reference(library: tokenizers.Tokenizer) -> dict[str, Any]:
    """What a `Pair` asks the library."""
    library.no_truncation()
    library.no_padding()
    added = library.get_added_tokens_decoder()
    special = {id for id, token in added.items() if token.special}
    size = library.get_vocab_size(with_added_tokens=True)
    single = (library.decode([id], skip_special_tokens=False) for id in range(0, size, max(1, size // 5000)))

    def decode(ids: Ids) -> str:
        # Not with skip_special_tokens=True, which misses tokens whose content the normalizer changes.
        return library.decode([id for id in ids if id not in special], skip_special_tokens=False)

    return {
        "encode": lambda text, special: library.encode(text, add_special_tokens=special).ids,
        "decode": decode,
        "pieces": [piece for piece in single if piece],
        "names": [token.content for token in added.values()][:40],
    }


# ---- GGUF


def _gguf_pairs(run: Run) -> Iterator[Pair]:
    yield _converted("detok/bl", GOLDEN / "detok" / "bl" / "tokenizer.json", "gpt-2")
    yield from filter(None, map(_by_parts, run.gguf))
    if run.real is None:
        return
    json_files = {name: run.real / "tokenizers" / name / "tokenizer.json" for name in CONVERTED}
    for name, pre in CONVERTED.items():
        if json_files[name].exists():
            yield _converted(name, json_files[name], pre)
    for gguf, other in PUBLISHED:
        file, folder = run.real / gguf, run.real / other
        if file.exists() and folder.exists():
            yield _published(file, folder / "tokenizer.json")
    yield from filter(None, map(_by_parts, sorted(run.real.rglob("*.gguf"))))
    for model in sorted(run.real.rglob("tokenizer.model")):
        yield _sentencepiece(f"{model.parent.relative_to(run.real)}/tokenizer.model", model)


CONVERTED = {"gpt2-50257": "gpt-2", "llama3.2-128256": "llama-bpe", "qwen2-151646": "qwen2"}
"""The pre-tokenizer types of published byte-level vocabularies."""
PUBLISHED = (
    ("vocab-tests/ggml-vocab-gpt-2.gguf", "tokenizers/gpt2-50257"),
    ("vocab-tests/ggml-vocab-llama-spm.gguf", "tokenizers/llama2-32000"),
    ("vocab-tests/ggml-vocab-phi-3.gguf", "tokenizers/llama2-32000"),
    ("stories260K/gguf/stories260K.f16.gguf", "stories260K/hf"),
    ("tinystories-656k/gguf/tinystories-656k.f16.gguf", "tinystories-656k/hf"),
)


ADDED = (CONTROL, USER_DEFINED, UNKNOWN)


def _opened(where: Path, keys: dict[str, Any]) -> Callable[[], Tokenizer]:
    return lambda: Tokenizer.from_gguf(where, lambda: keys, len(keys[KEY + "tokens"]), keep=False)


def _converted(name: str, file: Path, pre: str) -> Pair:
    """A byte-level tokenizer.json, stored in a GGUF file as llama.cpp's converter would."""
    data = json.loads(file.read_text(encoding="utf-8"))
    library = tokenizers.Tokenizer.from_file(str(file))
    ids = library.get_vocab(with_added_tokens=True)
    added = library.get_added_tokens_decoder()
    tokens = sorted(ids, key=ids.__getitem__)
    assert [ids[token] for token in tokens] == list(range(len(tokens))), f"{file}: has ids without a token"
    types = [NORMAL] * len(tokens)
    for id, token in added.items():
        types[id] = CONTROL if token.special else USER_DEFINED
    pairs = data["model"]["merges"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]
    keys = metadata(
        model="gpt2", pre=pre, tokens=tokens, token_type=types, merges=merges, add_bos_token=False
    )
    normalizes = (data.get("normalizer") or {}).get("type") == "NFC"

    def cause(text: str, ids: Ids) -> str:
        changed = normalizes and unicodedata.normalize("NFC", text) != text
        return "tokenizer.json normalizes to NFC, which a GGUF file cannot say" if changed else ""

    open = _opened(file.with_name("model.gguf"), keys)
    return Pair(f"GGUF of {name}", open, cause=cause, adds=False, **_reference(library))


def _published(file: Path, other: Path) -> Pair:
    """A published GGUF file and the tokenizer.json of the same model."""
    keys = dict(gguf_metadata(str(file)))
    own = keys[KEY + "tokens"]
    library = tokenizers.Tokenizer.from_file(str(other))
    of_json = library.get_vocab(with_added_tokens=True)
    # Tokens that only one of the two files has or treats so: texts that name them are encoded differently.
    types = keys.get(KEY + "token_type") or [NORMAL] * len(own)
    here = {(own[id], kind != USER_DEFINED) for id, kind in enumerate(types) if kind in ADDED}
    data = json.loads(other.read_text(encoding="utf-8"))
    there = {
        (token["content"], token["special"]) for token in data["added_tokens"] if not token["normalized"]
    }
    apart = {content for content, _ in here ^ there} | {
        token["content"] for token in data["added_tokens"] if token["normalized"]
    }
    apart |= {token for token in set(own) ^ set(of_json) if token}
    strange = {id for id, token in enumerate(own) if token in apart}

    def cause(text: str, ids: Ids) -> str:
        differs = any(name in text for name in apart) or not strange.isdisjoint(ids)
        return "a token that only one of the two files has, or that it treats otherwise" if differs else ""

    return Pair(f"GGUF {file.name}", _opened(file, keys), cause=cause, adds=False, **_reference(library))


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
DIGITS = pre_tokenizers.Digits(individual_digits=True)
PARTS = {"gpt-2": [BYTE_LEVEL], "smollm": [DIGITS, BYTE_LEVEL], "starcoder": [DIGITS, BYTE_LEVEL]}
"""Types of pre-tokenizers that the library has parts for: those of these models' tokenizer.json."""


def _by_parts(file: Path) -> Pair | None:
    """The byte-level vocabulary of a file, against a tokenizer of the library's own parts."""
    keys = dict(gguf_metadata(str(file)))
    if keys.get(KEY + "model") != "gpt2" or keys.get(KEY + "pre") not in PARTS:
        return None
    tokens = keys[KEY + "tokens"]
    vocab = {token: id for id, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in keys[KEY + "merges"]]
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    library.pre_tokenizer = pre_tokenizers.Sequence(PARTS[keys[KEY + "pre"]])
    library.decoder = tokenizers.decoders.ByteLevel()
    types = keys[KEY + "token_type"]
    of = {kind: [tokens[id] for id, k in enumerate(types) if k == kind] for kind in ADDED}
    added = [tokenizers.AddedToken(token, normalized=False) for token in of[USER_DEFINED]]
    library.add_tokens(added)
    library.add_special_tokens([*of[CONTROL], *of[UNKNOWN]])
    return Pair(f"GGUF {file.name}, parts", _opened(file, keys), adds=False, **_reference(library))


def _sentencepiece(name: str, file: Path) -> Pair:
    """A SentencePiece model, stored in a GGUF file as llama.cpp's converter would, against its library."""
    model = SentencePieceProcessor(model_file=str(file))
    size = model.get_piece_size()
    kinds = [
        UNKNOWN
        if model.is_unknown(id)
        else CONTROL
        if model.is_control(id)
        else BYTE
        if model.is_byte(id)
        else NORMAL
        for id in range(size)
    ]
    tokens = [model.id_to_piece(id) for id in range(size)]
    scores = [model.get_score(id) for id in range(size)]
    keys = metadata(model="llama", tokens=tokens, scores=scores, token_type=kinds)
    named = [tokens[id] for id, kind in enumerate(kinds) if kind in (UNKNOWN, CONTROL)]
    removes_spaces = model.normalize("  a  b ") == model.normalize("a b")

    def cause(text: str, ids: Ids) -> str:
        if any(name in text for name in named):
            return "SentencePiece does not read the names of control tokens"
        if model.normalize(text) != "▁" + text.replace(" ", "▁"):
            return "the model normalizes the text, which a GGUF file cannot say"
        decoded = "".join(tokens[id] for id in ids if kinds[id] not in (UNKNOWN, CONTROL))
        if removes_spaces and decoded.startswith("▁▁"):
            return "SentencePiece removes all spaces at the beginning; a GGUF file cannot say that"
        if any(kinds[id] == BYTE for id in ids):
            return "bytes that are not UTF-8: SentencePiece keeps those among them that are"
        return ""

    def decode(ids: Ids) -> str:
        return str(model.decode([id for id in ids if kinds[id] not in (UNKNOWN, CONTROL)]))

    return Pair(
        name=f"GGUF of {name}",
        open=_opened(file.with_name("model.gguf"), keys),
        encode=lambda text, special: list(model.encode(text)),
        decode=decode,
        pieces=[piece.replace("▁", " ") for piece in tokens],
        cause=cause,
        adds=False,
    )
