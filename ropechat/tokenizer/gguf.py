"""Conversion of the vocabulary in a GGUF file to a tokenizer.json and tokenizer_config.json.

Keys are those of the GGUF specification (ggml/docs/gguf.md); defaults are llama.cpp's (src/llama-vocab.cpp).
All values are validated. Messages have the form `<file>: <key>: must be <what is allowed> (got <value>)`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn

from ropechat.errors import ConfigError, TokenizerError, UnsupportedModelError
from ropechat.tokenizer.pieces import SPACE_MARK, byte_of
from ropechat.tokenizer.pre_types import PRE_TYPES, PreType
from ropechat.tokenizer.spm import merges_of, share_of_commonest_score

KEY = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
_SPECIAL_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_END_NAMES = ("eos", "eot", "eom")
_SPM_IDS = {"bos": 1, "eos": 2, "unknown": 0}  # llama.cpp's defaults for a llama vocabulary
_MAX_TOKEN = 1 << 20
_EMPTY = "\0empty "


class TokenType(IntEnum):
    """llama_token_type."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL = (TokenType.UNKNOWN, TokenType.CONTROL)
_ADDED = (*_SPECIAL, TokenType.USER_DEFINED)
_TYPES = {int(kind): kind for kind in TokenType}


@dataclass(frozen=True)
class GgufVocabulary:
    """The equivalents of tokenizer.json (`data`) and tokenizer_config.json (`config`) in a GGUF file.

    holes: ids without a token. end_ids: end of sequence, of turn and of message.
    """

    data: dict[str, Any]
    config: dict[str, Any]
    holes: frozenset[int]
    end_ids: frozenset[int]


def vocabulary(where: str, metadata: Mapping[str, Any], vocab_size: int) -> GgufVocabulary | None:
    """Convert the vocabulary of a file whose model has `vocab_size` ids; None if the file has no vocabulary.

    Raises TokenizerError, ConfigError for a special id out of range, UnsupportedModelError for an unknown
    tokenizer model or pre-tokenizer type.
    """
    keys = _Keys(where, metadata)
    kind = keys.text("model")
    if kind in (None, "none", "no_vocab"):
        return None
    if kind not in ("gpt2", "llama", "gemma4"):
        raise UnsupportedModelError(f"{where}: {KEY}model: must be gpt2, llama or gemma4 (got {kind!r:.60})")
    tokens = _tokens(keys, vocab_size)
    ids = _special_ids(keys, vocab_size, _SPM_IDS if kind == "llama" else {})
    types = _types(keys, tokens, [id for name, id in ids.items() if name != "padding" and id is not None])
    match kind:
        case "llama":
            data = _spm(keys, tokens, types, ids["unknown"])
        case "gemma4":
            data = _with_marked_spaces(tokens, _merges(keys, tokens), ids["unknown"], prefix=False)
        case _:
            data = _bpe(keys, tokens)
    data["added_tokens"] = _added(tokens, types, _strips_after(metadata))
    pre_bos = kind != "gpt2" or _pre_type(keys).adds_bos
    # Files of Gemma 4 that say otherwise are wrong (llama.cpp, #21500).
    data["post_processor"] = _post_processor(keys, tokens, ids, pre_bos, always_bos=kind == "gemma4")
    config: dict[str, Any] = {
        name: tokens[id] for key, name in _SPECIAL_NAMES.items() if (id := ids[key]) is not None
    }
    config["chat_template"] = _templates(metadata)
    holes = frozenset(id for id, token in enumerate(tokens) if token.startswith(_EMPTY))
    return GgufVocabulary(
        data, config, holes, frozenset(id for name in _END_NAMES if (id := ids[name]) is not None)
    )


def _special_ids(keys: "_Keys", size: int, defaults: Mapping[str, int]) -> dict[str, int | None]:
    ids = {name: keys.id(f"{name}_token_id", size) for name in ("bos", "eos", "eot", "eom", "unknown")}
    for name, id in defaults.items():
        if ids[name] is None and id < size:
            ids[name] = id
    ids["padding"] = keys.lenient_id("padding_token_id", size)
    return ids


class _Keys:
    """Typed access to `tokenizer.ggml.*`."""

    def __init__(self, where: str, metadata: Mapping[str, Any]) -> None:
        self.where = where
        self._metadata = metadata

    def refuse(self, key: str, what: str) -> NoReturn:
        raise TokenizerError(f"{self.where}: {KEY}{key}: {what}")

    def text(self, key: str) -> str | None:
        value = self._metadata.get(KEY + key)
        if value is not None and not isinstance(value, str):
            self.refuse(key, f"must be a string (got {value!r:.60})")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(KEY + key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, f"must be true or false (got {value!r:.60})")
        return default if value is None else value

    def id(self, key: str, size: int) -> int | None:
        value = self._metadata.get(KEY + key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
            allowed = f"must be an id from 0 to {size - 1}"
            raise ConfigError(f"{self.where}: {KEY}{key}: {allowed} (got {value!r:.60})")
        return value

    def lenient_id(self, key: str, size: int) -> int | None:
        """An id that does not affect results; None if out of range, as in some files."""
        value = self._metadata.get(KEY + key)
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size
        return value if fits else None

    def array(self, key: str, length: int | None = None) -> Sequence[Any] | None:
        value = self._metadata.get(KEY + key)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            self.refuse(key, f"must be an array (got {value!r:.60})")
        if length is not None and len(value) != length:
            self.refuse(key, f"must have {length} entries, one for each token (got {len(value)})")
        return value

    def texts(self, key: str) -> Sequence[str] | None:
        values = self.array(key)
        for index, value in enumerate(values or ()):
            if isinstance(value, bytes) or (isinstance(value, str) and _is_broken(value)):
                self.refuse(key, f"entry {index} must be UTF-8; download the file again")
            if not isinstance(value, str):
                self.refuse(key, f"entry {index} must be a string (got {value!r:.60})")
            if len(value) > _MAX_TOKEN:
                self.refuse(key, f"entry {index} must be at most {_MAX_TOKEN} characters (got {len(value)})")
        return values


def _is_broken(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _tokens(keys: _Keys, vocab_size: int) -> list[str]:
    """Tokens by id; an empty one gets a text that no input can contain."""
    given = keys.texts("tokens")
    if not given:
        keys.refuse("tokens", "must be a non-empty array of strings")
    if len(given) != vocab_size:
        keys.refuse("tokens", f"must have {vocab_size} tokens, the rows of token_embd (got {len(given)})")
    if not any(given):
        keys.refuse("tokens", "must not all be empty")
    tokens = [token or f"{_EMPTY}{id}" for id, token in enumerate(given)]
    if len(set(tokens)) != len(tokens):
        first: dict[str, int] = {}
        id, token = next((i, text) for i, text in enumerate(tokens) if first.setdefault(text, i) != i)
        keys.refuse("tokens", f"must be unique ({token!r:.60} has the ids {first[token]} and {id})")
    return tokens


def _types(keys: _Keys, tokens: Sequence[str], special: Sequence[int]) -> list[TokenType]:
    """Types by id. Without types in the file, the special ids are control tokens."""
    given = keys.array("token_type", len(tokens))
    if given is None:
        types = [TokenType.NORMAL] * len(tokens)
        for id in special:
            types[id] = TokenType.CONTROL
        return types
    if isinstance(given, bytes | bytearray | memoryview):
        keys.refuse("token_type", "must be an array of 32-bit integers (got bytes)")
    types = []
    for id, value in enumerate(given):
        found = None if isinstance(value, bool) or not isinstance(value, int) else _TYPES.get(value)
        if found is None:
            keys.refuse("token_type", f"entry {id} must be from 0 to 6 (got {value!r:.60})")
        if found is TokenType.BYTE and byte_of(tokens[id]) is None:
            keys.refuse("tokens", f"byte token {id} must be from <0x00> to <0xFF> (got {tokens[id]!r:.60})")
        types.append(found)
    return types


def _strips_after(metadata: Mapping[str, Any]) -> bool:
    """Whether tokens absorb the white space after them: Phi-3's do, and as llama.cpp we go by its name."""
    name = str(metadata.get("general.name", "")).lower()
    return "phi-3" in name or "phi3" in name


def _added(tokens: Sequence[str], types: Sequence[TokenType], strips_after: bool) -> list[dict[str, Any]]:
    """The added tokens, which are matched before the text is split into words."""
    whole = ("<unk>", "<s>", "<|endoftext|>")
    return [
        {
            "id": id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": strips_after and token not in whole,
            "normalized": False,
            "special": kind in _SPECIAL,
        }
        for id, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in _ADDED or (strips_after and token == "</s>")
    ]


def _post_processor(
    keys: _Keys, tokens: Sequence[str], ids: Mapping[str, int | None], pre_bos: bool, *, always_bos: bool
) -> dict[str, Any] | None:
    """The post-processor, which adds BOS and EOS."""
    names: dict[str, int] = {}
    pieces: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    for name, at, default in (("bos", 0, pre_bos), ("eos", 2, False)):
        id, key = ids[name], f"add_{name}_token"
        if not keys.flag(key, default) and not (always_bos and name == "bos"):
            continue
        if id is None:
            if keys.flag(key, False):
                keys.refuse(key, f"must be false without {KEY}{name}_token_id (got true)")
            continue
        names[tokens[id]] = id
        pieces.insert(at, {"SpecialToken": {"id": tokens[id], "type_id": 0}})
    if not names:
        return None
    special = {token: {"id": token, "ids": [id], "tokens": [token]} for token, id in names.items()}
    pair = [*pieces, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": special}


def _pre_type(keys: _Keys) -> PreType:
    name = keys.text("pre") or "default"
    if name not in PRE_TYPES:
        raise UnsupportedModelError(
            f"{keys.where}: {KEY}pre: {name!r:.60} is not a supported pre-tokenizer; "
            "use the safetensors version of the model with its tokenizer.json"
        )
    return PRE_TYPES[name]


def _json(normalizer: Any, pre_tokenizer: Any, decoder: Any, **model: Any) -> dict[str, Any]:
    plain = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": decoder,
        "model": {"type": "BPE", **plain, "ignore_merges": False, **model},
    }


def _merges(keys: _Keys, tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs in the order of their ranks."""
    given = keys.texts("merges")
    if given is None:
        keys.refuse("merges", "must be an array of pairs")
    vocab = set(tokens)
    merges: dict[tuple[str, str], None] = {}  # of duplicates the first counts
    for index, merge in enumerate(given):
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 0 or not right:
            keys.refuse(
                "merges", f"entry {index} must be two tokens separated by a space (got {merge!r:.60})"
            )
        for part in (left, right, left + right):
            if part not in vocab:
                keys.refuse(
                    "merges",
                    f"entry {index} must consist of tokens (got {merge!r:.60}; {part!r:.60} is not one)",
                )
        merges[left, right] = None
    return list(merges)


def _bpe(keys: _Keys, tokens: Sequence[str]) -> dict[str, Any]:
    """Byte-level byte-pair encoding (`gpt2`)."""
    kind = _pre_type(keys)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in kind.patterns
    ]
    return _json(
        None,
        {"type": "Sequence", "pretokenizers": [*steps, level]},
        level,
        vocab={token: id for id, token in enumerate(tokens)},
        merges=_merges(keys, tokens),
        unk_token=None,
        fuse_unk=False,
        byte_fallback=False,
        ignore_merges=kind.ignore_merges,
    )


def _spm(
    keys: _Keys, tokens: Sequence[str], types: Sequence[TokenType], unknown: int | None
) -> dict[str, Any]:
    """SentencePiece (`llama`): merges by score, byte fallback, ▁ for a space."""
    scores = keys.array("scores", len(tokens))
    if scores is None:
        keys.refuse("scores", "must be an array of one number for each token")
    for id, score in enumerate(scores):
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            keys.refuse("scores", f"entry {id} must be a finite number (got {score!r:.60})")
    barred = (*_SPECIAL, TokenType.BYTE)  # text is never merged into these
    ids = {token: id for id, token in enumerate(tokens) if types[id] not in barred}
    if share_of_commonest_score(ids, scores) > 0.5:
        keys.refuse("scores", "must differ between tokens (most are the same); convert the model again")
    prefix = keys.flag("add_space_prefix", True)
    return _with_marked_spaces(tokens, merges_of(ids, scores), unknown, prefix=prefix)


def _with_marked_spaces(
    tokens: Sequence[str], merges: Sequence[tuple[str, str]], unknown: int | None, *, prefix: bool
) -> dict[str, Any]:
    """Merges over the whole text, byte fallback, ▁ for a space (`llama`, `gemma4`)."""
    normalizers: list[dict[str, Any]] = [{"type": "Prepend", "prepend": SPACE_MARK}] if prefix else []
    normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK})
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _json(
        {"type": "Sequence", "normalizers": normalizers},
        None,
        {"type": "Sequence", "decoders": decoders},
        vocab={token: id for id, token in enumerate(tokens)},
        merges=merges,
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )


def _templates(metadata: Mapping[str, Any]) -> Any:
    """The chat template, or a list of templates if the file has named ones too."""
    found = {key[len(TEMPLATE) :]: value for key, value in metadata.items() if key.startswith(TEMPLATE)}
    if found.keys() <= {""}:
        return found.get("")
    return [{"name": name.removeprefix(".") or "default", "template": value} for name, value in found.items()]
