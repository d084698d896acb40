"""The transcript with a token cursor, two views, tints and find."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.message import Message

from ropechat.tui.commands import registry as keys
from ropechat.tui.render import cursor as moves
from ropechat.tui.render.block_layout import COPY_CODE
from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.cursor import TokenPlace
from ropechat.tui.render.find import Finder
from ropechat.tui.render.tint import NAMES
from ropechat.tui.render.transcript_layout import TextPosition
from ropechat.tui.widgets.transcript import GUTTER, Transcript
from ropechat.util.markdown.spans import Mark, StyledSpan
from ropechat.util.text import visible
from ropechat.util.width import cell_width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual import events
    from textual.binding import BindingType

    from ropechat.tui.render.blocks import Block

VERSIONS = re.compile(r"‹ \d+/\d+ ›")
GHOST = 12  # characters of a token that its row does not show


class TokenTranscript(Transcript):
    """A transcript with a token cursor, which keys move and a click sets."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.bindings(keys.READING))
    FOCUS_ON_CLICK = False  # a click outside the tokens keeps the focus in the composer

    @dataclass
    class Moved(Message):
        """The cursor moved to another token; clicked: by the mouse."""

        clicked: bool = False

    @dataclass
    class Choose(Message):
        """Select another alternative of the token under the cursor."""

        step: int

    @dataclass
    class Version(Message):
        """The ‹ or › of a heading was clicked. node: the question or answer; step: -1 or 1."""

        node: str
        step: int

    @dataclass
    class Line(Message):
        """A line of a notice or a question was clicked."""

        block: Block
        text: str

    @dataclass
    class Thought(Message):
        """The line above a thought was clicked. x: the cell."""

        block: AnswerBlock
        x: int

    @dataclass
    class Foot(Message):
        """The line below an answer was clicked. node: the answer."""

        node: str

    @dataclass
    class Code(Message):
        """The row above code was clicked. node: the answer; number: of the code in it, from 1."""

        node: str
        number: int

    class Found(Message):
        """The current match changed."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor: TokenPlace | None = None
        self.choosing = False  # up and down select alternatives
        self.finder = Finder(self.page)
        self._filling = False
        self._awaited: TokenPlace | None = None  # the token that the cursor waits for
        self._held = False  # whether the cursor must stay visible

    @property
    def awaits(self) -> bool:
        """Whether the cursor waits for a token that was not generated yet."""
        return self._awaited is not None

    def cursor_token(self) -> tuple[str, int] | None:
        """(node of the answer, index of the token) under the cursor."""
        return None if self.cursor is None else (self.cursor.block.node, self.cursor.index)

    # --- content ---

    def add(self, block: Block, at: int | None = None) -> None:
        super().add(block, at)
        self.finder.look(block)

    def feed(self, block: AnswerBlock) -> None:
        """Draw the new tokens of an answer."""
        super().feed(block)
        self.finder.look(block)
        if self._awaited is not None:
            self._arrive(self._awaited)

    def refold(self, block: AnswerBlock, unfolded: bool) -> None:
        """Show the whole thought of an answer, or no longer; a cursor in a folded thought goes."""
        super().refold(block, unfolded)
        self.finder.look(block)
        hides = not unfolded and self.cursor is not None and self.cursor.block is block
        if hides and self.cursor is not None and self.cursor.index < block.first:
            self.move_to(None)

    def remove_from(self, index: int) -> list[Block]:
        """Remove a block and all after it, and return them."""
        for block in self.blocks[index:]:
            self._gone(block)
        return super().remove_from(index)

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Change many blocks, with one layout at the end; only new rows are drawn."""
        blocks, tops, width = self.blocks[:], self.page.tops[:], self.page.width
        self._filling = True
        try:
            yield
        finally:
            self._filling = False
            self.page.settle_end(self.scrollable_content_region.height)
            same = width == self.page.width and not self.finder.active
            rows, first = self.page.changes(blocks, tops) if same else ([], 0)
            for row in rows:
                self._redraw_rows(row, row + 1)
            self._grown(first)

    def _grown(self, first_row: int) -> None:
        if not self._filling:
            super()._grown(first_row)

    def _gone(self, block: Block) -> None:
        self.finder.forget(block)
        if self._awaited is not None and self._awaited.block is block:
            self._awaited = None
            self.post_message(self.Moved())
        if self.cursor is not None and self.cursor.block is block:
            self.move_to(None)

    # --- views ---

    def toggle_view(self) -> str:
        """Switch between tokens and prose; the token under the cursor, or at the top, stays in its row."""
        place, below = self._anchor()
        self.page.view = "prose" if self.page.view == "tokens" else "tokens"
        self._reshape(place, below)
        return self.page.view

    def _anchor(self) -> tuple[TextPosition | None, int]:
        top, height = round(self.scroll_y), self.scrollable_content_region.height
        if self.cursor is not None:
            place = moves.place_of(self.page, self.cursor)
            below = self.page.y_of(place) - top
            if 0 <= below < height:
                return place, below
        for y in range(top, min(top + height, self.page.rows)):
            spot = self.page.spot(y)
            if spot is not None and spot.row is not None:
                return self.page.place(y), y - top
        return self.page.place(top), 0

    def next_tint(self) -> str:
        """Tint by the next figure."""
        return self.set_tint(NAMES[(NAMES.index(self.tint) + 1) % len(NAMES)])

    def set_tint(self, name: str) -> str:
        """Tint by a figure; "off" for none."""
        self.tint = name
        self.redraw()
        return name

    # --- cursor ---

    def move_to(self, token: TokenPlace | None, clicked: bool = False) -> None:
        """Move the cursor to a token and scroll there; None removes it."""
        if token == self.cursor:
            return
        before, self.cursor = self.cursor, token
        if token is not None and not token.block.unfolded and token.index < token.block.behind_thought:
            self.refold(token.block, True)
        self._awaited, self._held = None, token is not None
        if token is not None:
            self.bring_into_sight(token)
        for changed in (before, token):
            if changed is not None:
                self._redraw_token(changed)
        self.post_message(self.Moved(clicked))

    def _redraw_token(self, token: TokenPlace) -> None:
        """Draw the rows of a token again; in prose all rows of its block."""
        if token.block not in self.blocks or not token.block.laid_out:
            return
        first, last = 0, token.block.body - 1
        if self.page.view == "tokens":
            start, end = token.span
            first = min(last, token.block.rows.row_at(start))
            last = min(last, token.block.rows.row_at(max(start, end - 1)))
        top = self.page.tops[self.blocks.index(token.block)] + token.block.head
        self._redraw_rows(top + first, top + last + 1)

    def await_token(self, block: AnswerBlock, index: int) -> None:
        """Put the cursor on a token of an answer as soon as it is there."""
        self._awaited = TokenPlace(block, index)
        self._arrive(self._awaited)

    def _arrive(self, token: TokenPlace) -> None:
        if len(token.block.steps) > token.index:
            self.move_to(token)

    def bring_into_sight(self, token: TokenPlace) -> None:
        """Scroll to a token if it is not visible."""
        self._show(moves.place_of(self.page, token))

    def go_to(self, block: Block) -> None:
        """Scroll to the beginning of a block if it is not visible."""
        self._show(TextPosition(self.blocks.index(block), 0))

    def _show(self, place: TextPosition) -> None:
        y, top = self.page.y_of(place), round(self.scroll_y)
        height = self.scrollable_content_region.height
        self._extend(max(self.page.rows, self.virtual_size.height))
        if not top <= y < top + height - (1 if not self.follow else 0):
            self.leave_end()
            self.page.settle(max(0, y - height // 2), height)
            self._extend(self.page.rows)
            self._scroll(max(0, self.page.y_of(place) - height // 2))
            self.follow = round(self.scroll_y) >= self.max_scroll_y

    # --- the cursor stays in sight ---

    def to_end(self) -> None:
        """Scroll to the newest row and follow, even away from the cursor."""
        self._held = False
        super().to_end()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolling to the end follows, as `to_end` does."""
        followed = self.follow
        super().watch_scroll_y(old_value, new_value)
        self._held = self._held and (followed or not self.follow)

    def _end(self) -> int:
        """Stop following before the cursor would scroll out of view."""
        end = super()._end()
        if self._held and self.cursor is not None:
            row, top = self.page.y_of(moves.place_of(self.page, self.cursor)), round(self.scroll_y)
            if top <= row < end:
                self.leave_end()
                self._scroll(max(top, row - 1))
        return end

    def _start(self) -> TokenPlace | None:
        return moves.in_sight(self.page, round(self.scroll_y), self.scrollable_content_region.height)

    def action_token(self, step: int) -> None:
        """Move the cursor by one token."""
        self.move_to(moves.by_token(self.page, self.cursor, step) if self.cursor else self._start())

    def action_word(self, step: int) -> None:
        """Move the cursor by one word."""
        self.move_to(moves.by_word(self.page, self.cursor, step) if self.cursor else self._start())

    def action_row(self, step: int) -> None:
        """With a cursor: the token above or below, or another alternative. Without: scroll."""
        if self.choosing:
            self.post_message(self.Choose(step))
        elif self.cursor is not None:
            self.move_to(moves.by_row(self.page, self.cursor, step))
        elif step > 0:
            self.scroll_down(animate=False)
        else:
            self.scroll_up(animate=False)

    def action_next(self, step: int) -> None:
        """Go to the next match, or without a search to the next surprising token."""
        if self.finder.active:
            self.find_next(step)
        elif token := self.cursor or self._start():
            found = moves.by_surprise(self.page, token, step, self.tint)
            if found is None and self.cursor is None and step > 0:
                found = moves.by_surprise(self.page, token, -1, self.tint)
            self.move_to(found or token)

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked token; the mark of new rows scrolls to them."""
        if self.text_selection is not None:
            return
        if self._news() and event.y == self.scrollable_content_region.height - 1:
            self.to_end()
            return
        y = event.y + round(self.scroll_y)
        if token := moves.at_cell(self.page, event.x - GUTTER, y):
            if token == self.cursor:
                self.post_message(self.Moved(clicked=True))
            self.move_to(token, clicked=True)
        elif (spot := self.page.spot(y)) is not None:
            block = self.blocks[spot.block]
            if block.foot and y == self._foot_row(block):
                self.post_message(self.Foot(block.node))
            else:
                self._click_beside(block, spot.row, event.x - GUTTER)

    def _click_beside(self, block: Block, row: int | None, x: int) -> None:
        """A click on a heading, or on a line without tokens."""
        if isinstance(block, AnswerBlock) and row == 0 and block.thought:
            self.post_message(self.Thought(block, x))
        elif row is not None and isinstance(block, AnswerBlock):
            if x >= 0 and self._row_text(block, row).rstrip().endswith(COPY_CODE):
                before = (self._row_text(block, one).rstrip() for one in range(row + 1))
                self.post_message(self.Code(block.node, sum(one.endswith(COPY_CODE) for one in before)))
        elif row is not None:
            if row < block.body:
                self.post_message(self.Line(block, self._row_text(block, row)))
        elif block.head and (place := VERSIONS.search(block.title)):
            start, end = (cell_width(block.title[:at]) for at in place.span())
            if start <= x < end:
                self.post_message(self.Version(block.node, -1 if x < (start + end) // 2 else 1))

    @staticmethod
    def _row_text(block: Block, row: int) -> str:
        return "".join(piece.text for piece in block.rows.pieces(row)) if row < block.body else ""

    # --- find ---

    def find(self, wanted: str, node: str = "") -> None:
        """Mark all matches of a text and go to the nearest one above; "" ends the search.

        node: the message in which to begin instead.
        """
        self.finder.want(wanted)
        self.redraw()
        begun = self.finder.begin_at(node) if node else False
        if self.finder.count:
            self.find_next(1 if begun else -1)

    def find_next(self, step: int) -> None:
        """Go to the next match."""
        height = self.scrollable_content_region.height
        start = self.page.place(min(round(self.scroll_y) + height - 1, self.page.rows - 1))
        if place := self.finder.go(step, start or TextPosition(0, 0)):
            self._show(place)
            self.redraw()
            self.post_message(self.Found())

    # --- drawing ---

    def marks(self, block: Block, row: int) -> list[Mark]:
        """Matches, the current one, and the cursor."""
        found = [Mark(start, end, "found") for start, end in self._spans_in(block, row)]
        if self.finder.current and self.finder.current[0] is block:
            found += [Mark(m.start, m.end, "here") for m in found if m.start == self.finder.current[1]]
        if self.cursor is not None and self.cursor.block is block:
            found.append(Mark(*self.cursor.span, "cursor"))
        return found

    def _spans_in(self, block: Block, row: int) -> list[tuple[int, int]]:
        spans = self.finder.spans(block)
        if not spans:
            return []
        start, end = block.span(row)
        return [span for span in spans if span[0] < end and span[1] > start]

    def ghosts(self, block: Block, row: int) -> list[StyledSpan]:
        """The token under the cursor if the rows do not show it, such as a line break."""
        if self.cursor is None or self.cursor.block is not block:
            return []
        start, end = self.cursor.span
        if start < end and self._drawn(block, start, end):
            return []
        if row != min(block.rows.row_at(max(0, start)), block.body - 1):
            return []
        step = self.cursor.block.steps[self.cursor.index]
        return [StyledSpan(visible(step.bytes)[:GHOST] or "∅", "cursor")]

    def _drawn(self, block: Block, start: int, end: int) -> bool:
        first = block.rows.row_at(start)
        for row in range(first, min(first + 3, block.body)):
            for text, _, at in block.rows.pieces(row):
                if at >= 0 and at < end and at + len(text) > start and text:
                    return True
        return False
