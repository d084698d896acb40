"""Colours of code, line by line: a new line makes the lexer read only the last lines again."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Error, Generic, Keyword, Name, Number, Operator, String
from pygments.util import ClassNotFound

from ropechat.util.markdown.spans import StyledSpan, append_span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

REREAD_LINES = 60  # the most lines that are lexed again
MAX_COLOURED = 400  # characters of a line; code with a longer one is not coloured

_LOOKS = (
    (Comment, "comment"),
    (String, "string"),
    (Number, "number"),
    (Keyword, "keyword"),
    (Name.Function, "name"),
    (Name.Class, "name"),
    (Name.Tag, "keyword"),
    (Name.Decorator, "name"),
    (Operator.Word, "keyword"),
    (Generic.Inserted, "string"),
    (Generic.Deleted, "error"),
    (Generic.Heading, "keyword"),
    (Generic.Subheading, "keyword"),
    (Error, ""),
)


@lru_cache(maxsize=32)
def _lexer(language: str) -> Any:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False) if language else None
    except ClassNotFound:
        return None


@lru_cache(maxsize=512)
def _look(kind: Any) -> str:
    return next((f"block {look}" if look else "block" for base, look in _LOOKS if kind in base), "block")


class Highlighter:
    """Lines of code with colours; a line's colours may change while the lines after it come."""

    def __init__(self, info: str) -> None:
        words = info.replace("{", " ").replace(",", " ").split()
        self._lexer = _lexer(words[0].lower()[:40]) if words else None
        self._lines: list[str] = []
        self._places: list[int] = []
        self._coloured: list[list[StyledSpan]] = []
        self._safe = 0  # the line from which the lexer reads

    @property
    def count(self) -> int:
        """The number of lines."""
        return len(self._lines)

    def line(self, number: int) -> list[StyledSpan]:
        """A line with its colours."""
        return self._coloured[number]

    def add(self, text: str, at: int) -> None:
        """Add a line; `read` colours it."""
        self._lines.append(text)
        self._places.append(at)
        if len(text) > MAX_COLOURED:  # a lexer's time may grow quadratically
            self._lexer = None

    def read(self) -> int:
        """Colour the lines that were added; returns the first whose colours changed."""
        new = len(self._coloured)
        if new == self.count:
            return new
        before = self._coloured[self._safe :]
        for text, at in zip(self._lines[new:], self._places[new:], strict=True):
            self._coloured.append([StyledSpan(text, "block", at)])
        if self._lexer is None:
            return new
        begin_clean = list(self._read(self._lexer, self._safe))
        changed = next((n for n, old in enumerate(before, self._safe) if old != self._coloured[n]), new)
        if self.count - self._safe > REREAD_LINES:
            clean = [number for number in begin_clean if number <= self.count - REREAD_LINES // 2]
            self._safe = clean[-1] if clean else self.count
        return changed

    def _read(self, lexer: Any, first: int) -> Iterator[int]:
        """Colour the lines from `first` on; yields those that begin outside of strings and comments."""
        number, column = first, 0
        pieces: list[StyledSpan] = []
        inside = False
        for kind, value in lexer.get_tokens("".join(f"{line}\n" for line in self._lines[first:])):
            parts = value.split("\n")
            for index, part in enumerate(parts):
                if index:
                    self._coloured[number] = pieces
                    number, column, pieces = number + 1, 0, []
                    inside = kind in String or kind in Comment.Multiline
                    if not inside and number < self.count:
                        yield number
                if part and number < self.count:
                    append_span(pieces, part, _look(kind), self._places[number] + column)
                    column += len(part)
        if number < self.count:
            self._coloured[number] = pieces
