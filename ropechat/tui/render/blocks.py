"""The transcript as blocks: texts with the place of each token, laid out when they come into sight."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from ropechat.conversation import MARK, Node, Role
from ropechat.tui.render.markdown import MarkdownText
from ropechat.tui.render.thought import DividedText
from ropechat.tui.render.tint import BY_NAME
from ropechat.tui.render.wrap import TAB, WrappedText
from ropechat.util.markdown.spans import Mark
from ropechat.util.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Literal

    from ropechat.sampling import Sampling
    from ropechat.trace import Step
    from ropechat.tui.render.thought import Fold
    from ropechat.util.markdown.spans import Rows

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
    """A stretch of the transcript: an optional heading, text, an optional last line, one blank row.

    `node` is the id of its node, "" for a notice. Rows are laid out on demand; `forget` drops them.
    """

    kind: Kind
    title: str = ""
    note: str = ""  # right end of the heading
    live: bool = False  # more will come: a caret is drawn at the end
    node: str = ""
    foot: str = ""  # the line below the text
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
            self._rows = self._lay(self.text)
            if not self.live:
                self._rows.close()
        return self._rows

    def _lay(self, text: str) -> Rows:
        view, width = self._shape
        return MarkdownText(text, width) if view == "prose" else WrappedText(text, width)

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
        """The number of rows with heading, last line, and the blank row after the block."""
        return self.head + self.body + bool(self.foot) + 1

    @property
    def hidden(self) -> int:
        """Characters at the beginning that are folded away."""
        return 0

    def say(self, text: str) -> int:
        """Append text; returns the number of the first row that changed."""
        return self._append(to_display(text))

    def _append(self, piece: str) -> int:
        self._parts.append(piece)
        self.length += len(piece)
        if self._rows is None:
            self._height = self._guess()
            return 0
        return self._rows.append(piece)

    def end(self) -> int:
        """Finish the block, which removes the caret; returns the number of the first row that changed."""
        caret, self.live = self.body - 1, False
        self._refold()
        return caret if self._rows is None else min(caret, self._rows.close())

    def _refold(self) -> None:
        """Take in that another part of the text may be folded away."""

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
    The thought of a model that reasons comes before its answer, in a text of its own (see `DividedText`); a
    marker is one character of it.
    """

    answer: Node = field(default_factory=lambda: Node("", None, Role.ASSISTANT))
    lead: int = 0  # characters of the user
    thought: int = 0  # characters of the thought and its markers
    begun: bool = False  # whether the text behind the thought has begun
    unfolded: bool = False  # whether the whole thought is shown
    line: str = ""  # what is said of the thought, above it
    _bare: bool = True  # whether the thought has no word yet
    ends: list[int] = field(default_factory=list)  # one for each token drawn so far
    prompt: tuple[int, ...] | None = None  # ids of the prompt, where they are known
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

    # --- the thought ---

    @property
    def thinking(self) -> bool:
        """Whether the thought is being written."""
        return self.live and bool(self.thought) and not self.begun

    @property
    def fold(self) -> Fold:
        """What is shown of the thought."""
        return "whole" if self.unfolded else "tail" if self.thinking else "folded"

    @property
    def hidden(self) -> int:
        """Characters of a thought that is not shown as a whole."""
        return 0 if self.unfolded else self.thought

    @property
    def behind_thought(self) -> int:
        """The first token that says something after the thought; the number of all if there is none."""
        return bisect_right(self.ends, self.thought) if self.thought else 0

    @property
    def first(self) -> int:
        """The first token that the keys of the cursor reach."""
        return 0 if self.unfolded else self.behind_thought

    def set_fold(self, unfolded: bool) -> None:
        """Show the whole thought, or no longer."""
        self.unfolded = unfolded
        self._refold()

    def _refold(self) -> None:
        if isinstance(self._rows, DividedText):
            self._rows.fold = self.fold
        elif self._rows is None:
            self._height = self._guess()

    def set_line(self, line: str) -> bool:
        """Say something else of the thought; returns whether it differs."""
        differs, self.line = line != self.line, line
        if isinstance(self._rows, DividedText):
            self._rows.line = line
        return differs

    def on_rail(self, row: int) -> bool:
        """Whether a row is of the thought."""
        return isinstance(self._rows, DividedText) and 1 <= row <= self._rows.shown

    def think(self, text: str, *, ends: bool = False) -> None:
        """Show a thought without tokens, before any text is said. ends: an answer follows."""
        self._think(to_display(text.strip("\n")))
        self.begun = ends
        self._refold()

    def _think(self, piece: str) -> int:
        """Append to the thought; returns the first changed row."""
        first = not self.thought
        self._parts.append(piece)
        self.length += len(piece)
        self.thought = self.length
        if not first and isinstance(self._rows, DividedText):
            return self._rows.think(piece)
        self._rows = None
        self._height = self._guess()
        return 0

    def _thought_pieces(self, steps: Sequence[Step]) -> Iterator[str]:
        """The text of each token of the thought, without the line breaks before its first word."""
        for step in steps:
            text, marks = to_display(step.reasoning), step.channel == "marker"
            text = text.strip("\n") if marks else text.lstrip("\n") if self._bare else text
            self._bare = self._bare and not text
            yield text + (MARK if marks else "")

    def _lay(self, text: str) -> Rows:
        if not self.thought:
            return super()._lay(text)
        said = DividedText(text[: self.thought], self._shape[1], self.fold, self.line, super()._lay)
        if self.begun:
            said.append(text[self.thought :])
        return said

    def _guess(self) -> int:
        if not self.thought:
            return super()._guess()
        width, shown = max(1, self._shape[1]), self.text[self.hidden :]
        return 1 + sum(1 + len(line) // width for line in shown.split("\n"))

    def end(self) -> int:
        """As `Block.end`; a thought that was written is folded."""
        fold, row = self.fold, super().end()
        return row if self.fold == fold else 0

    # --- tokens ---

    def grow(self) -> int:
        """Append the tokens that the node has and the block has not; returns the first changed row."""
        added = self.answer.steps[len(self.ends) :]
        if not added or self.begun or (added[0].channel == "answer" and not self.thought):
            return self._grow(added)
        fold = self.fold
        count = next((n for n, step in enumerate(added) if step.text or step.channel == "answer"), len(added))
        pieces = list(self._thought_pieces(added[: count + 1]))  # a marker's token may end in the answer
        self.ends += (self.length + end for end in accumulate(map(len, pieces[:count])))
        row = self._think("".join(pieces))
        if count < len(added):
            self.begun = True
            self._refold()
            row = min(row, self._grow(added[count:]))
        return 0 if fold == "tail" else row

    def _grow(self, added: Sequence[Step]) -> int:
        """Append tokens of the answer."""
        before = self.length
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
        self.thought, self.unfolded = min(other.thought, self.length), other.unfolded
        self._bare = other._bare
        self.begun = other.begun and self.answer.steps[count - 1].channel == "answer"
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
        if (self.thought, self.fold) != (other.thought, other.fold):
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
        if start < self.thought:
            found += self._thought_marks(start, stop)
        if tint not in BY_NAME or self._shape[0] != "tokens":
            return found
        levels, text = self.levels(tint), self.rows.pieces(row)[0].text
        base = start
        start = max(start, self.lead)
        token = bisect_right(self.ends, start)
        while start < stop and token < len(self.ends):
            end = min(self.ends[token], stop)
            if level := levels[token]:
                level = (level + 1) // 2 if end <= self.hidden else level  # half a tint while it is written
                piece = text[start - base : end - base]
                first = end - len(piece.lstrip(" "))
                last = start + len(piece.rstrip(" "))
                if first < last:
                    found.append(Mark(first, last, f"tint{level}"))
            start, token = max(start, end), token + 1
        return sorted(found, key=lambda mark: mark.look)  # of two on one character the stronger wins

    def _thought_marks(self, start: int, stop: int) -> list[Mark]:
        """The markers among the characters of a row."""
        token, found = bisect_right(self.ends, start), list[Mark]()
        while token < len(self.ends) and (at := self.token_span(token))[0] < min(stop, self.thought):
            if self.answer.steps[token].channel == "marker":
                found.append(Mark(*at, "marker"))
            token += 1
        return found

    def surprising(self, index: int, step: int, tint: str) -> int | None:
        """The next token in a direction whose tint has level 2 or more."""
        levels = self.levels(tint if tint in BY_NAME else "surprisal")
        index += step
        while self.first <= index < len(levels):
            if levels[index] >= 2:
                return index
            index += step
        return None


def index_by_first_step(blocks: Iterable[Block]) -> dict[int, AnswerBlock]:
    """Answer blocks by the identity of their first step."""
    return {id(one.steps[0]): one for one in blocks if isinstance(one, AnswerBlock) and one.steps}
