"""Which bytes of a text each of its tokens stands for."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ropechat.tokenizer.pieces import SPACE_MARK

Span = tuple[int, int]


class EncodedToken(NamedTuple):
    """A token of an encoded text: its id, the byte range it stands for, its role (`TokenScore.role`)."""

    id: int
    span: Span
    role: str


class SpanAligner:
    """Walks a text with its tokens. bytes_of and token_of: of an id. space_mark: ▁ is a space."""

    def __init__(
        self, bytes_of: Callable[[int], bytes], token_of: Callable[[int], str | None], *, space_mark: bool
    ) -> None:
        self._bytes_of = bytes_of
        self._token_of = token_of
        self._space_mark = space_mark

    def spans(
        self, ids: Sequence[int], empty: Sequence[int], text: bytes, rough: Sequence[Span]
    ) -> list[Span]:
        """Byte ranges that cover the text, stepping over a leading space that the tokenizer invented.

        empty: 1 for ids that stand for no text. Where bytes and text differ (a normalizer, an unknown
        character) the `rough` range is taken.
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
    """Character ranges to byte ranges."""
    starts = [0]
    for character in text:
        starts.append(starts[-1] + len(character.encode()))
    return [(starts[begin], starts[end]) for begin, end in offsets]
