"""The token cursor: moves over a page by token, word, row, or to the next token that surprised the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.transcript_layout import RowPosition, TextPosition
from ropechat.util.width import cell_width, character_at

if TYPE_CHECKING:
    from ropechat.tui.render.transcript_layout import TranscriptLayout


@dataclass(frozen=True)
class TokenPlace:
    """A token of an answer."""

    block: AnswerBlock
    index: int

    @property
    def span(self) -> tuple[int, int]:
        """The characters it wrote."""
        return self.block.token_span(self.index)


def at_cell(page: TranscriptLayout, x: int, y: int) -> TokenPlace | None:
    """The token drawn at a column of the text and a row; the last of the row beyond its end."""
    spot = page.spot(y)
    block = page.blocks[spot.block] if spot else None
    if spot is None or spot.row is None or not isinstance(block, AnswerBlock):
        return None
    offset = None
    for text, _, at in block.rows.pieces(spot.row):
        size = cell_width(text)
        if at >= 0 and text:
            offset = at + min(character_at(text, max(0, x)), len(text) - 1)
        x -= size
        if x < 0:
            break
    index = block.token_at(offset) if offset is not None else None
    return None if index is None else TokenPlace(block, index)


def place_of(page: TranscriptLayout, token: TokenPlace) -> TextPosition:
    """The token's first character that is not a line break: there it is drawn."""
    start, end = token.span
    text = token.block.text[start:end]
    shift = len(text) - len(text.lstrip("\n"))
    return TextPosition(page.blocks.index(token.block), start + (shift if shift < len(text) else 0))


def in_sight(page: TranscriptLayout, top: int, height: int) -> TokenPlace | None:
    """The last token of the rows in sight, or the last of all above them.

    Of an answer that is only a folded thought, the last token of that.
    """
    for y in range(min(top + height, page.rows) - 1, top - 1, -1):
        if token := at_cell(page, 1 << 30, y):
            return token
        spot = page.spot(y)
        block = page.blocks[spot.block] if spot is not None and spot.row == 0 else None
        if isinstance(block, AnswerBlock) and 0 < len(block.steps) <= block.first:
            return TokenPlace(block, len(block.steps) - 1)
    spot = page.spot(min(top, page.rows - 1))
    return _end_of(page, spot.block, -1) if spot else None


def _end_of(page: TranscriptLayout, index: int, step: int) -> TokenPlace | None:
    """The nearest token of an answer from block `index` on, in a direction."""
    while 0 <= index < len(page.blocks):
        block = page.blocks[index]
        if isinstance(block, AnswerBlock) and block.first < len(block.steps):
            return TokenPlace(block, block.first if step > 0 else len(block.steps) - 1)
        index += step
    return None


def by_token(page: TranscriptLayout, token: TokenPlace, step: int) -> TokenPlace:
    """The token before or after, in this answer or the neighbouring one; folded thoughts are passed over."""
    index = token.index + step
    if token.block.first <= index < len(token.block.steps):
        return TokenPlace(token.block, index)
    return _end_of(page, page.blocks.index(token.block) + step, step) or token


def by_word(page: TranscriptLayout, token: TokenPlace, step: int) -> TokenPlace:
    """The next token that begins a word."""
    while (found := by_token(page, token, step)) != token:
        token = found
        start, end = token.span
        text = token.block.text
        if text[start:end].strip() and (start == 0 or text[start] in " \n" or text[start - 1] in " \n"):
            break
    return token


def by_surprise(page: TranscriptLayout, token: TokenPlace, step: int, tint: str) -> TokenPlace | None:
    """The next token whose tint has level 2 or more; None at the end of the text."""
    block, index = token.block, token.index
    while True:
        found = block.surprising(index, step, tint)
        if found is not None:
            return TokenPlace(block, found)
        following = _end_of(page, page.blocks.index(block) + step, step)
        if following is None:
            return None
        block, index = following.block, following.index - step


def by_row(page: TranscriptLayout, token: TokenPlace, step: int) -> TokenPlace:
    """The token above or below; rows without tokens are passed over."""
    place = place_of(page, token)
    y = page.y_of(place)
    column = _column(page, token, y, place.offset)
    while 0 <= (y := y + step) < page.rows:
        spot = page.spot(y)
        if spot and not page.blocks[spot.block].laid_out:
            _ = page.blocks[spot.block].rows
            page.measure(spot.block)
        if (found := at_cell(page, column, y)) and found != token:
            return found
    return token


def _column(page: TranscriptLayout, token: TokenPlace, y: int, offset: int) -> int:
    spot: RowPosition | None = page.spot(y)
    if spot is None or spot.row is None:
        return 0
    column = 0
    for text, _, at in token.block.rows.pieces(spot.row):
        if 0 <= at <= offset < at + len(text):
            return column + cell_width(text[: offset - at])
        column += cell_width(text)
    return column
