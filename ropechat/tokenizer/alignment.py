"""Alignment of tokens with the byte ranges of a text."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ropechat.tokenizer.pieces import SPACE_MARK

Span = tuple[int, int]


class EncodedToken(NamedTuple):
    """A token of an encoded text: its id, its byte range in the text, its role (`TokenScore.role`)."""

    id: int
    span: Span
    role: str


class SpanAligner:
    """Aligns tokens with a text. bytes_of, token_of: of an id. space_mark: ▁ is a space."""

    def __init__(
        self, bytes_of: Callable[[int], bytes], token_of: Callable[[int], str | None], *, space_mark: bool
    ) -> None:
        self._bytes_of = bytes_of
        self._token_of = token_of
        self._space_mark = space_mark

    def spans(
        self, ids: Sequence[int], empty: Sequence[int], text: bytes, rough: Sequence[Span]
    ) -> list[Span]:
        """Byte ranges that cover the text, skipping a leading space added by the tokenizer.

        empty: 1 for ids without text. Where bytes and text differ (normalizer, unknown character), the
        `rough` range is used.
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
        """The end of the token if it matches at `at`; ▁ matches a space or ▁."""
        piece = self._bytes_of(id)
        if text.startswith(piece, at):
            return at + len(piece)
        token = self._token_of(id) or ""
        if not self._space_mark or SPACE_MARK not in token:
            return None
        for form in [token, token[1:]] if token.startswith(SPACE_MARK) else [token]:
            end = at
            for part in re.split(f"({SPACE_MARK})", form):
                literal = part.encode()
                if part == SPACE_MARK and text.startswith(b" ", end):
                    literal = b" "
                if not text.startswith(literal, end):
                    break
                end += len(literal)
            else:
                return end
        return None


def byte_spans(text: str, offsets: Sequence[Span]) -> list[Span]:
    """Convert character ranges to byte ranges; the library's may end behind the text."""
    starts = [0]
    for character in text:
        starts.append(starts[-1] + len(character.encode()))
    last = len(text)
    return [(starts[min(begin, last)], starts[min(end, last)]) for begin, end in offsets]
