"""The conversation: a scroll view that lays out and draws only visible rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from textual.geometry import Region, Size
from textual.strip import Strip

from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.transcript_layout import TranscriptLayout
from ropechat.tui.terminal.textual_compat import CompatScrollView
from ropechat.tui.widgets.bars import fit_title
from ropechat.tui.widgets.style_cache import StyleCache, stylize
from ropechat.util.markdown.spans import Mark, StyledSpan, cut_spans, overlay_marks

if TYPE_CHECKING:
    from rich.style import Style
    from textual import events
    from textual.selection import Selection

    from ropechat.tui.render.blocks import Block
    from ropechat.tui.render.transcript_layout import TextPosition

MEASURE = 100  # cells; longer lines are hard to read
GUTTER = 2
MARGIN = 1
CARET = "▍"
CACHED = 1000  # drawn rows
BETWEEN = 0.25  # seconds between two scrolls while rows come fast


class Transcript(CompatScrollView, can_focus=True):
    """Blocks of wrapped rows. Follows the newest row unless scrolled up."""

    FOCUS_ON_CLICK = False  # a click selects; the keyboard stays with the composer

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.page = TranscriptLayout()
        self.follow = True
        self.tint = "surprisal"
        self._scrolled = 0.0, 0  # time and number of rows at the last scroll to the end
        self._shown_rows = 0  # number of rows when last drawn
        self._news_from = 0  # number of rows when following ended
        self._steering = False  # this widget scrolls, not the user
        self._styles = StyleCache(self)
        self._strips: dict[int, Strip] = {}

    # --- content ---

    @property
    def blocks(self) -> list[Block]:
        """All blocks in order."""
        return self.page.blocks

    @property
    def measure(self) -> int:
        """The width of a row of text, without gutter and right margin."""
        return max(1, min(MEASURE, self.scrollable_content_region.width - GUTTER - MARGIN))

    def add(self, block: Block, at: int | None = None) -> None:
        """Insert a block, by default at the end."""
        self._fit()
        self.page.insert(block, at)
        self._grown(0)

    def feed(self, block: AnswerBlock) -> None:
        """Draw the new tokens of an answer; cheap for the last block."""
        index = len(self.blocks) - 1 if block is self.blocks[-1] else self.blocks.index(block)
        last = block.body - 1  # removes the caret
        row = min(block.grow(), max(0, last))
        self.page.measure(index)
        self._grown(self.page.tops[index] + block.head + row)

    def finish(self, block: Block) -> None:
        """Finish a block: draw its last rows and the note in its heading."""
        if block in self.blocks:
            index, row = self.blocks.index(block), max(0, block.end())
            self.page.measure(index)
            top = self.page.tops[index]
            self._redraw_rows(top, top + 1)
            self._grown(top + block.head + row)

    def tell(self, block: AnswerBlock, line: str, foot: str) -> None:
        """Show other words above a block's thought, and below the block."""
        if block.foot != foot:
            block.foot = foot
            if block in self.blocks:
                self.page.measure(self.blocks.index(block))
                self._grown(self._foot_row(block))
        if block.set_line(line) and block.thought and block in self.blocks:
            top = self.page.tops[self.blocks.index(block)] + block.head
            self._redraw_rows(top, top + 1)

    def _foot_row(self, block: Block) -> int:
        return self.page.tops[self.blocks.index(block)] + block.head + block.body

    def refold(self, block: AnswerBlock, unfolded: bool) -> None:
        """Show the whole thought of an answer, or no longer; its line stays in its row."""
        block.set_fold(unfolded)
        if block not in self.blocks:
            return
        self.page.measure(self.blocks.index(block))
        if block.live:
            self._grown(0)
            return
        y, height = round(self.scroll_y), self.scrollable_content_region.height
        self.follow = False
        self._grown(0)
        self._news_from = self.page.rows
        self._scroll(min(y, max(0, self.page.rows - height)))
        self.follow = round(self.scroll_y) >= self.page.rows - height

    def remove_from(self, index: int) -> list[Block]:
        """Remove a block and all after it, and return them; then follow the newest row."""
        gone = self.blocks[index:]
        self.page.remove_from(index)
        self.follow = True
        self._grown(0)
        return gone

    def to_end(self) -> None:
        """Scroll to the newest row and follow it."""
        self.follow = True
        self._grown(self.page.rows)

    def redraw(self) -> None:
        """Draw all rows again, with the same layout."""
        self._strips.clear()
        self.refresh()

    # --- layout ---

    def _grown(self, first_row: int) -> None:
        """Update the size for new or changed rows from `first_row` on."""
        if first_row:
            for y in [y for y in self._strips if y >= first_row]:
                del self._strips[y]
        else:
            self._strips.clear()
        height = self.scrollable_content_region.height
        before = self.page.rows
        if self.follow:
            self.page.settle_end(height)
            self._news_from = self.page.rows
            end = self._end()
        else:
            y = round(self.scroll_y)
            settled = self.page.settle(y, height)
            if settled != y:
                self._scroll(settled)
        if self.page.rows != before:
            self._strips.clear()
        if self.follow:
            self._extend(max(self.page.rows, end + height if end else 0))
            if end == round(self.scroll_y):
                self._refresh_from(first_row)
            self._scroll(end)
        else:
            self._extend(self.page.rows)
            self._refresh_from(first_row)

    def _end(self) -> int:
        """The scroll position for following, with room below while rows come fast.

        Each scroll repaints the whole screen, so it should happen only a few times a second.
        """
        height, rows = self.scrollable_content_region.height, self.page.rows
        y, now = round(self.scroll_y), time.monotonic()
        exact = max(0, rows - height)
        live = bool(self.blocks) and self.blocks[-1].live
        if live and exact <= y <= exact + height // 2:
            return y
        room = 0
        if live and exact > y:
            since, before = self._scrolled
            rate = (rows - before) / max(now - since, 0.05)
            room = min(height // 2, int(rate * BETWEEN)) if before <= rows else 0
        self._scrolled = now, rows
        return exact + room

    def _extend(self, rows: int) -> None:
        """Set Textual's virtual size without a layout of the screen."""
        size = Size(self.scrollable_content_region.width, rows)
        if size == self.virtual_size:
            return
        self._steering = True
        self.set_virtual_size(size)
        self._steering = False

    def _refresh_from(self, first_row: int) -> None:
        """Draw the rows in sight from `first_row` on, and the mark of new rows."""
        bottom, rows = round(self.scroll_y) + self.size.height, self.page.rows
        end, self._shown_rows = max(rows, self._shown_rows), rows  # rows below were blank and stay blank
        if first_row < bottom:
            self._refresh_rows(first_row, end)
        if not self.follow:
            self._refresh_rows(bottom - 1, bottom)

    def _redraw_rows(self, first: int, end: int) -> None:
        """Draw some rows again."""
        for y in range(first, end):
            self._strips.pop(y, None)
        self._refresh_rows(first, end)

    def _refresh_rows(self, first: int, end: int) -> None:
        """Draw the visible ones of some rows."""
        width, height = self.size
        top, bottom = (min(max(0, row - round(self.scroll_y)), height) for row in (first, end))
        if top < bottom:
            self.refresh(Region(0, top, width, bottom - top))

    def _scroll(self, y: float) -> None:
        self._steering = True
        self.scroll_to(y=y, animate=False, force=True)
        self._steering = False

    def _fit(self) -> None:
        if self.page.width != self.measure:
            self.page.reshape(self.page.view, self.measure)

    def on_resize(self, _: events.Resize) -> None:
        """Wrap for the new width; the top row, or the end, stays in place."""
        if self.page.width == self.measure:
            self._grown(0)
        else:
            self._reshape(self.page.place(round(self.scroll_y)), 0)

    def _reshape(self, place: TextPosition | None, below: int) -> None:
        """Lay out again; `place` ends up `below` rows below the top, unless the end is followed."""
        self.page.reshape(self.page.view, self.measure)
        if self.follow or place is None:
            self._grown(0)
            return
        y = max(0, self.page.y_of(place) - below)
        height = self.scrollable_content_region.height
        for _ in range(4):
            self.page.settle(y, height)
            y = max(0, self.page.y_of(place) - below)
        self._news_from = self.page.rows
        self._strips.clear()
        self._extend(self.page.rows)
        self._scroll(y)
        self.refresh()

    # --- scrolling ---

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Stop following when scrolled up; resume at the end."""
        super().watch_scroll_y(old_value, new_value)
        if self._steering or round(old_value) == round(new_value):
            return
        if round(new_value) >= self.page.rows - self.scrollable_content_region.height:
            self.follow = self.follow or new_value > old_value
        elif new_value < old_value:
            self.leave_end()
        self._arrange()

    def _arrange(self) -> None:
        """Lay out rows that became visible."""
        y, rows = round(self.scroll_y), self.page.rows
        settled = self.page.settle(y, self.scrollable_content_region.height)
        if self.page.rows != rows:
            self._news_from += self.page.rows - rows
            self._strips.clear()
            self._extend(self.page.rows)
            self._scroll(self.max_scroll_y if self.follow else settled)
            self.refresh()

    def leave_end(self) -> None:
        """Stop following the end."""
        if self.follow:
            self.follow = False
            self._news_from = self.page.rows
            self._extend(self.page.rows)

    def on_mouse_scroll_up(self, _: events.MouseScrollUp) -> None:
        """Stop following at once; Textual's scrolling is animated."""
        if self.max_scroll_y > 0:
            self.leave_end()

    def action_page_up(self) -> None:
        if self.max_scroll_y > 0:
            self.leave_end()
        self.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        self.scroll_page_down(animate=False)

    def action_scroll_end(self) -> None:
        self.to_end()

    def action_scroll_home(self) -> None:
        if self.max_scroll_y > 0:
            self.leave_end()
        self.scroll_to(y=0, animate=False, force=True)

    # --- drawing ---

    def notify_style_update(self) -> None:
        """Forget the styles of the old theme."""
        super().notify_style_update()
        self._styles.forget()
        self._strips.clear()

    def render_line(self, y: int) -> Strip:
        last = y == self.scrollable_content_region.height - 1
        y += round(self.scroll_y)
        span = None if self.text_selection is None else self.text_selection.get_span(y)
        strip = self._strips.get(y)
        if strip is None or span is not None or strip.cell_length != self.size.width:
            strip = self._draw(y, span)
            if span is None:
                if len(self._strips) >= CACHED:
                    self._strips.clear()
                self._strips[y] = strip
        if last and (news := self._news()):
            return self._with_news(strip, news)
        return strip

    def _draw(self, y: int, span: tuple[int, int] | None) -> Strip:
        segments = self._segments(y)
        if span is not None:
            style: Style = self.screen.get_component_rich_style("screen--selection")
            segments = stylize(segments, max(GUTTER, span[0]), span[1], style)
        return Strip(segments).adjust_cell_length(self.size.width, self._styles.style("")).apply_offsets(0, y)

    def _segments(self, y: int) -> list[Segment]:
        spot = self.page.spot(y)
        if spot is None:
            return []
        block = self.blocks[spot.block]
        if not block.laid_out:
            self.call_after_refresh(self._arrange)
            return []
        if spot.row is not None:
            return self._text_row(block, spot.row)
        if block.foot and y == self._foot_row(block):
            return self._styles.segments([StyledSpan("  "), StyledSpan(block.foot, "foot")])
        return self._heading(block) if block.head and y == self.page.tops[spot.block] else []

    def _news(self) -> str:
        """The mark of new rows below the screen."""
        if self.follow or round(self.scroll_y) >= self.max_scroll_y:
            return ""
        new = self.page.rows - self._news_from
        return f" ↓ {new:,} new {'line' if new == 1 else 'lines'} · PgDn " if new > 0 else ""

    def _with_news(self, strip: Strip, news: str) -> Strip:
        width = self.scrollable_content_region.width
        if cell_len(news) + 2 > width:
            return strip
        at = width - cell_len(news) - 1
        parts = [strip.crop(0, at), Strip([Segment(news, self._styles.style("more"))])]
        return Strip.join([*parts, strip.crop(at + cell_len(news))])

    def _text_row(self, block: Block, row: int) -> list[Segment]:
        look = {"user": "asked", "notice": "quiet", "error": "error"}.get(block.kind, "")
        pieces = overlay_marks(
            block.rows.pieces(row), [*block.marks(row, self.tint), *self.marks(block, row)]
        )
        last = block.live and row == block.body - 1
        ends = [StyledSpan(CARET, "caret")] if last else self.ghosts(block, row)
        return self._styles.segments([self._gutter(block, row), *pieces, *ends], look)

    def marks(self, block: Block, row: int) -> list[Mark]:
        """Further marks of a row."""
        return []

    def ghosts(self, block: Block, row: int) -> list[StyledSpan]:
        """Spans after a row that are not part of its text."""
        return []

    def _heading(self, block: Block) -> list[Segment]:
        title, note = fit_title(block.title, block.note, self.measure)
        gap = max(0, self.measure - cell_len(title) - cell_len(note))
        pieces = [
            self._gutter(block),
            StyledSpan(title, "title"),
            StyledSpan(" " * gap),
            StyledSpan(note, "quiet"),
        ]
        return self._styles.segments(pieces)

    def _gutter(self, block: Block, row: int | None = None) -> StyledSpan:
        """The bar at the left of what the user wrote, and of a thought."""
        if isinstance(block, AnswerBlock) and row is not None and block.on_rail(row):
            return StyledSpan("│ ", "rule")
        lead = block.lead if isinstance(block, AnswerBlock) else 0
        by_user = block.kind == "user" or (row is not None and block.rows.offset(row) < lead)
        return StyledSpan("▌ " if by_user else "  ", "bar")

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text: wrapped rows joined again, without gutter."""
        first, last = selection.start, selection.end
        top, bottom = first.y if first else 0, last.y if last else self.page.rows - 1
        parts: list[str] = []
        for y in range(top, min(bottom, self.page.rows - 1) + 1):
            spot = self.page.spot(y)
            if spot is None or spot.row is None:
                parts.append("\n")
                continue
            pieces = self.blocks[spot.block].rows.pieces(spot.row)
            end = (
                max(0, last.x - GUTTER) if last and y == bottom else sum(len(piece.text) for piece in pieces)
            )
            begin = max(0, first.x - GUTTER) if first and y == top else 0
            kept = [
                piece for piece in cut_spans(pieces, begin, end) if piece.at >= 0 or "block" not in piece.look
            ]
            text = "".join(piece.text for piece in kept)  # without the padding of code
            parts.append(text + ("" if y == bottom else self._joint(spot.block, spot.row)))
        return "".join(parts), "\n"

    def _joint(self, number: int, row: int) -> str:
        """The source text between a row and the next: a space if it was wrapped."""
        block = self.blocks[number]
        if row + 1 >= block.body:
            return "\n"
        end, start = block.span(row)[1], block.span(row + 1)[0]
        between = block.text[end:start] if end <= start else "\n"
        return between if between.strip(" ") == "" else "\n"
