"""Why this token: the context tinted by what leaving out each part of it does, and the parts as a list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import on
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ropechat.inspector.why.examination import Examination
from ropechat.inspector.why.records import part_name
from ropechat.inspector.why.result import Asked
from ropechat.inspector.why.table import answer_line, meaning
from ropechat.tui.screens.dialog import ChoiceList, Dialog, bindings
from ropechat.tui.widgets.inspector import draw_bar
from ropechat.tui.widgets.why_context import WhyContext
from ropechat.util.text import count_of, format_duration, one_line
from ropechat.util.width import cell_width, fit

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.await_complete import AwaitComplete

    from ropechat.inspector.text_reader import Worker
    from ropechat.inspector.why.examination import Ask
    from ropechat.inspector.why.result import PartScore, Why
    from ropechat.tui.commands.keymap import Keymap

BUDGET = 10.0
"""Times the work of one reading at most, before the user opens parts."""
POLL_S = 0.1  # seconds between two looks at an examination
BAR = 8
FACTS = 30  # cells of a row that are not text
WORTH_SAYING_S = 1.0


class Whys:
    """The examinations of one place, by mode: those that were computed are kept."""

    def __init__(self, ask: Ask, what: str) -> None:
        """ask: makes the question. what: is asked about, for the title."""
        self._ask, self.what = ask, what
        self.asked = Asked(budget=BUDGET)
        self._made: dict[Asked, Examination] = {}

    @property
    def current(self) -> Examination:
        """That of the mode that is looked at."""
        if self.asked not in self._made:
            self._made[self.asked] = Examination(self._ask, self.asked)
        return self._made[self.asked]


class WhyScreen(Dialog[None]):
    """The parts of a context, and within each of them its parts. worker: computes."""

    BINDINGS = bindings("why", "read.why")
    context = "why"
    heading = "why"

    def __init__(self, whys: Whys, worker: Worker, keymap: Keymap) -> None:
        super().__init__(keymap)
        self._is_left = False
        self._whys, self._worker = whys, worker
        self._within: list[PartScore] = []  # the parts that were opened, one in the other
        self._listed: list[PartScore] = []
        self._chosen: PartScore | None = None
        self._is_moved = False  # whether the user chose it
        self._drawn = (-1, -1)
        self._about, self._trail = Static("", id="asked", markup=False), Static("", id="trail", markup=False)
        self.text_view = WhyContext(id="context")
        self._ask = Input(id="replacement", compact=True)
        opens = (f"{keymap.first('why.open')} {keymap.beside_text('why.back')}", "open, back")
        self.key_hints.show_keys((opens, "why.only", "why.replace", "sheet.leave"))

    def compose(self) -> ComposeResult:
        with Vertical(id="why", classes="sheet whole broad"):
            yield self._about
            with Container(id="division"):
                yield self.text_view
                with Vertical(id="parts"):
                    yield self._trail
                    yield ChoiceList(id="part_list", markup=False)
            yield self._ask
            yield self.key_hints

    def on_mount(self) -> None:
        """Begin to compute."""
        self.title_with(self._whys.what)
        self._ask.display = False
        self.query_one(OptionList).focus()
        self.set_interval(POLL_S, self._look)
        self._begin()

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Stop the computation, and close; what it found is kept."""
        if self.is_current:
            self._is_left = True
            self._examination.stop()
        return super().dismiss(result)

    def on_unmount(self) -> None:
        """Stop the computation at the end of the program; not that of a sheet that was opened since."""
        if not self._is_left:
            self._examination.stop()

    def on_resize(self) -> None:
        """Draw at this width."""
        self._drawn = (-1, -1)
        self.call_after_refresh(self._look)

    @property
    def _examination(self) -> Examination:
        return self._whys.current

    # --- computing ---

    def _begin(self) -> None:
        """Compute what is not computed yet."""
        if not self._examination.is_done:
            self._examination.go_on()
        self._worker.read(self._examination)
        self._look()

    @property
    def _is_computing(self) -> bool:
        return not (self._examination.is_done or self._examination.is_stopped)

    def _look(self) -> None:
        found = self._examination
        state = (id(found), found.version)
        if state == self._drawn or not self.text_view.size.width:
            return
        self._drawn = state
        why = found.why
        if why is not None:
            self._show(why)
        elif self._listed:
            self._forget()
        self._say_progress(found, why)

    def _say_progress(self, found: Examination, why: Why | None) -> None:
        stop = self.keymap.first("sheet.leave")
        if found.error is not None:
            self.say(one_line(str(found.error)), "$error")
        elif found.is_done:
            self.say("")
        elif why is None:
            tokens, seconds = found.reading
            doing = f"reading {count_of(tokens, 'token')}" if tokens else "waits for the model"
            doing += f", at most {format_duration(seconds)}" if seconds and seconds > WORTH_SAYING_S else ""
            self.say(f"{doing} … · {stop} stops")
        elif found.is_stopped:
            more = self.keymap.first("why.go_on")
            self.say(f"stopped after {count_of(why.scorings, 'scoring')}; {more} goes on")
        elif found.cost is not None:
            done = found.done / max(1, found.work)
            left = sum(one.bits is None and not one.error for one in why.walk())
            words = [f"{count_of(why.scorings, 'scoring')}, {left:,} to come"]
            if found.cost.seconds is not None and found.cost.seconds > WORTH_SAYING_S:
                words.append(f"at most {format_duration(found.cost.seconds * (1 - done))} more")
            self.say(f"{' · '.join(words)} … · {stop} stops")

    # --- keys ---

    def action_leave(self) -> None:
        """Close the question, stop the computation, go back, or close."""
        if self._ask.display:
            self._close_question()
        elif self._is_computing and self._examination.why is not None:
            self._examination.stop()
            self._drawn = (-1, -1)
        elif self._within:
            self.action_back()
        else:
            self.dismiss(None)

    def action_open(self) -> None:
        """Show the parts of the chosen part; compute them if they are not known."""
        part = self._chosen
        if part is None or self._ask.display:
            return
        if not (part.parts or part.skipped):
            self.say("this is the smallest part")
            return
        self._within.append(part)
        self._is_moved = False
        if part.skipped:
            self._examination.want(part)
            self._worker.wake()
        self._redraw()

    def action_back(self) -> None:
        """Show the parts that this one is among."""
        if self._within:
            self._chosen, self._is_moved = self._within.pop(), True
            self._redraw()

    def action_go_on(self) -> None:
        """Go on after it was stopped."""
        if self._examination.is_stopped:
            self._examination.go_on()
            self._worker.wake()

    def action_only(self) -> None:
        """What each part gives by itself, or again what leaving it out takes."""
        self._use(only=not self._whys.asked.only)

    def action_replace(self) -> None:
        """Ask for a text that comes in the place of each part; again: leave parts out."""
        if self._whys.asked.replace is not None:
            self._use()
            return
        self._ask.value = ""
        self._ask.placeholder = "in the place of each part: (⏎ esc)"
        self._ask.display = True
        self.set_focus(self._ask)

    @on(Input.Submitted)
    def _answered(self, event: Input.Submitted) -> None:
        self._close_question()
        if event.value:
            self._use(replace=event.value)

    def _close_question(self) -> None:
        self._ask.display = False
        self.set_focus(self.query_one(OptionList))

    def _use(self, *, only: bool = False, replace: str | None = None) -> None:
        """Look at another mode."""
        self._examination.stop()
        self._whys.asked = Asked(only=only, replace=replace, budget=BUDGET)
        self._within, self._chosen, self._is_moved = [], None, False
        self._begin()

    def on_option_list_option_selected(self) -> None:
        self.action_open()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Mark the chosen part in the context."""
        if 0 <= event.option_index < len(self._listed):
            chosen = self._listed[event.option_index]
            self._is_moved = self._is_moved or chosen is not self._chosen
            self._chosen = chosen
            self.text_view.choose(chosen.span)

    @on(WhyContext.Clicked)
    def _clicked(self, event: WhyContext.Clicked) -> None:
        """Choose the part under the mouse."""
        for place, one in enumerate(self._listed):
            if one.span[0] <= event.offset < one.span[1]:
                self.query_one(OptionList).highlighted = place

    # --- drawing ---

    def _redraw(self) -> None:
        self._drawn = (-1, -1)
        self._look()

    def _show(self, why: Why) -> None:
        width = max(20, self.query_one(".sheet").size.width)
        self._about.update(
            Content.assemble(
                (fit(answer_line(why), width).rstrip(), "bold"), "\n", (fit(meaning(why), width), "$quiet")
            )
        )
        self.text_view.show(why.context)
        self.text_view.tint(why)
        self._list(why)

    def _forget(self) -> None:
        """Show no numbers, which would be those of another mode."""
        self._listed = []
        self._about.update("")
        self._trail.update("")
        self.text_view.tint(None)
        self.list_options([], None)

    def _list(self, why: Why) -> None:
        parts = self._within[-1].parts if self._within else why.parts
        self._listed = sorted(parts, key=lambda one: (one.bits is None, -(one.bits or 0.0)))
        options = self.query_one(OptionList)
        width = max(20, (options.size.width or self.size.width) - 1)
        scale = max([one.change for one in parts], default=0.0) or 1.0
        if not self._is_moved or self._chosen not in self._listed:
            self._chosen = self._listed[0] if self._listed else None
        rows = [Option(self._row(why, one, scale, width)) for one in self._listed]
        self.list_options(rows, None if self._chosen is None else self._listed.index(self._chosen))
        if self._chosen is not None:
            self.text_view.choose(self._chosen.span)
        trail = [_words(why, one) for one in self._within]
        where = " › ".join([self._whole(why), *trail])
        while cell_width(where) > width and "› " in (rest := where.removeprefix("… › ")):
            where = f"… › {rest.partition('› ')[2]}"
        self._trail.update(Content.styled(fit(where, width).rstrip(), "$quiet"))

    @staticmethod
    def _whole(why: Why) -> str:
        skipped = sum(one.tokens for one in why.skipped)
        return "the context" if not skipped else f"the context · {count_of(skipped, 'token')} not looked into"

    @staticmethod
    def _row(why: Why, one: PartScore, scale: float, width: int) -> Content:
        bits = "…" if one.bits is None and not one.error else "–" if one.bits is None else f"{one.bits:+.2f}"
        opens = "▸" if one.parts or one.skipped else " "
        style = "$secondary" if (one.bits or 0.0) < 0 else "$primary"
        tokens = f"{one.tokens:,} tok"
        room = max(0, width - FACTS)
        return Content.assemble(
            f"{bits:>8} ",
            (draw_bar(one.change / scale, BAR), style),
            (f" {opens} ", "$primary"),
            fit(_words(why, one), room),
            (f"{tokens:>9}", "$quiet"),
        )


def _words(why: Why, one: PartScore) -> str:
    """The text of a part; of a whole message its name before it."""
    text = one_line(" ".join(why.text[slice(*one.span)].split()))
    if one.part.level != "text":
        return text
    if len(one.part.units) > 1:
        return f"{part_name(why, one.part)}: {text}"
    name = next((name for name, span in why.context.texts if span[0] <= one.span[0] < span[1]), "")
    return f"{one_line(name)}: {text}" if name else text
