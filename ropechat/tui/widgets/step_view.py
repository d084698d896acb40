"""Step mode as rows: the answer so far, the candidates of the next token, what the sampler's stages left."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from textual.message import Message

from ropechat.conversation import spoken
from ropechat.tui.render.wrap import wrap_spans
from ropechat.tui.widgets.input import SanitizedInput
from ropechat.tui.widgets.inspector import describe_cut, draw_bar, fit_row, mark_of, probability
from ropechat.tui.widgets.styled import StyledWidget
from ropechat.util.markdown.spans import StyledSpan
from ropechat.util.text import clean, one_line
from ropechat.util.width import cell_width

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual import events
    from textual.strip import Strip

    from ropechat.chat.stepping import Place
    from ropechat.inspector.explain import Candidate
    from ropechat.trace import Step, TokenDistribution

    Row = list[StyledSpan]

NAME, WIDE_NAME = 14, 22  # cells of a token's text
BAR, WIDE_BAR = 6, 16
WIDE = 110  # cells from which rows are wide
NUMBERED = 9  # candidates that a digit takes
CARET, NO_BREAK = "▏", "\N{NO-BREAK SPACE}"


class StepInput(SanitizedInput):
    """The line that filters; while it is empty, digits and backspace are commands."""

    class Digit(Message):
        """A digit chose a candidate."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    class Back(Message):
        """Backspace in an empty line."""

    def on_key(self, event: events.Key) -> None:
        """Commands first."""
        if not self.value and event.key == "backspace":
            self.post_message(self.Back())
        elif not self.value and event.key in "123456789":
            self.post_message(self.Digit(int(event.key)))
        else:
            super().on_key(event)
            return
        event.stop()
        event.prevent_default()


class StepView(StyledWidget):
    """The candidates of a place, or those that a search found. choice: the place of the selected one."""

    ALLOW_SELECT = False

    class Picked(Message):
        """A candidate was clicked; takes: it was the selected one already."""

        def __init__(self, choice: int, takes: bool) -> None:
            super().__init__()
            self.choice, self.takes = choice, takes

    def __init__(self, spell: Callable[[int], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._spell = spell
        self.place: Place | None = None
        self.steps: Sequence[Step] = ()
        self.found: Sequence[Candidate] | None = None  # by a search; None: all are listed
        self.next_tokens: Mapping[int, TokenDistribution] = {}
        self.choice = 0
        self.note = ""  # in place of the candidates
        self._rows: list[Row] = []
        self._listed: dict[int, int] = {}  # {row: place of its candidate}

    @property
    def candidates(self) -> Sequence[Candidate]:
        """What is listed."""
        if self.found is not None:
            return self.found
        return () if self.place is None else self.place.explanation.candidates

    @property
    def chosen(self) -> Candidate | None:
        """The selected candidate."""
        listed = self.candidates
        return listed[self.choice] if self.choice < len(listed) else None

    @property
    def shown(self) -> list[Candidate]:
        """The candidates in sight."""
        return [self.candidates[at] for at in self._listed.values() if at < len(self.candidates)]

    def redraw(self) -> None:
        """Draw what is known now."""
        self._lay()
        self.refresh()

    def move(self, by: int) -> None:
        """Select another candidate."""
        self.choice = max(0, min(self.choice + by, len(self.candidates) - 1))
        self.redraw()

    def on_resize(self) -> None:
        self._lay()

    def on_click(self, event: events.Click) -> None:
        """Select the candidate under the mouse; the selected one is taken."""
        if (choice := self._listed.get(event.y)) is not None:
            self.post_message(self.Picked(choice, choice == self.choice))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.move(-1)

    def render_line(self, y: int) -> Strip:
        return self.draw(self._rows[y] if y < len(self._rows) else [])

    @property
    def text(self) -> str:
        return "\n".join("".join(piece.text for piece in row).rstrip() for row in self._rows)

    # --- rows ---

    def _lay(self) -> None:
        width, height = self.size
        if not width or not height:
            return
        self._listed = {}
        said = self._said(width, max(2, height // 4))
        rows = [*said, []]
        if self.note:
            rows += wrap_spans([StyledSpan(f" {one_line(self.note)}", "foot")], width)
        if self.place is not None and not self.note:
            stages = self._stages(width, max(3, height // 6))
            rows += [self._head(width), self._columns(width)]
            room = max(1, height - len(rows) - 1 - len(stages))
            first = max(0, min(self.choice - room // 2, len(self.candidates) - room))
            for at in range(first, min(first + room, len(self.candidates))):
                self._listed[len(rows)] = at
                rows.append(self._candidate(self.candidates[at], at, width))
            rows += [self._rest(width), *stages]
        self._rows = rows[:height]

    def _said(self, width: int, most: int) -> list[Row]:
        """The last rows of the answer: what the user took in bold, what was given or drawn not."""
        lines: list[Row] = [[]]
        for step in self.steps:
            look = "" if step.u is not None else "asked"
            first, *others = clean(spoken(step)).split("\n")
            lines[-1].append(StyledSpan(first, look))
            lines += [[StyledSpan(other, look)] for other in others]
        lines[-1].append(StyledSpan(CARET, "caret"))
        rows = [row for line in lines[-most:] for row in wrap_spans(line, width - 1)][-most:]
        return [[StyledSpan(" "), *row] for row in rows]

    def _head(self, width: int) -> Row:
        assert self.place is not None
        place, found = self.place, self.place.explanation
        words = [
            StyledSpan(f" token {len(self.steps) + 1:,}", "heading"),
            StyledSpan("  entropy ", "quiet"),
            StyledSpan(f"{place.entropy:.2f} bits"),
        ]
        if found.kept is not None and place.vocab_size:
            words += [
                StyledSpan(f"  {found.kept:,}"),
                StyledSpan(f" of {place.vocab_size:,} possible", "quiet"),
            ]
        words += [StyledSpan("  draw ", "quiet"), StyledSpan("●", "marker")]
        words.append(StyledSpan(one_line(self._spell(place.drawn.id)), "name"))
        if place.drawn.u is not None:
            words.append(StyledSpan(f" u {place.drawn.u:.3f}", "quiet"))
        return fit_row(words, width)

    def _sizes(self, width: int) -> tuple[int, int]:
        return (WIDE_NAME, WIDE_BAR) if width >= WIDE else (NAME, BAR)

    def _columns(self, width: int) -> Row:
        name, bar = self._sizes(width)
        head = f"  #   {'token':{name}} sampled{'':{bar}}    raw  bits  then"
        return fit_row([StyledSpan(head, "quiet")], width)

    def _candidate(self, one: Candidate, at: int, width: int) -> Row:
        name, bar = self._sizes(width)
        look = "quiet" if one.cut is not None else ""
        number = f"{at + 1}" if at < NUMBERED and self.found is None else f"{one.rank:,}"
        chosen = at == self.choice
        row = [
            StyledSpan("▸" if chosen else " ", "marker"),
            StyledSpan(f"{number[-5:]:>3}", "quiet"),
            StyledSpan(mark_of(one), "marker"),
            *fit_row([StyledSpan(one_line(self._spell(one.id)), "asked" if chosen else look)], name),
            StyledSpan(" "),
        ]
        if one.cut is not None:
            row += fit_row([StyledSpan(describe_cut(one.cut), "quiet")], bar + 7)
        else:
            best = max((c.sampled or 0.0 for c in self.candidates if c.cut is None), default=0.0)
            row.append(StyledSpan(f"{probability(one.sampled):>6} "))
            row += fit_row(
                [StyledSpan(draw_bar((one.sampled or 0.0) / best if best else 0.0, bar), "bar")], bar
            )
        row.append(StyledSpan(f" {probability(one.raw):>6}{min(one.bits, 99.9):>6.1f}  ", look))
        return fit_row(
            [*row, *self._then(one.id, width - sum(cell_width(piece.text) for piece in row))], width
        )

    def _then(self, id: int, width: int) -> Row:
        """What would come after a candidate."""
        row: Row = []
        left = width
        if (after := self.next_tokens.get(id)) is None:
            return row
        for next_id, logprob in after.top:
            name, share = one_line(self._spell(next_id)), f" {100 * math.exp(logprob):.0f}%  "
            if math.exp(logprob) < 0.005 or left < cell_width(name) + len(share) - 2:
                break
            row += [StyledSpan(name, "name"), StyledSpan(share, "quiet")]
            left -= cell_width(name) + len(share)
        return row

    def _rest(self, width: int) -> Row:
        assert self.place is not None
        if self.found is not None:
            words = (
                f"      {len(self.found):,} with this text" if self.found else "      no token has this text"
            )
            return fit_row([StyledSpan(words, "quiet")], width)
        rest = probability(self.place.explanation.rest)
        words = f"      … others: raw {rest}; type a part of their text"
        return fit_row([StyledSpan(words, "quiet")], width)

    def _stages(self, width: int, most: int) -> list[Row]:
        """What each stage of the sampler left: tokens, their raw probability, the entropy in bits.

        In at most so many rows if each has one; else one after the other.
        """
        assert self.place is not None
        stages, sampling = self.place.drawn.stages, self.place.spot.sampling
        names = [f"{stage.name}{_value(getattr(sampling, stage.name, None))}" for stage in stages]
        longest = max(map(len, names), default=0)
        rows: list[Row] = []
        for name, stage in zip(names, stages, strict=True):
            entropy = stage.entropy / math.log(2)
            words = f"{stage.kept:>9,} left  {100 * stage.mass:>5.1f}% of raw  {entropy:>5.2f} bits"
            rows.append([StyledSpan(f"      {name:{longest}}"), StyledSpan(words, "quiet")])
        if len(rows) > most:
            joined: Row = []
            for row in rows:
                words = " ".join("".join(piece.text for piece in row).split())
                joined.append(StyledSpan(f"  {words.replace(' ', NO_BREAK)}", "quiet"))
            rows = wrap_spans(joined, width)
        return [fit_row(row, width) for row in rows]


def _value(value: object) -> str:
    """The value of a setting behind its name."""
    return f" {value:g}" if isinstance(value, int | float) else ""
