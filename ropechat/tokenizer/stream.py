"""Incremental decoding of token ids: the pieces concatenate to exactly the decoded whole.

There are two decoders, chosen by the tokenizer's decoder:

`ByteStream` (byte-level vocabularies): the text is the UTF-8 of the tokens' bytes, so an incremental UTF-8
decoder suffices.

`WindowStream` (all others): the first token of a text is decoded differently (its space is dropped), and a
run of byte tokens is decoded as a whole (one invalid byte makes each byte of the run U+FFFD). So each piece
is decoded after one anchor token, whose own text is cut off, and a run is held back until it ends.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

_MAX_PEEK = 64
_MAX_HOLD = 8
_REPLACEMENT = "\ufffd"
_ASCII = {bytes([code]) for code in range(0x80)}


class Detokenizer(Protocol):
    """Incremental text of the ids that follow a prompt."""

    def push(self, id: int) -> str:
        """Add an id and return the text that became final; never an incomplete character."""

    def skip(self, ids: Sequence[int]) -> None:
        """Add ids without returning their text, which is faster than `push`."""

    def peek(self) -> str:
        """What `flush` would return now, if that is complete characters; else ""."""

    def flush(self) -> str:
        """Return the rest of the text so far, U+FFFD for an incomplete character; more ids may follow."""


class SilentStream:
    """For a model without a tokenizer: ids have no text."""

    def push(self, id: int) -> str:
        return ""

    def skip(self, ids: Sequence[int]) -> None:
        pass

    def peek(self) -> str:
        return ""

    def flush(self) -> str:
        return ""


class ByteStream:
    """Decodes ids of a byte-level vocabulary; `bytes_of` returns b"" for ids without text."""

    def __init__(self, bytes_of: Callable[[int], bytes], prompt_ids: Sequence[int]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        tail = b""
        for id in reversed(prompt_ids):
            tail = bytes_of(id) + tail
            if len(tail) >= 4:  # length of the longest character
                break
        self._decoder.decode(tail)
        # An incomplete character at the prompt's end is this many U+FFFD in the prompt's own text.
        self._shown = len(self._decoder.getstate()[0].decode("utf-8", "replace"))

    def _closing(self, text: str) -> str:
        if text and self._shown:
            bad = len(text) - len(text.lstrip(_REPLACEMENT))
            text, self._shown = text[min(bad, self._shown) :], 0
        return text

    def push(self, id: int) -> str:
        return self._closing(self._decoder.decode(self._bytes_of(id)))

    def skip(self, ids: Sequence[int]) -> None:
        start = len(ids)
        while start and self._bytes_of(ids[start - 1])[-1:] not in _ASCII:
            start -= 1
        if start:  # an ASCII byte ends any earlier character
            self._decoder.reset()
            self._shown = 0
        for id in ids[start:]:
            self.push(id)

    def peek(self) -> str:
        return ""

    def flush(self) -> str:
        return self._closing(self._decoder.decode(b"", final=True))


class WindowStream:
    """Decodes ids of any other vocabulary.

    decode: ids -> text by the library. byte_of: the byte of a byte-fallback token, else None.
    skipped: whether an id has no text. hold: a piece that ends in U+FFFD may still become a character.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        byte_of: Callable[[int], int | None],
        skipped: Callable[[int], bool],
        prompt_ids: Sequence[int],
        *,
        hold: bool = False,
    ) -> None:
        self._decode = decode
        self._byte_of = byte_of
        self._skipped = skipped
        self._hold = hold
        self._anchor: list[int] = []
        self._pending: list[int] = []
        self._run = bytearray()
        for id in reversed(prompt_ids):
            if skipped(id):
                continue
            byte = byte_of(id)
            if byte is None:
                self._anchor = [id]
                break
            self._pending.append(id)
            self._run.append(byte)
        self._pending.reverse()
        self._run.reverse()
        self._prompt_bytes = len(self._run)

    def push(self, id: int) -> str:
        if self._skipped(id):
            return ""
        self._pending.append(id)
        byte = self._byte_of(id)
        if byte is None:
            return self._emit(final=False)
        self._run.append(byte)
        return ""

    def skip(self, ids: Sequence[int]) -> None:
        start = 0 if self._hold else len(ids)  # a held piece may still change
        while start and (self._skipped(ids[start - 1]) or self._byte_of(ids[start - 1]) is not None):
            start -= 1
        if start:  # this token ends any earlier piece
            self._anchored(ids[start - 1])
        for id in ids[start:]:
            self.push(id)

    def peek(self) -> str:
        if not self._run or len(self._run) > _MAX_PEEK or not _is_utf8(self._run):
            return ""
        return self._piece()

    def flush(self) -> str:
        return self._emit(final=True)

    def _emit(self, *, final: bool) -> str:
        if not self._pending:
            return ""
        text = self._piece()
        if self._hold and not final and text.endswith(_REPLACEMENT) and len(self._pending) < _MAX_HOLD:
            return ""
        self._anchored(self._pending[-1])
        return text

    def _anchored(self, id: int) -> None:
        """Make this token the anchor: all text up to it is final."""
        self._anchor = [id]
        self._pending = []
        self._run.clear()
        self._prompt_bytes = 0

    def _piece(self) -> str:
        """The text of the pending ids, without that of the anchor and of the prompt's bytes."""
        full = self._decode(self._anchor + self._pending)
        base = self._decode(self._anchor)
        if not full.startswith(base):
            base = ""
        if self._prompt_bytes == 0:
            return full[len(base) :]
        if not _is_utf8(self._run):  # every byte becomes one U+FFFD, those of the prompt too
            return full[len(base) + self._prompt_bytes :]
        whole = len(bytes(self._run[: self._prompt_bytes]).decode("utf-8", "ignore").encode())
        return full[len(self._decode(self._anchor + self._pending[:whole])) :]


def _is_utf8(data: bytes | bytearray) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
