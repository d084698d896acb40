"""Text to token ids and back, by the `tokenizers` library, with the bytes of each token at hand."""

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropechat.detokenizer import ByteStream, Detokenizer, SilentStream, WindowStream
from ropechat.errors import RequestError, TokenizerError
from ropechat.model_files import parse_json, read_bytes, read_json
from ropechat.tokenizer_cache import keep, recall
from ropechat.tokenizer_file import FileCheck, blame, components, fix_numbers, may_panic

if TYPE_CHECKING:
    import tokenizers

MAX_TEXT_BYTES = 4 << 20
FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "▁"
_IDS = 1 << 32  # of the library
_stderr_lock = threading.Lock()


@dataclass(frozen=True)
class EncodedToken:
    """A token of an encoded text: its id, the byte range it stands for, "text", "bos" or "special"."""

    id: int
    span: tuple[int, int]
    role: str


def _byte_level_alphabet() -> dict[str, int]:
    """What byte-level vocabularies write for bytes: printable ones as they are, others from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


@contextlib.contextmanager
def _quiet(active: bool) -> Iterator[None]:
    """Keep a Rust panic's text off file descriptor 2 while the library runs something it may panic on."""
    if not active:
        yield
        return
    with _stderr_lock:
        sys.stderr.flush()
        saved = os.dup(2)
        sink = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(sink, 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(sink)


def _is_library_failure(error: BaseException) -> bool:
    """PyO3's PanicException derives from BaseException, so it is known by name only."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


class Tokenizer:
    """A model's vocabulary. `present` is False for a folder without tokenizer.json: only ids work then."""

    def __init__(
        self,
        where: Path,
        inner: "tokenizers.Tokenizer | None",
        data: dict[str, Any],
        config: dict[str, Any],
        holes: frozenset[int] = frozenset(),
    ) -> None:
        self._where = where
        self._inner = inner
        self._config = config
        self._holes = holes
        self.present = inner is not None
        decoders = [part.get("type") for part in components(data.get("decoder"))]
        self._byte_level = bool(decoders) and set(decoders) <= {"ByteLevel", "Fuse", "Sequence"}
        self._hold = "ByteLevel" in decoders
        self._byte_fallback = "ByteFallback" in decoders
        self._risky = may_panic(data)
        model = data.get("model") or {}
        self._prefix: str = model.get("continuing_subword_prefix") or ""
        self._suffix: str = model.get("end_of_word_suffix") or ""
        self._space_mark = _writes_space_mark(data)
        added = data.get("added_tokens") or []
        self._added: dict[int, str] = {token["id"]: token["content"] for token in added}
        self.special_ids = frozenset(token["id"] for token in added if token.get("special"))
        self.bos_id = self._config_id("bos_token", required=False)
        self.eos_id = self._config_id("eos_token", required=True)

    @classmethod
    def load(cls, directory: Path, vocab_size: int) -> "Tokenizer":
        """The tokenizer of a model folder whose model has `vocab_size` ids.

        Raises TokenizerError that names the file and the field.
        """
        where = directory / FILE
        config = read_json(directory, CONFIG, TokenizerError) or {}
        if (kept := recall(where, vocab_size)) is not None:
            return cls(where, _from_file(where, kept.content, kept.data), kept.data, config, kept.holes)
        content = read_bytes(directory, FILE)
        if content is None:
            return cls(where, None, {}, {})
        data = parse_json(content, where, TokenizerError)
        FileCheck(str(where), data, vocab_size).run()
        inner, holes = _from_file(where, content, data), frozenset[int]()
        if _misnumbered(inner, data):
            holes = fix_numbers(data)
            inner = _from_file(where, json.dumps(data).encode(), data)
            if _misnumbered(inner, data):
                raise TokenizerError(f"{where}: added_tokens: ids that the tokenizers library does not keep")
        keep(where, vocab_size, data, holes)
        return cls(where, inner, data, config, holes)

    def _config_id(self, name: str, *, required: bool) -> int | None:
        value = self._config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if value is None or self._inner is None:
            return None
        if not isinstance(value, str):
            raise TokenizerError(f"{self._where.parent / CONFIG}: {name}: {value!r}; a text is required")
        id = self._inner.token_to_id(value)
        if id is None and required:
            raise TokenizerError(f"{self._where.parent / CONFIG}: {name}: {value!r} is not in the vocabulary")
        return id

    @property
    def config(self) -> dict[str, Any]:
        """tokenizer_config.json as it stands."""
        return self._config

    @property
    def vocab_size(self) -> int:
        """1 + the largest id that has a token; 0 without a tokenizer."""
        return len(self._tokens)

    @cached_property
    def _tokens(self) -> list[str | None]:
        """Token by id; None where an id has none."""
        if self._inner is None:
            return []
        vocab = self._inner.get_vocab(with_added_tokens=True)
        tokens: list[str | None] = [None] * (max(vocab.values(), default=-1) + 1)
        for token, id in vocab.items():
            tokens[id] = None if id in self._holes else token
        return tokens

    @cached_property
    def _alphabet(self) -> dict[str, int]:
        return _byte_level_alphabet()

    @cached_property
    def adds_bos(self) -> bool:
        """Whether encoding puts the begin-of-sequence token in front by itself."""
        return self.bos_id is not None and self.encode("")[:1] == [self.bos_id]

    def _library(self) -> "tokenizers.Tokenizer":
        if self._inner is None:
            raise TokenizerError(
                f"{self._where}: not there; this model takes token ids only; add its tokenizer.json for text"
            )
        return self._inner

    def _encode(self, text: str, add_special_tokens: bool) -> "tokenizers.Encoding":
        inner = self._library()
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise RequestError(
                f"text: character {error.start} is a lone surrogate; text must be valid Unicode"
            ) from None
        if size > MAX_TEXT_BYTES:
            raise RequestError(f"text: {size} bytes; at most {MAX_TEXT_BYTES} are allowed; split it")
        try:
            with _quiet(self._risky):
                return inner.encode(text, add_special_tokens=add_special_tokens)
        except BaseException as error:
            if not _is_library_failure(error):
                raise
            raise TokenizerError(
                f"{self._where}: normalizer or pre_tokenizer: fails on this text ({_first_line(error)})"
            ) from None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens are added as the tokenizer says.

        Raises TokenizerError without a tokenizer, RequestError for text that is no Unicode or above 4 MiB.
        """
        return list(self._encode(text, add_special_tokens).ids)

    def encode_aligned(self, text: str) -> list[EncodedToken]:
        """`encode` with the byte range of `text` that each token stands for."""
        encoding = self._encode(text, True)
        added = encoding.special_tokens_mask
        ids = list(encoding.ids)
        spans = self._align(ids, added, text.encode(), _spans_of_offsets(text, encoding.offsets))
        return [
            EncodedToken(id, span, self._role(id, is_added=bool(flag)))
            for id, span, flag in zip(ids, spans, added, strict=True)
        ]

    def align(self, ids: Sequence[int]) -> list[EncodedToken]:
        """The byte range of `decode(ids)` that each id stands for."""
        special = [id in self.special_ids for id in ids]
        if not self.present:
            return [EncodedToken(id, (0, 0), "text") for id in ids]
        spans, end = [], 0
        for id, is_special in zip(ids, special, strict=True):
            start, end = end, end + (0 if is_special else len(self.token_bytes(id)))
            spans.append((start, end))
        spans = self._align(ids, special, self.decode(ids).encode(), spans)
        return [
            EncodedToken(id, span, self._role(id, is_added=is_special))
            for id, span, is_special in zip(ids, spans, special, strict=True)
        ]

    def _role(self, id: int, *, is_added: bool) -> str:
        if is_added and id == self.bos_id:
            return "bos"
        return "special" if is_added or id in self.special_ids else "text"

    def _align(
        self, ids: Sequence[int], empty: Sequence[int], text: bytes, rough: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Walk the text with the tokens' bytes, stepping over a leading space that the tokenizer invented.

        Where bytes and text differ (a normalizer, an unknown character) the `rough` range is taken.
        """
        spans, at = [], 0
        for id, is_empty, (start, end) in zip(ids, empty, rough, strict=True):
            matched = at if is_empty else self._match(id, text, at)
            if matched is not None:
                start, end = at, matched
            start = min(max(start, at), len(text))
            at = min(max(end, start), len(text))
            spans.append((start, at))
        return spans

    def _match(self, id: int, text: bytes, at: int) -> int | None:
        """Where the token ends if it stands at `at`. ▁ is a space or, in the text itself, ▁."""
        piece = self.token_bytes(id)
        if text.startswith(piece, at):
            return at + len(piece)
        token = self.token(id) or ""
        if not self._space_mark or _SPACE_MARK not in token:
            return None
        for form in [token, token[1:]] if token.startswith(_SPACE_MARK) else [token]:
            end = at
            for part in re.split(f"({_SPACE_MARK})", form):
                literal = part.encode()
                if part == _SPACE_MARK and text.startswith(b" ", end):
                    literal = b" "
                if not text.startswith(literal, end):
                    break
                end += len(literal)
            else:
                return end
        return None

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids; those without a token are skipped, bytes that are no UTF-8 become U+FFFD.

        Raises TokenizerError without a tokenizer, RequestError for what is no id.
        """
        inner = self._library()
        # The library's own skipping misses special tokens that its normalizer rewrites.
        silent = self._holes | self.special_ids if skip_special_tokens else self._holes
        kept = [id for id in ids if id not in silent]
        try:
            return inner.decode(kept, skip_special_tokens=False)
        except (OverflowError, TypeError):
            raise RequestError("ids: not a list of token ids; integers from 0 are allowed") from None

    def token(self, id: int) -> str | None:
        """The token as the vocabulary writes it, or None."""
        if self._inner is None or not 0 <= id < _IDS or id in self._holes:
            return None
        return self._inner.id_to_token(id)

    def id_of(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it, or None."""
        return None if self._inner is None else self._inner.token_to_id(token)

    def token_bytes(self, id: int) -> bytes:
        """The exact bytes that a token stands for; b"" for an id without a token.

        Raises TokenizerError without a tokenizer, RequestError for a negative id.
        """
        self._library()
        if id < 0:
            raise RequestError(f"id: {id} is not allowed; a token id from 0 is")
        if id in self._added:
            return self._added[id].encode()
        token = self.token(id)
        return b"" if token is None else self._plain_bytes(token)

    def _plain_bytes(self, token: str) -> bytes:
        if self._byte_level or self._hold:
            return self._byte_level_bytes(token)
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if self._prefix and token.startswith(self._prefix):
            token = token.removeprefix(self._prefix)
        if self._suffix and token.endswith(self._suffix):
            token = token.removesuffix(self._suffix) + " "
        if self._space_mark:
            token = token.replace(_SPACE_MARK, " ")
        return token.encode()

    def _byte_level_bytes(self, token: str) -> bytes:
        """As the library's decoder: all characters are of the alphabet, or the token is taken verbatim."""
        try:
            return bytes([self._alphabet[character] for character in token])
        except KeyError:
            return token.encode()

    def _streamed_bytes(self, id: int) -> bytes:
        token = None if id in self.special_ids else self.token(id)
        return b"" if token is None else self._byte_level_bytes(token)

    def _fallback_byte(self, id: int) -> int | None:
        match = _BYTE_TOKEN.fullmatch(self.token(id) or "") if self._byte_fallback else None
        return int(match[1], 16) if match else None

    def _is_silent(self, id: int) -> bool:
        return id in self.special_ids or self.token(id) is None

    def stream(self, prompt_ids: Sequence[int] = ()) -> Detokenizer:
        """Incremental text of the ids that follow `prompt_ids`: `push(id)`, at the end `flush()`.

        The pieces concatenate to decode(prompt_ids + ids) without decode(prompt_ids); special tokens give "".
        """
        if self._inner is None:
            return SilentStream()
        if self._byte_level:
            return ByteStream(self._streamed_bytes, prompt_ids)
        return WindowStream(
            self._decode_all, self._fallback_byte, self._is_silent, prompt_ids, hold=self._hold
        )

    def _decode_all(self, ids: Sequence[int]) -> str:
        return self._library().decode(list(ids), skip_special_tokens=False)


def _from_file(where: Path, content: bytes, data: dict[str, Any]) -> "tokenizers.Tokenizer":
    """Hand a checked file to the library. Raises TokenizerError."""
    import tokenizers

    try:
        with _quiet(may_panic(data)):
            inner = tokenizers.Tokenizer.from_buffer(content)
            inner.no_padding()
            inner.no_truncation()
    except BaseException as error:
        if not _is_library_failure(error):
            raise
        message = f"{where}: {blame(data)}: {_first_line(error)}; the tokenizers library refuses it"
        raise TokenizerError(message) from None
    return inner


def _misnumbered(inner: "tokenizers.Tokenizer", data: dict[str, Any]) -> bool:
    """The library numbers added tokens by the size of the vocabulary: wrong where that has holes."""
    added = data.get("added_tokens") or []
    return any(inner.token_to_id(token["content"]) != token["id"] for token in added)


def _spans_of_offsets(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Character ranges to byte ranges."""
    starts = [0]
    for character in text:
        starts.append(starts[-1] + len(character.encode()))
    return [(starts[begin], starts[end]) for begin, end in offsets]


def _writes_space_mark(data: dict[str, Any]) -> bool:
    """Whether ▁ stands for a space in this vocabulary."""
    parts = [*components(data.get("decoder")), *components(data.get("pre_tokenizer"))]
    parts += components(data.get("normalizer"))
    for part in parts:
        pattern = part.get("pattern")
        text = pattern.get("String") if isinstance(pattern, dict) else None
        if part.get("type") == "Metaspace":
            return True
        if part.get("type") == "Replace" and _SPACE_MARK in (part.get("content"), text):
            return True
    return False


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
