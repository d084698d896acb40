"""Checks on a parsed tokenizer.json before the tokenizers library sees it.

The library panics, aborts or guesses on some files; what is refused here never reaches it. Messages have the
form `<file>: <field>: <what it is>; <what is allowed>`.
"""

import base64
import binascii
import re
from typing import Any, NoReturn

from ropechat.errors import TokenizerError
from ropechat.tokenizer.components import components

MODEL_TYPES = ("BPE", "Unigram", "WordPiece", "WordLevel")
_MAX_STEPS = 32
_MAX_REGEX = 16 << 10
_MAX_PADDING = 1 << 24
_MAX_GROWTH = 8
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_TYPES = (
    "Sequence BertNormalizer NFC NFD NFKC NFKD Nmt Lowercase Strip StripAccents Prepend Replace Precompiled "
    "ByteLevel BertPreTokenizer Digits Metaspace Punctuation Split UnicodeScripts Whitespace WhitespaceSplit "
    "FixedLength CharDelimiterSplit BertProcessing RobertaProcessing TemplateProcessing BPEDecoder CTC Fuse "
    "ByteFallback WordPiece"
)


class FileCheck:
    """One pass over a tokenizer.json; `run` raises TokenizerError at the first fault."""

    def __init__(self, where: str, data: dict[str, Any], vocab_size: int) -> None:
        self.where = where
        self.data = data
        self.vocab_size = vocab_size

    def refuse(self, field: str, what: str) -> NoReturn:
        raise TokenizerError(f"{self.where}: {field}: {what}")

    def run(self) -> None:
        self._model()
        self._added_tokens()
        self._post_processor()
        for name in _SECTIONS:
            for part in components(self.data.get(name)):
                self._component(name, part)
        for name in ("normalizer", "decoder"):
            self._growth(name)
        self._length_blocks()

    def _id(self, field: str, token: object, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(field, f"{token!r} has the id {value!r}; an integer is required")
        if not 0 <= value < self.vocab_size:
            self.refuse(
                field,
                f"{token!r} has the id {value}; ids from 0 to {self.vocab_size - 1} are allowed "
                "(vocab_size of config.json, the rows of embed_tokens)",
            )

    def _model(self) -> None:
        model = self.data.get("model")
        if not isinstance(model, dict):
            self.refuse("model", "missing; an object is required")
        kind = model.get("type", "BPE" if "merges" in model else None)
        if kind not in MODEL_TYPES:
            self.refuse("model.type", f"{kind!r}; one of {', '.join(MODEL_TYPES)} is required")
        if kind == "Unigram":
            self._unigram(model)
            return
        vocab = model.get("vocab")
        if not isinstance(vocab, dict) or not vocab:
            self.refuse("model.vocab", "missing, empty or no object; an object of token -> id is required")
        for token, id in vocab.items():
            self._id("model.vocab", token, id)
            if not token.isascii() and _LONE_SURROGATE.search(token):
                self.refuse("model.vocab", f"{token!r:.60} holds a lone surrogate; UTF-8 text is required")
        if len(set(vocab.values())) != len(vocab):
            self.refuse("model.vocab", "two tokens share one id; each id may stand once")
        if kind == "BPE":
            self._merges(model.get("merges"), vocab)

    def _merges(self, merges: Any, vocab: dict[str, int]) -> None:
        if not isinstance(merges, list):
            self.refuse("model.merges", "missing; a list of pairs is required")
        for index, merge in enumerate(merges):
            if isinstance(merge, str):
                merge = merge.split(" ")
            if (
                not isinstance(merge, list)
                or len(merge) != 2
                or not isinstance(merge[0], str)
                or not isinstance(merge[1], str)
            ):
                self.refuse(f"model.merges[{index}]", "no pair of strings; two parts are required")
            for part in merge:
                if part not in vocab:
                    self.refuse(f"model.merges[{index}]", f"{part!r} is not in model.vocab")

    def _unigram(self, model: dict[str, Any]) -> None:
        vocab = model.get("vocab")
        if not isinstance(vocab, list) or not vocab:
            self.refuse("model.vocab", "missing or empty; a list of [token, score] is required")
        if len(vocab) > self.vocab_size:
            allowed = f"at most {self.vocab_size} (vocab_size) are allowed"
            self.refuse("model.vocab", f"{len(vocab)} tokens; {allowed}")
        for index, entry in enumerate(vocab):
            fits = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
            score = entry[1] if fits else None
            if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) < 1e30:
                self.refuse(f"model.vocab[{index}]", f"{entry!r:.60}; [token, finite score] is required")
        unk = model.get("unk_id")
        if unk is not None and (
            isinstance(unk, bool) or not isinstance(unk, int) or not 0 <= unk < len(vocab)
        ):
            self.refuse("model.unk_id", f"{unk!r}; an index of model.vocab is required")

    def _added_tokens(self) -> None:
        added = self.data.get("added_tokens") or []
        if not isinstance(added, list):
            self.refuse("added_tokens", "no list")
        seen: dict[str, int] = {}
        for index, token in enumerate(added):
            field = f"added_tokens[{index}]"
            content = token.get("content") if isinstance(token, dict) else None
            if not isinstance(content, str) or "id" not in token:
                self.refuse(field, "no content or no id; both are required")
            if content == "":
                self.refuse(field, "empty content; it would match everywhere")
            self._id(field, content, token["id"])
            if seen.setdefault(content, token["id"]) != token["id"]:
                self.refuse(field, f"{content!r} stands twice with different ids")

    def _post_processor(self) -> None:
        for part in components(self.data.get("post_processor")):
            for key in {"sep", "cls"} & part.keys():  # of RobertaProcessing and BertProcessing
                self._named_id(f"post_processor.{key}", part[key])
            if part.get("type") != "TemplateProcessing":
                continue
            special = part.get("special_tokens")
            if not isinstance(special, dict):
                self.refuse("post_processor.special_tokens", "no object")
            for name, token in special.items():
                ids = token.get("ids") if isinstance(token, dict) else None
                if not isinstance(ids, list):
                    self.refuse("post_processor.special_tokens", f"{name!r} has no ids")
                for id in ids:
                    self._id("post_processor.special_tokens", name, id)
            for side in ("single", "pair"):
                pieces = part.get(side)
                if not isinstance(pieces, list):
                    self.refuse(f"post_processor.{side}", "no list of pieces; one is required")
                for piece in pieces:
                    token = piece.get("SpecialToken") if isinstance(piece, dict) else None
                    known = token.get("id") if isinstance(token, dict) else None
                    if known is not None and (not isinstance(known, str) or known not in special):
                        self.refuse(
                            f"post_processor.{side}", f"{known!r:.60} is not among its special_tokens"
                        )

    def _named_id(self, field: str, pair: object) -> None:
        if not isinstance(pair, list) or len(pair) != 2:
            self.refuse(field, f"{pair!r:.60}; [token, id] is required")
        self._id(field, *pair)

    def _component(self, section: str, part: dict[str, Any]) -> None:
        if not isinstance(part.get("type"), str):
            self.refuse(f"{section}.type", f"{part.get('type')!r:.60}; a text is required")
        if part.get("type") == "Precompiled":
            self._charsmap(section, part.get("precompiled_charsmap"))
        length = part.get("length", 1)
        if part.get("type") == "FixedLength" and (not isinstance(length, int) or length < 1):
            self.refuse(f"{section}.FixedLength", f"length is {length!r:.60}; 1 and more is allowed")
        pattern = part.get("pattern")
        if isinstance(pattern, dict) and pattern.get("String") == "":
            self.refuse(f"{section}.pattern", "an empty text; it would match everywhere")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(regex, str) and len(regex) > _MAX_REGEX:
            self.refuse(section, f"a regex of {len(regex)} characters; the limit is {_MAX_REGEX}")

    def _growth(self, section: str) -> None:
        """Each step may lengthen the text, and they multiply."""
        parts = list(components(self.data.get(section)))
        if len(parts) > _MAX_STEPS:
            self.refuse(section, f"more than {_MAX_STEPS} steps; that many are the limit")
        growth = 1.0
        for part in parts:
            content, pattern = part.get("content"), part.get("pattern")
            if part.get("type") == "Replace" and isinstance(content, str):
                literal = pattern.get("String") if isinstance(pattern, dict) else None
                length = len(literal) if isinstance(literal, str) else 1
                growth *= max(1.0, len(content) / max(length, 1))
        if growth > _MAX_GROWTH:
            self.refuse(section, f"its steps lengthen a text {growth:.3g} times; the limit is {_MAX_GROWTH}")

    def _charsmap(self, section: str, charsmap: object) -> None:
        """A double-array trie (its byte length first), then NUL-terminated strings."""
        field = f"{section}.Precompiled"
        if not isinstance(charsmap, str):
            self.refuse(field, f"charsmap is {charsmap!r:.40}; base64 text is required")
        try:
            data = base64.b64decode(charsmap, validate=True)
        except (binascii.Error, ValueError):
            self.refuse(field, "charsmap is not base64")
        size = int.from_bytes(data[:4], "little")
        if len(data) < 8 or size == 0 or size % 4 or size + 4 > len(data):
            self.refuse(field, f"charsmap of {len(data)} bytes states a trie of {size}")
        try:
            data[4 + size :].decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(field, "charsmap holds text that is not UTF-8")

    def _length_blocks(self) -> None:
        """Truncation and padding are dropped after loading; what no tokenizer can mean is refused still."""
        truncation = self.data.get("truncation")
        if isinstance(truncation, dict):
            for name in ("max_length", "stride"):
                value = truncation.get(name, 0)
                if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                    self.refuse(f"truncation.{name}", f"{value!r}; an integer from 0 is allowed")
            if truncation.get("stride", 0) >= truncation.get("max_length", 1) > 0:
                self.refuse("truncation.stride", "not below max_length")
        padding = self.data.get("padding")
        strategy = padding.get("strategy") if isinstance(padding, dict) else None
        fixed = strategy.get("Fixed") if isinstance(strategy, dict) else None
        if fixed is not None and (not isinstance(fixed, int) or not 0 <= fixed <= _MAX_PADDING):
            self.refuse("padding.strategy", f"{fixed!r}; at most {_MAX_PADDING} is allowed")


def fix_numbers(data: dict[str, Any]) -> frozenset[int]:
    """Make the library number each token as the file does, where it would count on by itself.

    Added tokens go into the vocabulary under their ids, unused ids get unreachable tokens; returns those.
    """
    vocab = data["model"]["vocab"]
    if not isinstance(vocab, dict):
        return frozenset()
    vocab.update({token["content"]: token["id"] for token in data.get("added_tokens") or []})
    holes = frozenset(range(max(vocab.values()))).difference(vocab.values())
    vocab.update({f"\0hole {id}": id for id in holes})
    return holes


def drop_dropout(data: dict[str, Any]) -> None:
    """Take out the random merges of training."""
    data["model"].pop("dropout", None)


def locate_fault(data: dict[str, Any]) -> str:
    """Where a file that the library refuses is most likely at fault."""
    model = data["model"]
    if "merges" in model:
        prefix = str(model.get("continuing_subword_prefix") or "")
        for index, merge in enumerate(model["merges"]):
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            if left + right.removeprefix(prefix) not in model["vocab"]:
                return f"model.merges[{index}]"
    for name in _SECTIONS:
        for part in components(data.get(name)):
            if part.get("type") not in _TYPES.split():
                return f"{name}.type {part.get('type')!r:.60}"
            pattern = part.get("pattern")
            if isinstance(pattern, dict) and "Regex" in pattern:
                return f"{name} Regex"
    return "model, normalizer, pre_tokenizer, post_processor or decoder"
