"""The transcript as blocks: what is said, wrapped, with each token's place in it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ropechat.text import clean
from ropechat.tui.render.flow import TAB, Flow, Row, graphemes
from ropechat.tui.session import bits
from ropechat.tui.theme import level

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from ropechat.trace import Step

    Kind = Literal["user", "answer", "notice", "error"]


ASKED = -1  # in place of a tint level: text of the user


def shown(text: str) -> str:
    """Text as it stands on the screen: cleaned, tabs as blanks."""
    return clean(text).replace("\t", TAB)


@dataclass
class Block:
    """A stretch of the transcript: an optional heading, wrapped text, one blank row."""

    kind: Kind
    title: str = ""
    note: str = ""  # right end of the heading
    node: str = ""  # of the chat's tree
    live: bool = False  # more will come: a caret is drawn at the end
    flow: Flow = field(default_factory=Flow)

    @property
    def head(self) -> int:
        """Rows of the heading."""
        return 1 if self.title else 0

    @property
    def body(self) -> int:
        """Rows of text; once nothing more comes, empty ones at the end are left out."""
        rows = self.flow.rows
        count = len(rows)
        while not self.live and count > 1 and not self.flow.row_text(rows[count - 1]).strip(" "):
            count -= 1
        return count

    @property
    def height(self) -> int:
        """Rows in all."""
        return self.head + self.body + 1

    def say(self, text: str) -> None:
        """Append plain text."""
        self.flow.append(shown(text))

    def spans(self, row: Row) -> list[tuple[str, int]]:
        """The row as (text, tint level) pieces."""
        return [(self.flow.row_text(row).rstrip(" "), 0)]


@dataclass
class AnswerBlock(Block):
    """Tokens of the model; each keeps its record and the end of its text.

    A model that completes text continues the user's own words: they stand first, as the `lead`.
    """

    lead: int = 0  # characters of the user
    steps: list[Step] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    levels: bytearray = field(default_factory=bytearray)

    def add(self, steps: Iterable[Step]) -> int:
        """Append tokens; returns the number of the first changed row of the flow."""
        pieces: list[str] = []
        end = self.flow.length
        for step in steps:
            piece = shown(step.text)
            end += len(piece)
            pieces.append(piece)
            self.steps.append(step)
            self.ends.append(end)
            self.levels.append(level(bits(step)))
        return self.flow.append("".join(pieces))

    def begin(self, text: str) -> None:
        """Put in the user's words that the tokens continue."""
        self.say(text)
        self.lead = self.flow.length

    def token_at(self, offset: int) -> int | None:
        """The token that wrote the character at `offset`."""
        index = bisect_right(self.ends, offset)
        return index if offset >= self.lead and index < len(self.ends) else None

    def spans(self, row: Row) -> list[tuple[str, int]]:
        """The row cut where the tint changes; a character made by several tokens takes the strongest tint."""
        text = self.flow.row_text(row).rstrip(" ")
        if not text:
            return [("", 0)]
        marks = self._marks(self.flow.offset(row), text)
        if not text.isascii():
            for start, end, _ in graphemes(text):
                if end - start > 1:
                    marks[start:end] = [max(marks[start:end])] * (end - start)
        pieces: list[tuple[str, int]] = []
        start = 0
        for index in range(1, len(text) + 1):
            if index == len(text) or marks[index] != marks[start]:
                pieces.append((text[start:index], marks[start]))
                start = index
        return pieces

    def _marks(self, base: int, text: str) -> list[int]:
        """The tint of each character; the blanks around a word stay plain."""
        stop = base + len(text)
        start = min(max(base, self.lead), stop)
        marks = [ASKED] * (start - base) + [0] * (stop - start)
        token = bisect_right(self.ends, start)
        while start < stop and token < len(self.ends):
            end = min(self.ends[token], stop)
            if tint := self.levels[token]:
                piece = text[start - base : end - base]
                first = start - base + len(piece) - len(piece.lstrip(" "))
                last = start - base + len(piece.rstrip(" "))
                marks[first:last] = [tint] * (last - first)
            start, token = max(start, end), token + 1
        return marks
