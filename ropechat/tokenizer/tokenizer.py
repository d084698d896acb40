"""Conversion between text and token ids with the `tokenizers` library, and the bytes of each token."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropechat.errors import RequestError, RopechatError, TokenizerError
from ropechat.models.pack_cache import cache_mode
from ropechat.tokenizer.alignment import EncodedToken, SpanAligner, byte_spans
from ropechat.tokenizer.cache import load_cached
from ropechat.tokenizer.control_tokens import ControlTokenEscaper, EscapedText
from ropechat.tokenizer.hazards import may_panic
from ropechat.tokenizer.library import LibraryTokenizer, first_line, is_library_failure, silence_stderr
from ropechat.tokenizer.loader import Read, build_and_cache, open_cached, read_gguf, read_json_file
from ropechat.tokenizer.long_text import encode_pieces
from ropechat.tokenizer.pieces import ByteDecoder
from ropechat.tokenizer.stream import ByteStream, Detokenizer, SilentStream, WindowStream
from ropechat.tokenizer.vocabulary import Vocabulary
from ropechat.util.files import read_json
from ropechat.util.system import trim_heap
from ropechat.util.text import limit_words

if TYPE_CHECKING:
    import tokenizers

    from ropechat.tokenizer.confined import ConfinedEncoding

MAX_TEXT_BYTES = 4 << 20
FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
_IDS = 1 << 32  # the library's ids are u32
_PREPARED = 2000  # characters
_LOOKS_LIKE_CONTROL = r"<\|.*\|>|<｜.*｜>"


class Tokenizer:
    """A model's tokenizer. `present` is False for a model without one: then only ids work.

    added_ids: ids of tokens that are no ordinary text. special_ids: those without text. control_ids: ids that
    user text is never encoded to, including tokens such as <|im_start|> that the file does not mark as
    special. end_ids: ids that end a text, by the tokenizer's files. config: tokenizer_config.json, or the
    equivalent metadata of a GGUF file.
    """

    def __init__(
        self,
        where: str,
        vocabulary: Vocabulary | None,
        data: dict[str, Any],
        config: dict[str, Any],
        holes: frozenset[int] = frozenset(),
        end_ids: Iterable[int] = (),
        size: int | None = None,
    ) -> None:
        """Use `load` or `from_gguf`."""
        self._where = where
        self._vocabulary = vocabulary
        self.config = config
        self._holes = holes
        self._size = size
        self.present = vocabulary is not None
        self._pieces = ByteDecoder(data)
        self._risky = may_panic(data)
        added = data.get("added_tokens") or []
        self._added: dict[int, str] = {token["id"]: token["content"] for token in added}
        self.added_ids = frozenset(self._added)
        self.special_ids = frozenset(token["id"] for token in added if token.get("special"))
        looks = {id for id, text in self._added.items() if re.fullmatch(_LOOKS_LIKE_CONTROL, text)}
        self.control_ids = self.special_ids | looks
        self.bos_id = self._config_id("bos_token", required=False)
        self.eos_id = self._config_id("eos_token", required=True)
        self.end_ids = frozenset(id for id in (self.eos_id, *end_ids) if id is not None)
        self._walk = SpanAligner(self.token_bytes, self.token, space_mark=self._pieces.space_mark)
        self._escapers: dict[frozenset[int], ControlTokenEscaper] = {}
        self._known_bytes: dict[int, bytes] = {}
        self._known_streamed: dict[int, bytes] = {}

    @classmethod
    def load(cls, directory: Path, vocab_size: int, *, keep: bool | None = None) -> "Tokenizer":
        """Load the tokenizer of a model folder whose model has `vocab_size` ids.

        keep: whether to use the vocabulary cache; default: as ROPECHAT_CACHE says.
        Raises TokenizerError naming the file and the field.
        """
        where = directory / FILE
        config = read_json(directory, CONFIG, TokenizerError) or {}
        found = cls._kept_or_read(where, vocab_size, lambda: read_json_file(where, vocab_size), keep, config)
        return found or cls(str(where), None, {}, {})

    @classmethod
    def from_gguf(
        cls,
        where: Path,
        metadata: Callable[[], Mapping[str, Any]],
        vocab_size: int,
        *,
        keep: bool | None = None,
    ) -> "Tokenizer":
        """Load the tokenizer of a GGUF file. metadata: reads the file's metadata, if it is not cached.

        keep: as for `load`. Raises TokenizerError, ConfigError or UnsupportedModelError naming the key.
        """
        found = cls._kept_or_read(where, vocab_size, lambda: read_gguf(where, metadata(), vocab_size), keep)
        return found or cls(f"{where}: tokenizer.ggml.model", None, {}, {})

    @classmethod
    def _kept_or_read(
        cls,
        where: Path,
        vocab_size: int,
        read: Read,
        keep: bool | None,
        config: dict[str, Any] | None = None,
    ) -> "Tokenizer | None":
        """The tokenizer of a file, from the cache or by `read`; None if the file has none.

        config: overrides the file's own configuration.
        """
        keep = cache_mode() != "off" if keep is None else keep
        if (kept := load_cached(where, vocab_size) if keep else None) is None:
            if (found := build_and_cache(where, vocab_size, read(), keep=keep)) is None:
                return None
            kept = load_cached(where, vocab_size) if keep and not found.confined else None
            if kept is None:
                inner, (data, own, holes, end_ids), _ = found
                config = (own if config is None else config) or {}
                return cls(str(where), Vocabulary(lambda: inner), data, config, holes, end_ids)
            # Use the entry just cached: it takes a fraction of the memory.
            del found
            trim_heap()
        config = (kept.config if config is None else config) or {}
        vocabulary = open_cached(where, vocab_size, kept, read)
        facts = kept.holes, kept.end_ids, kept.size
        return cls(str(where), vocabulary, kept.data, config, *facts)

    def _config_id(self, name: str, *, required: bool) -> int | None:
        value = self.config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if value is None or self._vocabulary is None:
            return None
        where = Path(self._where).with_name(CONFIG)
        if not isinstance(value, str):
            raise TokenizerError(f"{where}: {name}: must be a string (got {value!r})")
        id = self._vocabulary.token_to_id(value)
        if id is None and required:
            raise TokenizerError(f"{where}: {name}: must be a token of the vocabulary (got {value!r})")
        return id

    @property
    def source(self) -> str:
        """The file that it was read from, or the field of a GGUF file."""
        return self._where

    @property
    def vocab_size(self) -> int:
        """1 + the largest id that has a token; 0 without a tokenizer."""
        if self._size is None:
            vocabulary = self._vocabulary
            ids = {} if vocabulary is None else vocabulary.library().get_vocab(with_added_tokens=True)
            self._size = 1 + max(ids.values(), default=-1)
        return self._size

    @cached_property
    def adds_bos(self) -> bool:
        """Whether `encode` adds the beginning-of-sequence (BOS) token."""
        return self.bos_id is not None and self.encode("")[:1] == [self.bos_id]

    def _known(self) -> Vocabulary:
        if self._vocabulary is None:
            raise TokenizerError(
                f"{self._where}: not found; without it this model takes token ids only; add it to use text"
            )
        return self._vocabulary

    def _run(
        self, inner: "Vocabulary | LibraryTokenizer", text: str, add_special_tokens: bool
    ) -> "tokenizers.Encoding | ConfinedEncoding":
        """Encode with this vocabulary, or with one derived from it."""
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise RequestError(
                f"text: must be valid Unicode (got a lone surrogate at character {error.start})"
            ) from None
        if size > MAX_TEXT_BYTES:
            raise RequestError(f"text: {limit_words(MAX_TEXT_BYTES, size)}; split it")
        with self._failing("normalizer or pre_tokenizer: fails on this text"):
            return inner.encode(text, add_special_tokens=add_special_tokens)

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Convert a panic or an error of the library to a TokenizerError."""
        try:
            with silence_stderr(self._risky):
                yield
        except BaseException as error:
            if not is_library_failure(error):
                raise
            raise TokenizerError(f"{self._where}: {what} ({first_line(error)})") from None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode a text; special tokens are added as the tokenizer says.

        Raises TokenizerError without a tokenizer, RequestError for invalid Unicode or text above 4 MiB.
        """
        return list(self._run(self._known(), text, add_special_tokens).ids)

    def prepare(self, text: str) -> None:
        """Load the parts of the vocabulary that a short text needs, before `encode`. Ignores errors."""
        if self.present and len(text) <= _PREPARED:
            with contextlib.suppress(RopechatError):
                self.encode(text)

    def escaper(self, control_ids: frozenset[int]) -> ControlTokenEscaper:
        """An encoder of text in which the names of these tokens are escaped, so that they stay text.

        Raises TokenizerError without a tokenizer.
        """
        if control_ids not in self._escapers:
            vocabulary = self._known()
            names = {token: id for id in control_ids if (token := self.token(id)) is not None}
            self._escapers[control_ids] = ControlTokenEscaper(self._where, vocabulary, names, self._plain_ids)
        return self._escapers[control_ids]

    def _plain_ids(self, inner: "Vocabulary | LibraryTokenizer", text: str) -> list[int]:
        return list(self._run(inner, text, add_special_tokens=False).ids)

    def encode_aligned(self, text: str, quoted: frozenset[int] = frozenset()) -> list[EncodedToken]:
        """`encode`, with the byte range of `text` that each token represents.

        quoted: tokens whose names in the text stay text.
        """
        if quoted and (with_stand_ins := self.escaper(quoted).escape(text)) != text:
            before, after = self._around
            return [*before, *self.read_aligned(self.escaper(quoted).read(with_stand_ins)), *after]
        encoding = self._run(self._known(), text, add_special_tokens=True)
        added = encoding.special_tokens_mask
        ids = list(encoding.ids)
        spans = self._walk.spans(ids, added, text.encode(), byte_spans(text, encoding.offsets))
        return [
            EncodedToken(id, span, self._role(id, is_added=bool(flag)))
            for id, span, flag in zip(ids, spans, added, strict=True)
        ]

    def encode_pieces(self, text: str, quoted: frozenset[int] = frozenset()) -> Iterator[list[EncodedToken]]:
        """`encode_aligned` of a text of any length, in lists of bounded size, encoded as they are taken."""
        return encode_pieces(lambda part: self.encode_aligned(part, quoted), text)

    @cached_property
    def _around(self) -> tuple[list[EncodedToken], list[EncodedToken]]:
        """The tokens that `encode` adds before and after a text."""
        encoding = self._run(self._known(), "x", add_special_tokens=True)
        tokens = [EncodedToken(id, (0, 0), self._role(id, is_added=True)) for id in encoding.ids]
        own = [index for index, flag in enumerate(encoding.special_tokens_mask) if not flag]
        return (tokens[: own[0]], tokens[own[-1] + 1 :]) if own else (tokens, [])

    def read_aligned(self, reading: EscapedText) -> list[EncodedToken]:
        """Encode a text with stand-ins; spans are byte ranges of `reading.shown`."""
        encoding = self._run(reading.vocabulary, reading.text, add_special_tokens=False)
        ids, places = list(encoding.ids), reading.places
        rough = byte_spans(reading.shown, [(places[start], places[end]) for start, end in encoding.offsets])
        spans = self._walk.spans(ids, [0] * len(ids), reading.shown.encode(), rough)
        return [
            EncodedToken(id, span, self._role(id, is_added=False))
            for id, span in zip(ids, spans, strict=True)
        ]

    def align(self, ids: Sequence[int]) -> list[EncodedToken]:
        """The byte range of `decode(ids)` that each id represents."""
        special = [id in self.special_ids for id in ids]
        if not self.present:
            return [EncodedToken(id, (0, 0), "text") for id in ids]
        spans, end = [], 0
        for id, is_special in zip(ids, special, strict=True):
            start, end = end, end + (0 if is_special else len(self.token_bytes(id)))
            spans.append((start, end))
        spans = self._walk.spans(ids, special, self.decode(ids).encode(), spans)
        return [
            EncodedToken(id, span, self._role(id, is_added=is_special))
            for id, span, is_special in zip(ids, spans, special, strict=True)
        ]

    def _role(self, id: int, *, is_added: bool) -> str:
        if is_added and id == self.bos_id:
            return "bos"
        return "special" if is_added or id in self.special_ids else "text"

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode ids; ids without a token are skipped, invalid UTF-8 becomes U+FFFD.

        Raises TokenizerError without a tokenizer, RequestError for invalid ids.
        """
        # Not the library's skip_special_tokens: it misses tokens that its normalizer rewrites.
        silent = self._holes | self.special_ids if skip_special_tokens else self._holes
        return self._decode_all([id for id in ids if id not in silent])

    def token(self, id: int) -> str | None:
        """The token of an id, as written in the vocabulary, or None."""
        if self._vocabulary is None or not 0 <= id < _IDS or id in self._holes:
            return None
        return self._vocabulary.id_to_token(id)

    def id_of(self, token: str) -> int | None:
        """The id of a token, as written in the vocabulary, or None."""
        return None if self._vocabulary is None else self._vocabulary.token_to_id(token)

    def token_bytes(self, id: int) -> bytes:
        """The exact bytes of a token; b"" for an id without a token.

        Raises TokenizerError without a tokenizer, RequestError for a negative id.
        """
        known = self._known_bytes.get(id)
        if known is None:
            known = self._known_bytes[id] = self._find_bytes(id)
        return known

    def _find_bytes(self, id: int) -> bytes:
        self._known()
        if id < 0:
            raise RequestError(f"id: must be at least 0 (got {id})")
        if id in self._added:
            return self._added[id].encode()
        token = self.token(id)
        return b"" if token is None else self._pieces.bytes_of(token)

    def _streamed_bytes(self, id: int) -> bytes:
        known = self._known_streamed.get(id)
        if known is None:
            token = None if id in self.special_ids else self.token(id)
            known = b"" if token is None else self._pieces.byte_level_bytes(token)
            self._known_streamed[id] = known
        return known

    def _fallback_byte(self, id: int) -> int | None:
        return self._pieces.fallback_byte(self.token(id) or "")

    def _is_silent(self, id: int) -> bool:
        return id in self.special_ids or self.token(id) is None

    def stream(self, prompt_ids: Sequence[int] = ()) -> Detokenizer:
        """Decode incrementally the ids that follow `prompt_ids`: `push(id)`, and `flush()` at the end.

        The pieces concatenate to decode(prompt_ids + ids) minus decode(prompt_ids); special tokens give "".
        """
        if self._vocabulary is None:
            return SilentStream()
        if self._pieces.byte_level:
            return ByteStream(self._streamed_bytes, prompt_ids)
        return WindowStream(
            self._decode_all, self._fallback_byte, self._is_silent, prompt_ids, hold=self._pieces.hold
        )

    def _decode_all(self, ids: Sequence[int]) -> str:
        vocabulary = self._known()
        if not all(isinstance(id, int) and 0 <= id < 1 << 32 for id in ids):
            raise RequestError("ids: must be a list of integers from 0 to 2^32 - 1")
        with self._failing("decoder: fails on these tokens"):
            return vocabulary.decode(ids)
