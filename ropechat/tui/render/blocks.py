"""The transcript as blocks: texts with the place of each token, laid out when they come into sight."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from ropechat.conversation import Node, Role
from ropechat.tui.render.markdown import MarkdownText
from ropechat.tui.render.spans import Mark
from ropechat.tui.render.tint import BY_NAME
from ropechat.tui.render.wrap import TAB, WrappedText
from ropechat.util.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Literal

    from ropechat.sampling import Sampling
    from ropechat.trace import Step
    from ropechat.tui.render.spans import Rows

    Kind = Literal["user", "answer", "notice", "error"]
    View = Literal["tokens", "prose"]


def to_display(text: str) -> str:
    """Text as the screen shows it: cleaned, with tabs as spaces."""
    return clean(text).replace("\t", TAB)


def count_common(new: Sequence[Step], old: Sequence[Step]) -> int:
    """The number of steps, compared by identity, that two answers begin with."""
    pairs = enumerate(zip(new, old, strict=False))
    return next((count for count, (one, other) in pairs if one is not other), min(len(new), len(old)))


@dataclass(eq=False)
class Block:
    """A stretch of the transcript: an optional heading, text, one blank row.

    `node` is the id of its node, "" for a notice. Rows are laid out on demand; `forget` drops them.
    """

    kind: Kind
    title: str = ""
    note: str = ""  # right end of the heading
    live: bool = False  # more will come: a caret is drawn at the end
    node: str = ""
    length: int = 0  # characters
    _parts: list[str] = field(default_factory=list)
    _rows: Rows | None = None
    _shape: tuple[View, int] = ("tokens", 0)
    _height: int = 0  # of the body when it was last laid out in this shape

    @property
    def text(self) -> str:
        """The whole text as shown; positions count its characters."""
        if len(self._parts) > 1:
            self._parts[:] = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def head(self) -> int:
        """Rows of the heading."""
        return 1 if self.title else 0

    @property
    def laid_out(self) -> bool:
        """Whether its rows are laid out."""
        return self._rows is not None

    def shape(self, view: View, width: int) -> None:
        """Set view and width; rows of another shape are dropped."""
        shape = (self._view(view), width)
        if shape != self._shape:
            self._shape, self._rows = shape, None
            self._height = self._guess()

    def _view(self, view: View) -> View:
        return "tokens"

    def _guess(self) -> int:
        """An estimate of the number of rows, without a layout."""
        width = max(1, self._shape[1])
        return sum(1 + len(line) // width for line in self.text.split("\n"))

    @property
    def rows(self) -> Rows:
        """The rows; lays the text out if it is not."""
        if self._rows is None:
            view, width = self._shape
            self._rows = MarkdownText(self.text, width) if view == "prose" else WrappedText(self.text, width)
            if not self.live:
                self._rows.close()
        return self._rows

    def forget(self) -> None:
        """Drop the rows, but keep their number."""
        self._height, self._rows = self.body, None

    @property
    def body(self) -> int:
        """The number of rows of text, estimated before the layout; a finished one ends without empty rows."""
        if self._rows is None:
            return self._height
        count = self._rows.count
        while not self.live and count > 1 and not any(piece.text for piece in self._rows.pieces(count - 1)):
            count -= 1
        return count

    @property
    def height(self) -> int:
        """The number of rows with heading and the blank row after the block."""
        return self.head + self.body + 1

    def say(self, text: str) -> int:
        """Append text; returns the number of the first row that changed."""
        piece = to_display(text)
        self._parts.append(piece)
        self.length += len(piece)
        if self._rows is None:
            self._height = self._guess()
            return 0
        return self._rows.append(piece)

    def end(self) -> int:
        """Finish the block, which removes the caret; returns the number of the first row that changed."""
        caret, self.live = self.body - 1, False
        return caret if self._rows is None else min(caret, self._rows.close())

    def marks(self, row: int, tint: str) -> list[Mark]:
        """The marks to lay over a row."""
        return []

    def alike(self, other: Block) -> int:
        """The number of first rows that look as in another block, apart from a reader's marks."""
        if self._shape != other._shape:
            return 0
        last = 1 if self.live != other.live else 0  # the caret
        if self._rows is None or other._rows is None:
            return self.body - last if self.text == other.text and self.body == other.body else 0
        count = max(0, min(self.body, other.body) - last)
        pairs = ((self._rows.pieces(row), other._rows.pieces(row)) for row in range(count))
        return next((row for row, (one, two) in enumerate(pairs) if one != two), count)

    def span(self, row: int) -> tuple[int, int]:
        """The part of the source that a row shows."""
        places = [(piece.at, piece.at + len(piece.text)) for piece in self.rows.pieces(row) if piece.at >= 0]
        if not places:
            return self.length, self.length
        return min(place[0] for place in places), max(place[1] for place in places)


@dataclass(eq=False)
class AnswerBlock(Block):
    """An answer: its node, and the end of the text of each token that was drawn so far.

    The answer of a model without a chat template continues the user's text, which comes first, as the `lead`.
    """

    answer: Node = field(default_factory=lambda: Node("", None, Role.ASSISTANT))
    lead: int = 0  # characters of the user
    ends: list[int] = field(default_factory=list)  # one for each token drawn so far
    prompt: frozenset[int] | None = None  # ids of the prompt, where they are known
    _levels: dict[str, bytearray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """The node's id names the block."""
        self.node = self.answer.id

    @property
    def steps(self) -> list[Step]:
        """The tokens drawn so far; the node may have more."""
        steps = self.answer.steps
        return steps if len(steps) == len(self.ends) else steps[: len(self.ends)]

    @property
    def sampling(self) -> Sampling | None:
        """The settings that the tokens were drawn with."""
        return self.answer.sampling

    def _view(self, view: View) -> View:
        return view

    def grow(self) -> int:
        """Append the tokens that the node has and the block has not; returns the first changed row."""
        added, before = self.answer.steps[len(self.ends) :], self.length
        text = "".join(step.text for step in added)
        row = self.say(text)
        plain = self.length - before == len(text)  # `to_display` changed no length
        lengths = (len(step.text if plain else to_display(step.text)) for step in added)
        self.ends += (before + end for end in accumulate(lengths))
        return row

    def begin(self, text: str) -> None:
        """Add the user's text that the tokens continue."""
        self.say(text)
        self.lead = self.length

    def begin_like(self, other: AnswerBlock | None) -> int:
        """Copy the drawn tokens of another answer that this one begins with, too; returns how many.

        None of them is cleaned, rated or wrapped again. Call it while the block has nothing but the lead.
        """
        count = count_common(self.answer.steps, other.steps) if other is not None else 0
        if other is None or not count or self.text != other.text[: other.lead]:
            return 0
        self.ends = other.ends[:count]
        self.length = self.ends[-1]
        self._parts = [other.text[: self.length]]
        if self._rating == other._rating:
            self._levels = {tint: levels[:count] for tint, levels in other._levels.items()}
        self._shape = other._shape
        self._rows = other._rows.beginning(self.length) if isinstance(other._rows, WrappedText) else None
        self._height = self._guess()
        return count

    @property
    def _rating(self) -> Sampling | None:
        """The settings that the tint of a token depends on, besides its step."""
        return self.sampling and replace(self.sampling, seed=None, max_tokens=1)

    def alike(self, other: Block) -> int:
        """As `Block.alike`; the tokens of these rows must be the same, too."""
        if not isinstance(other, AnswerBlock) or self.lead != other.lead or self._rating != other._rating:
            return 0
        count = count_common(self.steps, other.steps)
        rows = super().alike(other) if count else 0
        if not rows or count == max(len(self.steps), len(other.steps)):
            return rows
        return min(rows, self.rows.row_at(self.ends[count - 1]))

    def token_at(self, offset: int) -> int | None:
        """The token that wrote the character at `offset`."""
        index = bisect_right(self.ends, offset)
        return index if offset >= self.lead and index < len(self.ends) else None

    def token_span(self, index: int) -> tuple[int, int]:
        """The characters that a token wrote; empty for one without text."""
        return self.ends[index - 1] if index else self.lead, self.ends[index]

    def levels(self, tint: str) -> Sequence[int]:
        """The tint level of each token that was drawn."""
        known = self._levels.setdefault(tint, bytearray())
        figure = BY_NAME[tint]
        known.extend(figure.level(step, self.sampling) for step in self.steps[len(known) :])
        return known

    def marks(self, row: int, tint: str) -> list[Mark]:
        """Marks of the user's text and, in the tokens view, of the tint, without the spaces around a word."""
        start, stop = self.span(row)
        found = [Mark(start, min(stop, self.lead), "asked")] if start < self.lead else []
        if tint not in BY_NAME or self._shape[0] != "tokens":
            return found
        levels, text = self.levels(tint), self.rows.pieces(row)[0].text
        base = start
        start = max(start, self.lead)
        token = bisect_right(self.ends, start)
        while start < stop and token < len(self.ends):
            end = min(self.ends[token], stop)
            if level := levels[token]:
                piece = text[start - base : end - base]
                first = end - len(piece.lstrip(" "))
                last = start + len(piece.rstrip(" "))
                if first < last:
                    found.append(Mark(first, last, f"tint{level}"))
            start, token = max(start, end), token + 1
        return sorted(found, key=lambda mark: mark.look)  # of two on one character the stronger wins

    def surprising(self, index: int, step: int, tint: str) -> int | None:
        """The next token in a direction whose tint has level 2 or more."""
        levels = self.levels(tint if tint in BY_NAME else "surprisal")
        index += step
        while 0 <= index < len(levels):
            if levels[index] >= 2:
                return index
            index += step
        return None


def index_by_first_step(blocks: Iterable[Block]) -> dict[int, AnswerBlock]:
    """Answer blocks by the identity of their first step."""
    return {id(one.steps[0]): one for one in blocks if isinstance(one, AnswerBlock) and one.steps}
