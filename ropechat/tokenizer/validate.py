"""Validation of a parsed tokenizer.json before the tokenizers library loads it.

The library panics, aborts or guesses on some invalid files. Messages have the form
`<file>: <field>: must be <what is allowed> (got <value>)`.
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
_MAX_TEMPLATE_IDS = 1000
_MAX_STRING = 64
"""Characters that a step or the model adds to each text, word or character."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_TYPES = (
    "Sequence BertNormalizer NFC NFD NFKC NFKD Nmt Lowercase Strip StripAccents Prepend Replace Precompiled "
    "ByteLevel BertPreTokenizer Digits Metaspace Punctuation Split UnicodeScripts Whitespace WhitespaceSplit "
    "FixedLength CharDelimiterSplit BertProcessing RobertaProcessing TemplateProcessing BPEDecoder CTC Fuse "
    "ByteFallback WordPiece"
)


class FileCheck:
    """One pass over a tokenizer.json; `run` raises TokenizerError at the first error."""

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
        for name in _SECTIONS:
            self._growth(name)
        self._length_blocks()

    def _id(self, field: str, token: object, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(field, f"the id of {token!r} must be an integer (got {value!r})")
        if not 0 <= value < self.vocab_size:
            self.refuse(
                field,
                f"the id of {token!r} must be from 0 to {self.vocab_size - 1} (got {value}): vocab_size of "
                "config.json, the number of rows of embed_tokens",
            )

    def _model(self) -> None:
        model = self.data.get("model")
        if not isinstance(model, dict):
            self.refuse("model", "must be an object")
        kind = model.get("type", "BPE" if "merges" in model else None)
        if kind not in MODEL_TYPES:
            self.refuse("model.type", f"must be one of {', '.join(MODEL_TYPES)} (got {kind!r})")
        for name in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token"):
            self._short(f"model.{name}", model.get(name))
        if kind == "Unigram":
            self._unigram(model)
            return
        vocab = model.get("vocab")
        if not isinstance(vocab, dict) or not vocab:
            self.refuse("model.vocab", "must be a non-empty object of token -> id")
        for token, id in vocab.items():
            self._id("model.vocab", token, id)
            if not token.isascii() and _LONE_SURROGATE.search(token):
                self.refuse(
                    "model.vocab", f"tokens must be valid Unicode (got a lone surrogate in {token!r:.60})"
                )
        if len(set(vocab.values())) != len(vocab):
            self.refuse("model.vocab", "ids must be unique (two tokens have the same id)")
        if kind == "BPE":
            self._merges(model.get("merges"), vocab, model.get("continuing_subword_prefix") or "")

    def _merges(self, merges: Any, vocab: dict[str, int], prefix: str) -> None:
        if not isinstance(merges, list):
            self.refuse("model.merges", "must be a list of pairs")
        for index, merge in enumerate(merges):
            if isinstance(merge, str):
                merge = merge.split(" ")
            if (
                not isinstance(merge, list)
                or len(merge) != 2
                or not isinstance(merge[0], str)
                or not isinstance(merge[1], str)
            ):
                self.refuse(f"model.merges[{index}]", "must be a pair of strings")
            for part in merge:
                if part not in vocab:
                    self.refuse(
                        f"model.merges[{index}]", f"must consist of tokens of model.vocab (got {part!r})"
                    )
            if not merge[1].startswith(prefix):  # the library would cut it anywhere, and abort the process
                starts = f"its second token must begin with continuing_subword_prefix {prefix!r}"
                self.refuse(f"model.merges[{index}]", f"{starts} (got {merge[1]!r})")

    def _unigram(self, model: dict[str, Any]) -> None:
        vocab = model.get("vocab")
        if not isinstance(vocab, list) or not vocab:
            self.refuse("model.vocab", "must be a non-empty list of [token, score]")
        if len(vocab) > self.vocab_size:
            limit = f"must have at most {self.vocab_size} tokens (vocab_size)"
            self.refuse("model.vocab", f"{limit} (got {len(vocab)})")
        for index, entry in enumerate(vocab):
            fits = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
            score = entry[1] if fits else None
            if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) < 1e30:
                self.refuse(f"model.vocab[{index}]", f"must be [token, finite score] (got {entry!r:.60})")
        unk = model.get("unk_id")
        if unk is not None and (
            isinstance(unk, bool) or not isinstance(unk, int) or not 0 <= unk < len(vocab)
        ):
            self.refuse("model.unk_id", f"must be an index of model.vocab (got {unk!r})")

    def _added_tokens(self) -> None:
        added = self.data.get("added_tokens") or []
        if not isinstance(added, list):
            self.refuse("added_tokens", "must be a list")
        seen: dict[str, int] = {}
        for index, token in enumerate(added):
            field = f"added_tokens[{index}]"
            content = token.get("content") if isinstance(token, dict) else None
            if not isinstance(content, str) or "id" not in token:
                self.refuse(field, "must have content and id")
            if content == "":
                self.refuse(field, "content must not be empty: it would match everywhere")
            self._id(field, content, token["id"])
            if seen.setdefault(content, token["id"]) != token["id"]:
                self.refuse(field, f"must be unique ({content!r} occurs twice with different ids)")

    def _short(self, field: str, text: object) -> None:
        if text is not None and not isinstance(text, str):
            self.refuse(field, f"must be a string (got {text!r:.60})")
        if text is not None and len(text) > _MAX_STRING:
            self.refuse(field, f"must be at most {_MAX_STRING} characters (got {len(text):,})")

    def _post_processor(self) -> None:
        count = 0
        for part in components(self.data.get("post_processor")):
            for key in {"sep", "cls"} & part.keys():  # RobertaProcessing and BertProcessing
                self._named_id(f"post_processor.{key}", part[key])
            if part.get("type") != "TemplateProcessing":
                continue
            special = part.get("special_tokens")
            if not isinstance(special, dict):
                self.refuse("post_processor.special_tokens", "must be an object")
            for name, token in special.items():
                ids = token.get("ids") if isinstance(token, dict) else None
                if not isinstance(ids, list):
                    self.refuse("post_processor.special_tokens", f"{name!r} must have a list of ids")
                for id in ids:
                    self._id("post_processor.special_tokens", name, id)
            for side in ("single", "pair"):
                pieces = part.get(side)
                if not isinstance(pieces, list):
                    self.refuse(f"post_processor.{side}", "must be a list of pieces")
                count += self._template_ids(side, pieces, special)
        if count > _MAX_TEMPLATE_IDS:
            self.refuse("post_processor", f"must add at most {_MAX_TEMPLATE_IDS:,} ids (got {count:,})")

    def _template_ids(self, side: str, pieces: list[Any], special: dict[str, Any]) -> int:
        """Validate the pieces of a template; return how many ids they add."""
        count = 0
        for piece in pieces:
            token = piece.get("SpecialToken") if isinstance(piece, dict) else None
            known = token.get("id") if isinstance(token, dict) else None
            if known is None:
                continue
            if not isinstance(known, str) or known not in special:
                self.refuse(
                    f"post_processor.{side}", f"must name tokens of its special_tokens (got {known!r:.60})"
                )
            count += len(special[known]["ids"])
        return count

    def _named_id(self, field: str, pair: object) -> None:
        if not isinstance(pair, list) or len(pair) != 2:
            self.refuse(field, f"must be [token, id] (got {pair!r:.60})")
        self._id(field, *pair)

    def _component(self, section: str, part: dict[str, Any]) -> None:
        if not isinstance(part.get("type"), str):
            self.refuse(f"{section}.type", f"must be a string (got {part.get('type')!r:.60})")
        if part.get("type") == "Precompiled":
            self._charsmap(section, part.get("precompiled_charsmap"))
        length = part.get("length", 1)
        if part.get("type") == "FixedLength" and (not isinstance(length, int) or length < 1):
            self.refuse(f"{section}.FixedLength", f"length must be at least 1 (got {length!r:.60})")
        pattern = part.get("pattern")
        if isinstance(pattern, dict) and pattern.get("String") == "":
            self.refuse(f"{section}.pattern", "must not be empty: it would match everywhere")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(regex, str) and len(regex) > _MAX_REGEX:
            self.refuse(section, f"regex must be at most {_MAX_REGEX} characters (got {len(regex)})")

    def _growth(self, section: str) -> None:
        """Limit the number of steps, and the product of the factors by which they lengthen a text."""
        parts = list(components(self.data.get(section)))
        if len(parts) > _MAX_STEPS:
            self.refuse(section, f"must have at most {_MAX_STEPS} steps (got {len(parts):,})")
        growth = 1.0
        for part in parts:
            self._short(f"{section}.Prepend", part.get("prepend"))
            growth *= _growth_of(part)
        if growth > _MAX_GROWTH:
            self.refuse(section, f"must lengthen a text at most {_MAX_GROWTH} times (got {growth:.3g})")

    def _charsmap(self, section: str, charsmap: object) -> None:
        """Validate a charsmap: a trie's length in bytes, a double-array trie, NUL-terminated strings."""
        field = f"{section}.Precompiled"
        if not isinstance(charsmap, str):
            self.refuse(field, f"charsmap must be base64 text (got {charsmap!r:.40})")
        try:
            data = base64.b64decode(charsmap, validate=True)
        except (binascii.Error, ValueError):
            self.refuse(field, "charsmap must be base64")
        size = int.from_bytes(data[:4], "little")
        if len(data) < 8 or size == 0 or size % 4 or size + 4 > len(data):
            self.refuse(
                field, f"charsmap must contain its trie (got {len(data)} bytes with a trie of {size})"
            )
        try:
            data[4 + size :].decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(field, "charsmap must contain UTF-8 text")
        longest = max(map(len, data[4 + size :].split(b"\0")))
        if longest > _MAX_STRING:
            limit = f"must replace a character by at most {_MAX_STRING} bytes"
            self.refuse(field, f"charsmap {limit} (got {longest:,})")

    def _length_blocks(self) -> None:
        """Validate truncation and padding, which are not used: the library would panic on bad values."""
        truncation = self.data.get("truncation")
        if isinstance(truncation, dict):
            for name in ("max_length", "stride"):
                value = truncation.get(name, 0)
                if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                    self.refuse(f"truncation.{name}", f"must be an integer of at least 0 (got {value!r})")
            if truncation.get("stride", 0) >= truncation.get("max_length", 1) > 0:
                self.refuse("truncation.stride", "must be below max_length")
        padding = self.data.get("padding")
        strategy = padding.get("strategy") if isinstance(padding, dict) else None
        fixed = strategy.get("Fixed") if isinstance(strategy, dict) else None
        if fixed is not None and (not isinstance(fixed, int) or not 0 <= fixed <= _MAX_PADDING):
            self.refuse("padding.strategy", f"must be an integer from 0 to {_MAX_PADDING} (got {fixed!r})")


def _growth_of(part: dict[str, Any]) -> float:
    """The most times that a step lengthens a text."""
    content, pattern, kind = part.get("content"), part.get("pattern"), part.get("type")
    if kind == "Replace" and isinstance(content, str):
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        length = len(literal) if isinstance(literal, str) else 1
        return max(1.0, len(content) / max(length, 1))
    if kind == "TemplateProcessing":
        sides = (part.get(side) for side in ("single", "pair"))  # of another section they may be anything
        copies = [
            sum(isinstance(piece, dict) and "Sequence" in piece for piece in side)
            for side in sides
            if isinstance(side, list)
        ]
        return max([1.0, *copies])
    return 1.0


def fix_numbers(data: dict[str, Any]) -> frozenset[int]:
    """Make the library use the file's ids where it would assign its own.

    Adds the added tokens to the vocabulary and unreachable tokens for unused ids; returns the unused ids.
    """
    vocab = data["model"]["vocab"]
    if not isinstance(vocab, dict):
        return frozenset()
    vocab.update({token["content"]: token["id"] for token in data.get("added_tokens") or []})
    holes = frozenset(range(max(vocab.values()))).difference(vocab.values())
    vocab.update({f"\0hole {id}": id for id in holes})
    return holes


def drop_dropout(data: dict[str, Any]) -> None:
    """Remove dropout, the random skipping of merges during training."""
    data["model"].pop("dropout", None)


def locate_fault(data: dict[str, Any]) -> str:
    """The most likely cause in a file that the library rejects."""
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
