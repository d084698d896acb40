"""The token inspector: its figures, and what the sampler did to each candidate."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.geometry import Region
from textual.message import Message

from ropechat.inspector.explain import explain
from ropechat.tui.render.wrap import wrap
from ropechat.tui.widgets.styled import StyledWidget
from ropechat.util.markdown.spans import StyledSpan, cut_spans
from ropechat.util.records import bar
from ropechat.util.text import count_of, one_line, token_name
from ropechat.util.width import cell_width, chop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from textual import events
    from textual.strip import Strip

    from ropechat.inspector.explain import Candidate, Explanation
    from ropechat.trace import Step
    from ropechat.tui.render.cursor import TokenPlace

CUTS = {
    "top_k": "cut by top_k",
    "top_p": "cut by top_p",
    "min_p": "cut by min_p",
    "forced": "not the forced one",
    "xtc": "excluded by xtc",
    "greedy": "not the best",
    "banned": "banned",
}
VALUES = {"xtc": "u", "top_n_sigma": "σ"}
MIN_NAME, MAX_NAME = 8, 30  # cells of a token's text
MIN_BAR = 8
CANDIDATES = 6  # rows of candidates that stages leave where the height is small
LEAST = 3  # rows of candidates; the lines after them are left out where there would be fewer
NUMBERS = 30  # cells of a row that are not bar: choice, rank, sampled, raw, bits

Row = list[StyledSpan]


@dataclass(frozen=True)
class Preview:
    """How the text would continue after an alternative."""

    id: int
    text: str
    note: str = ""


class Inspector(StyledWidget):
    """A side panel where the screen is wide, a dialog below the transcript where it is not."""

    ALLOW_SELECT = False

    class Picked(Message):
        """An alternative was clicked; forks: it was the selected one already."""

        def __init__(self, forks: bool) -> None:
            super().__init__()
            self.forks = forks

    def __init__(self, spell: Callable[[str, int], str], *, id: str | None = None) -> None:
        """spell: the text of an id of a model."""
        super().__init__(id=id)
        self._spell = spell
        self.display = False
        self.details = False  # whether the id, the bytes and the sampler's stages are shown
        self._listed: dict[int, int] = {}  # {row: place of its candidate}
        self.token: TokenPlace | None = None
        self.choice = 0  # the selected alternative
        self.preview: Preview | None = None
        self._explanation: Explanation | None = None
        self._rows: list[Row] = []
        self._counted = 0  # tokens of the answer, as the rows say

    @property
    def chosen(self) -> Candidate | None:
        """The selected alternative."""
        found = self._explanation.candidates if self._explanation else ()
        return found[self.choice] if self.choice < len(found) else None

    @property
    def text(self) -> str:
        return "\n".join("".join(piece.text for piece in row).rstrip() for row in self._rows)

    def show(self, token: TokenPlace | None) -> None:
        """Inspect a token, or nothing."""
        if token == self.token and self._rows:
            return
        self.token, self.preview, self._explanation, self.choice = token, None, None, 0
        if token is not None:
            block, step = token.block, token.block.steps[token.index]
            if block.sampling is not None:
                self._explanation = explain(step, block.sampling)
                self.choice = next(n for n, c in enumerate(self._explanation.candidates) if c.chosen)
        self._lay()

    def toggle_details(self) -> None:
        """Show or hide the id, the bytes and the sampler's stages."""
        self.details = not self.details
        self._lay()

    def on_click(self, event: events.Click) -> None:
        """Select the alternative under the mouse; the selected one is picked."""
        if (order := self._listed.get(event.y)) is not None:
            forks = order == self.choice
            self.choose(order - self.choice)
            self.post_message(self.Picked(forks))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Select the next alternative."""
        event.stop()
        self.choose(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Select the alternative before."""
        event.stop()
        self.choose(-1)

    def respell(self) -> None:
        """Draw it again: the texts of more tokens are known."""
        self._lay()

    def recount(self) -> None:
        """Update the number of tokens."""
        if self.token is not None and len(self.token.block.steps) != self._counted:
            self._lay()

    def choose(self, step: int) -> None:
        """Move among the alternatives."""
        if self._explanation is not None:
            self.choice = max(0, min(self.choice + step, len(self._explanation.candidates) - 1))
            self._lay()

    def choose_rank(self, rank: int) -> bool:
        """Select the alternative of a rank; False if it is not listed."""
        found = self._explanation.candidates if self._explanation else ()
        at = next((n for n, candidate in enumerate(found) if candidate.rank == rank), None)
        if at is None:
            return False
        self.choose(at - self.choice)
        return True

    def another(self, without: Collection[int]) -> int | None:
        """Draw among the surviving candidates but `without`, then take the best; None if none is left."""
        found = self._explanation.candidates if self._explanation else ()
        left = [one for one in found if one.id not in without]
        drawn = [one for one in left if one.cut is None and one.sampled]
        if drawn:
            return random.choices(drawn, [one.sampled or 0.0 for one in drawn])[0].id
        return left[0].id if left else None

    def show_preview(self, preview: Preview | None) -> None:
        self.preview = preview
        self._lay()

    def on_resize(self) -> None:
        self._lay()

    def render_line(self, y: int) -> Strip:
        return self.draw(self._rows[y] if y < len(self._rows) else [])

    # --- content ---

    def _lay(self) -> None:
        width, height = self.size
        before, self._rows, self._listed = self._rows, [], {}
        self._counted = 0 if self.token is None else len(self.token.block.steps)
        if width and height:
            self._rows = self._about(width) if self.token else self._nothing()
            if self._explanation is not None:
                self._rows += self._candidates(width, height - len(self._rows))
        for y in range(max(len(before), len(self._rows))):
            if before[y : y + 1] != self._rows[y : y + 1]:
                self.refresh(Region(0, y, width, 1))

    def _nothing(self) -> list[Row]:
        return [
            [StyledSpan(" No token is selected.", "quiet")],
            [StyledSpan(" Click one, or press esc, then an arrow key.", "quiet")],
        ]

    def _about(self, width: int) -> list[Row]:
        assert self.token is not None
        block, index = self.token.block, self.token.index
        step = block.steps[index]
        name = token_name(step.id, step.bytes)
        count = f" token {index + 1:,} of {len(block.steps):,} "
        about = [StyledSpan(count, "heading"), StyledSpan(name, "name")]
        if step.channel != "answer":
            about.append(StyledSpan(f"  {describe_channel(step)}", "quiet"))
        rows = [fit_row(about, width)]
        if self.details:
            details = [StyledSpan(f" id {step.id} · bytes {_hexadecimal(step.bytes, 8) or 'none'}", "quiet")]
            gap = width - _width(about) - _width(details) - 1
            rows = (
                [[*about, StyledSpan(" " * gap), *details]] if gap > 0 else [*rows, fit_row(details, width)]
            )
        return rows + self._figures(width)

    def _figures(self, width: int) -> list[Row]:
        assert self.token is not None
        block, index = self.token.block, self.token.index
        step = block.steps[index]
        sampled = self._explanation.chosen.sampled if self._explanation else None
        words = [
            ("sampled", probability(sampled, self._explanation.exact if self._explanation else True)),
            ("raw", probability(math.exp(step.logprob))),
            ("rank", f"{step.rank:,}"),
            ("", f"{-step.logprob / math.log(2):.1f} bits"),
            ("entropy", "?" if math.isnan(step.entropy) else f"{step.entropy / math.log(2):.1f} bits"),
        ]
        rows: list[Row] = [[]]
        for label, value in words:
            parts = [StyledSpan(f" {label}" if label else "", "quiet"), StyledSpan(f" {value} ", "")]
            if rows[-1] and _width(rows[-1]) + _width(parts) > width:
                rows.append([])
            rows[-1] += parts
        return rows

    def _candidates(self, width: int, height: int) -> list[Row]:
        assert self._explanation is not None
        tail, listed = self._tail(width), self._explanation.candidates
        if self.details:
            room = max(0, height - 1 - len(tail) - min(len(listed), CANDIDATES))
            stages = [StyledSpan(f"   {one_line(text)}", "quiet") for text in self._stages(self._explanation)]
            tail[1:1] = [fit_row([stage], width) for stage in (stages[-room:] if room else [])]
        while len(tail) > 1 and height - 1 - len(tail) < LEAST:
            del tail[-1]
        shown = self._in_rows(max(1, height - 1 - len(tail)))
        name, bar = self._widths(width, shown)
        head = "   #  " + "token".ljust(name) + " sampled" + " " * bar + "    raw  bits"
        rows: list[Row] = [[StyledSpan(head[:width], "quiet")]]
        best = max((one.sampled or 0.0 for one in listed if one.cut is None), default=0.0)
        for order in shown:
            self._listed[len(self._rows) + len(rows)] = order
            rows.append(fit_row(self._candidate(listed[order], order, name, bar, best), width))
        return rows + tail

    def _in_rows(self, room: int) -> list[int]:
        """The places of the candidates that `room` rows show, from rank 1 on.

        The selected one is among them, and the drawn one is in the last row if its rank is lower.
        """
        assert self._explanation is not None
        count = len(self._explanation.candidates)
        drawn = next(order for order, one in enumerate(self._explanation.candidates) if one.chosen)
        for rows in (room, room - 1):
            last = max(0, count - rows)
            first = 0 if self.choice == drawn else max(0, min(self.choice - rows + 1, last))
            shown = list(range(first, min(first + rows, count)))
            if drawn in shown or room < 2:
                return shown
        return [drawn, *shown] if drawn < first else [*shown, drawn]

    def _widths(self, width: int, shown: Sequence[int]) -> tuple[int, int]:
        """(cells of the tokens' texts, cells of the bars): the texts take what they need, within limits."""
        assert self._explanation is not None
        room = max(0, width - NUMBERS)
        longest = max(
            (cell_width(self.spelled(self._explanation.candidates[at].id)) for at in shown), default=0
        )
        name = max(min(MIN_NAME, room), min(longest + 1, MAX_NAME, max(MIN_NAME, room - MIN_BAR)))
        return name, max(0, room - name)

    def _candidate(self, candidate: Candidate, order: int, name: int, bar: int, best: float) -> Row:
        look = "asked" if candidate.chosen else "" if candidate.cut is None else "quiet"
        token, rank = self.spelled(candidate.id), f"{candidate.rank:>3,}"
        bar -= min(bar, len(rank) - 3)
        row = [
            StyledSpan(" ▸" if order == self.choice else "  ", "marker"),
            StyledSpan(rank, "quiet"),
            StyledSpan(mark_of(candidate), "marker"),
            *fit_row([StyledSpan(token, look)], name),
            StyledSpan(" "),
        ]
        if candidate.cut is not None:
            row += fit_row([StyledSpan(describe_cut(candidate.cut), "quiet")], bar + 7)
        else:
            exact = self._explanation is None or self._explanation.exact
            row.append(StyledSpan(probability(candidate.sampled, exact).rjust(6) + " ", look))
            share = (candidate.sampled or 0.0) / best if best else 0.0
            row.append(StyledSpan(draw_bar(share, bar), "bar"))
        raw = f" {probability(candidate.raw):>6}{min(candidate.bits, 99.9):>6.1f}"
        return [*row, StyledSpan(raw, look)]

    def _tail(self, width: int) -> list[Row]:
        """The lines after the candidates: what is not listed, what is uncertain, the preview."""
        assert self._explanation is not None
        found = self._explanation
        kept = "" if found.kept is None else f" · {count_of(found.kept, 'token')} possible"
        others = f"   … all others: raw {probability(found.rest)}{kept}"
        rows = [fit_row([StyledSpan(others, "quiet")], width)]
        if not found.exact:
            rows.append(fit_row([StyledSpan(f"   ? {found.why}", "quiet")], width))
        if self.preview is not None and (self.chosen is None or self.chosen.id == self.preview.id):
            name = self.spelled(self.preview.id)
            text = one_line(f"{name}{self.preview.text}")
            lines = wrap(text, 0, max(4, width - 3))[:4]
            rows.append(fit_row([StyledSpan(f" preview {self.preview.note}", "quiet")], width))
            rows += [[StyledSpan("  "), StyledSpan(text[start:end], "string")] for start, end in lines]
        return rows

    def _stages(self, found: Explanation) -> list[str]:
        """What each stage left, and the interval that u fell into."""
        assert self.token is not None
        step = self.token.block.steps[self.token.index]
        rows = []
        for stage in step.stages:
            cut = [self.spelled(one.id) for one in found.candidates if one.cut == stage.name]
            names = f" · cuts {' '.join(cut)}" if cut else ""
            number = "" if stage.value is None else f" · {VALUES.get(stage.name, '')} {stage.value:.4g}"
            rows.append(f"{stage.name} {stage.kept:,} kept · raw {probability(stage.mass)}{number}{names}")
        if step.interval is not None and step.u is not None:
            start, end = step.interval
            rows.append(f"u {step.u:.4f} in {start:.4f} to {end:.4f}")
        if step.drafted:
            rows.append("accepted draft")
        return rows

    def spelled(self, id: int) -> str:
        """The text of a token of this answer's model for the screen."""
        return self._spell("" if self.token is None else self.token.block.answer.model, id)


def mark_of(candidate: Candidate) -> str:
    return "●" if candidate.chosen else "±" if candidate.bias else "˟" if candidate.penalized else " "


def probability(value: float | None, exact: bool = True) -> str:
    """A probability in three figures."""
    if value is None or math.isnan(value):
        return "?"
    sign = "" if exact else "≈"
    if 0.0 < value < 0.0005:
        return sign + f"{value:.0e}".replace("e-0", "e-")
    return sign + f"{value:.3f}"


def describe_channel(step: Step) -> str:
    """What a token of a thought is: forced, if the thought was ended for the model."""
    if step.channel == "thought":
        return "thought"
    forced = math.isnan(step.logprob) or any(stage.name == "forced" for stage in step.stages)
    return "marker, forced" if forced else "marker"


def describe_cut(cut: str) -> str:
    """What removed a candidate; in a chat that was imported, any text."""
    return CUTS.get(cut) or f"cut by {one_line(cut)}"


def draw_bar(share: float, width: int) -> str:
    """A bar of `width` cells, in eighths of a cell; a share above 0 is visible."""
    return bar(max(share, 0.125 / width) if share > 0.0 and width else share, width)


def _width(row: list[StyledSpan]) -> int:
    return sum(cell_width(piece.text) for piece in row)


def fit_row(row: list[StyledSpan], width: int) -> Row:
    """The row cut (with …) or padded to a width."""
    used = _width(row)
    if used <= width:
        return [*row, StyledSpan(" " * (width - used))]
    text = "".join(piece.text for piece in row)
    end = next(chop(text, max(1, width - 1)))[1]
    kept = cut_spans(row, 0, end)
    return [*kept, StyledSpan("…", "quiet"), StyledSpan(" " * max(0, width - 1 - _width(kept)))]


def _hexadecimal(data: bytes, most: int) -> str:
    """The bytes in hexadecimal, at most so many."""
    return data[:most].hex(" ") + (" …" if len(data) > most else "")
