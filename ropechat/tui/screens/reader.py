"""The reader: a text with its tokens tinted while they are scored, the visible ones first."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widgets import Input

from ropechat.inspector.reader_comparison import ReaderComparison
from ropechat.inspector.text_reader import TextReader
from ropechat.inspector.tree import MAX_DEPTH
from ropechat.tui.commands import registry as keys
from ropechat.tui.widgets.bars import Bar, KeyHints
from ropechat.tui.widgets.chart_panel import ChartPanel, line_of
from ropechat.tui.widgets.text_view import FIGURES, KL, TextView
from ropechat.tui.widgets.token_panel import TokenPanel
from ropechat.util.text import one_line, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from ropechat.engine.engine import Engine
    from ropechat.inspector.look_up import Found
    from ropechat.inspector.text_reader import Worker
    from ropechat.inspector.why.answer import Question
    from ropechat.inspector.why.result import Asked
    from ropechat.tui.commands.keymap import Keymap
    from ropechat.tui.screens.why import Whys

POLL_S = 0.05  # seconds between two polls of the scores
SURPRISE = 4.0  # bits from which `n` stops at a token
DIVERGENCE = 0.1  # the same for the divergence of two models
CONTINUED = 48  # tokens of a continuation
ROOM = 32  # tokens of a window that a question why leaves free
SHOWN_AFTER = 40  # bytes after a token, so that the tokens stay the same
SHOWN_BEFORE = 400  # bytes of the text before a token


class ReaderScreen(ModalScreen[None]):
    """A text and its scores. name: of its file; worker: computes.

    against: loads the model that `c` compares with, whose name is against_name; None: there is none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings((*keys.COMMON, *keys.READER))]

    def __init__(
        self,
        title: str,
        reader: TextReader,
        worker: Worker,
        spell: Callable[[int], bytes],
        keymap: Keymap,
        folder: Path,
        against: Callable[[], Engine] | None = None,
        against_name: str = "",
    ) -> None:
        super().__init__()
        self._title, self.reader, self._worker, self._folder = title, reader, worker, folder
        self.text_view, self.panel = TextView(reader, id="text"), TokenPanel(spell, id="token")
        self.chart = ChartPanel(id="chart", numbered=True)
        self._keymap = keymap
        self._whys: dict[int, Whys] = {}  # those of the tokens of this text that were asked about
        self._bar, self._hints = Bar(id="title"), KeyHints(keys.READER_ITEMS, keymap)
        self._ask = Input(id="ask", compact=True)
        self._asked: Callable[[str], None] = lambda text: None
        self._notes: list[str] = []
        self._sought: list[str] = []  # looked up in the place of each token that is selected
        self._against, self._against_name = against, against_name
        self.comparison: ReaderComparison | None = None  # None also while `c` is off
        self._kept: ReaderComparison | None = None
        self._is_loading = False
        self._drawn = (-1, -1, -1)
        self._searching = 0  # 1 or -1 while the next surprise is not scored yet

    def compose(self) -> ComposeResult:
        yield self._bar
        with Container(id="reader"):
            yield self.text_view
            yield self.panel
        yield self.chart
        yield self._ask
        yield self._hints

    def on_mount(self) -> None:
        """Start scoring."""
        self._ask.display = False
        self.text_view.focus()
        self.set_interval(POLL_S, self._look)
        self._look()

    # --- results ---

    def _look(self) -> None:
        view, reader = self.text_view, self.reader
        view.lay_out()  # the first resize may come before there is a width
        top = view.offset_of(view.scroll_offset.y) if view.size.height else 0
        reader.look_at(top)
        compared = self.comparison
        state = (reader.version, view.cursor, -1 if compared is None else compared.version)
        if self._drawn == state:
            return
        self._drawn = state
        if self._searching:
            self._go_to_surprise(self._searching)
        view.redraw()
        self._show_status()
        self._show_token()
        self._show_chart()
        if not (reader.is_done and (compared is None or compared.is_done)):
            self._worker.wake()

    def _show_status(self) -> None:
        reader = self.reader
        count, mean = reader.totals()
        left = [(self._title, "bold $primary")]
        if count and self.comparison is None:
            left.append((f" · {mean:.2f} bits/token · ppl {2**mean:,.2f}", ""))
        right = [(f"tint: {self.text_view.figure}", "$quiet")]
        if (other := self.comparison) is not None:
            left.append((f" · {other.name}: mean KL {other.mean_kl:.3g} bits of {other.count:,}", "$warning"))
        if not reader.is_done:
            total = len(reader) if reader.is_encoded else max(len(reader), len(reader.data) // 4)
            right.insert(0, (f"{100 * count // max(1, total)} % scored · ", "$warning"))
        self._bar.show(left, right)

    def _show_token(self) -> None:
        index = self.text_view.cursor
        token = self.reader.detail(index) if index >= 0 else None
        compared = self.comparison
        other = None if compared is None else (compared.name, compared.detail(index) if index > 0 else None)
        self.panel.show(index, len(self.reader), token, self._notes, other)
        if index > 0 and (token is None or (other is not None and other[1] is None)):
            self._worker.wake()

    def _show_chart(self) -> None:
        if self.chart.display:
            index, data = self.text_view.cursor, self.reader.data
            name = visible(data[slice(*self.reader.span(index))]) if index >= 0 else ""
            self.chart.show([line_of(self.reader)], index, name)

    def _select(self, index: int) -> None:
        if 0 <= index < len(self.reader):
            self._searching = 0
            self._move_to(index)
            self._look()

    def _move_to(self, index: int) -> None:
        """Select a token, and look up the last strings there."""
        self._notes = []
        self.text_view.move_to(index)
        if self._sought and index > 0:
            self._find(self._sought)

    # --- keys ---

    def action_leave(self) -> None:
        """Close the reader, or its open question."""
        if self._ask.display:
            self._close_question()
        else:
            self.dismiss(None)

    def action_token(self, by: int) -> None:
        """Select the next token or the one before."""
        view = self.text_view
        first = view.token_in_row(view.scroll_offset.y)
        self._select(max(0, first) if view.cursor < 0 else view.cursor + by)

    def action_move(self, by: int) -> None:
        """Scroll by rows."""
        self.text_view.scroll_relative(y=by, animate=False)

    def action_page(self, by: int) -> None:
        """Scroll by pages."""
        self.text_view.scroll_relative(y=by * max(1, self.text_view.size.height - 1), animate=False)

    def action_end(self, by: int) -> None:
        """Scroll to the beginning or the end."""
        self.text_view.scroll_to(y=0 if by < 0 else self.text_view.max_scroll_y, animate=False)

    def action_surprise(self, by: int) -> None:
        """Select the next token, or the one before, that surprised the model."""
        self._go_to_surprise(by)
        self._look()

    def _go_to_surprise(self, by: int) -> None:
        view, reader = self.text_view, self.reader
        here = view.cursor
        if here < 0:
            here = max(0, view.token_in_row(view.scroll_offset.y)) - (by > 0)
        compared = self.comparison
        values, least = (reader.bits, SURPRISE) if compared is None else (compared.kl, DIVERGENCE)
        found = _next_from(values, here, by, least)
        stop = found if found is not None else (len(reader) if by > 0 else 0)
        gap = _first_unknown(values, here, by, stop)
        if gap is not None and not (reader if compared is None else compared).is_done:
            self._searching = by
            reader.look_at(reader.span(gap)[0])
            self._hints.say("scoring the text up to the next one …")
            return
        self._searching = 0
        what = f"{least:g} bits{'' if compared is None else ' of KL'}"
        self._hints.say("" if found is not None else f"no token of {what} or more there")
        if found is not None:
            self._move_to(found)

    def action_tint(self) -> None:
        """Tint by the next figure."""
        view = self.text_view
        figures = FIGURES if self.comparison is None else (KL, *FIGURES)
        view.figure = figures[(figures.index(view.figure) + 1) % len(figures)]
        view.redraw()
        self._show_status()

    def action_chart(self) -> None:
        """Show or hide the chart."""
        self.chart.display = not self.chart.display
        self.set_class(self.chart.display, "-charted")
        self._show_chart()

    @on(ChartPanel.Picked)
    @on(TextView.Selected)
    def _clicked(self, event: TextView.Selected | ChartPanel.Picked) -> None:
        self._select(event.index)

    # --- questions ---

    def action_look_up(self) -> None:
        """Ask for a string, and show how probable it is at this place; the second press ends it."""
        if self._sought:
            self._sought, self._notes = [], []
            self._show_token()
        else:
            self._question("a string to look up, here and where you move to", self._look_up)

    def action_replace(self) -> None:
        """Ask for a text in the place of this token, and score the rest again."""
        self._question("put in the place of this token", self._replace)

    def _question(self, label: str, answer: Callable[[str], None]) -> None:
        if self.text_view.cursor <= 0:
            self._hints.say("select a token first: ← →, n, or a click")
            return
        self._asked = answer
        self._ask.value = ""
        self._ask.placeholder = f"{label}: (spaces count; ⏎ esc)"
        self._ask.display = True
        self.set_focus(self._ask)  # at once: the next keys are for it

    @on(Input.Submitted)
    def _answered(self, event: Input.Submitted) -> None:
        self._close_question()
        if event.value:
            self._asked(event.value)

    def _close_question(self) -> None:
        self._ask.display = False
        self.set_focus(self.text_view)

    def _look_up(self, wanted: str) -> None:
        self._sought = [wanted]
        self._find(self._sought)

    def _find(self, wanted: list[str]) -> None:
        """Look up strings in the place of the selected token."""
        index, reader, view = self.text_view.cursor, self.reader, self.text_view

        def job(engine: Engine) -> list[Found]:
            from ropechat.inspector.look_up import look_up

            if view.cursor != index:  # another token was selected while this waited
                return []
            return look_up(engine, reader.context_of(index), wanted)

        self._run(index, job, lambda found: " · ".join(map(_words_of, found)))

    def action_continue(self) -> None:
        """Show how the model would continue after this token."""
        index, reader = self.text_view.cursor, self.reader
        if index <= 0:
            self._hints.say("select a token first: ← →, n, or a click")
            return
        ids = [*reader.context_of(index), reader.ids[index]]

        def job(engine: Engine) -> str:
            from ropechat.sampling import Sampling

            room = engine.context - len(ids)
            sampling = Sampling(temperature=0.0, max_tokens=max(1, min(CONTINUED, room)))
            return "".join(step.text for step in engine.generate(ids, sampling))

        self._hints.say("writing …")
        self._run(index, job, lambda text: f"greedy: …{text}")

    def action_why(self) -> None:
        """Show which parts of the text before this token it comes from."""
        from ropechat.inspector.why.answer import TextQuestion
        from ropechat.inspector.why.context import Context
        from ropechat.tui.screens.why import Whys, WhyScreen

        index, reader = self.text_view.cursor, self.reader
        if index <= 0:
            self._hints.say("select a token first: ← →, n, or a click")
            return
        before, own, rest = reader.split_at(index, ROOM, SHOWN_AFTER)

        def ask(engine: Engine, asked: Asked) -> Question:
            context = Context.of_texts([("", before)])
            return TextQuestion(engine, context, own + rest, (0, len(own)), asked)

        if index not in self._whys:
            self._whys[index] = Whys(ask, f"token #{index:,} of {len(reader):,}")
        screen = WhyScreen(self._whys[index], self._worker, self._keymap)
        self.app.push_screen(screen, lambda result: self._score())

    def action_follow(self) -> None:
        """Show what could stand in the place of this token, as a tree; a path that is taken replaces it."""
        from ropechat.inspector.growth import Growth
        from ropechat.tui.screens.continuations import ContinuationsScreen, Taken

        index, reader = self.text_view.cursor, self.reader
        if index <= 0:
            self._hints.say("select a token first: ← →, n, or a click")
            return
        begin, _ = reader.span(index)
        before = reader.data[max(0, begin - SHOWN_BEFORE) : begin].decode("utf-8", "replace")
        ids = reader.context_of(index), [*reader.ids[index : index + MAX_DEPTH]]

        def done(taken: Taken | None) -> None:
            if taken is not None:
                self._replace(taken.tree.text(taken.node).decode("utf-8", "replace"))

        growth = Growth(lambda engine: ids)
        screen = ContinuationsScreen(growth, self._worker.submit, before, self._keymap, "replace")
        self.app.push_screen(screen, done)

    def _replace(self, text: str) -> None:
        index, old = self.text_view.cursor, self.reader
        begin, end = old.span(index)
        data = old.data[:begin] + text.encode("utf-8", "surrogatepass") + old.data[end:]
        changed = data.decode("utf-8", "surrogatepass" if b"\xed" in data else "replace")

        def job(engine: Engine) -> TextReader:
            reader = TextReader.of(engine, changed, old.window)
            reader.take_over(old)
            return reader

        def done(reader: TextReader) -> None:
            self.reader = reader
            self._whys.clear()
            self._kept = (
                None if self._kept is None else ReaderComparison(reader, self._kept.other, self._kept.name)
            )
            self.text_view.show(reader)
            self._compare(on=self.comparison is not None)

        self._submit(job, done)

    def action_compare(self) -> None:
        """Show or hide a second model's numbers."""
        load = self._against
        if load is None:
            self._hints.say("to compare, open the file with `ropechat inspect -i FILE --against-dtype TYPE`")
        elif self._kept is not None:
            self._compare(on=self.comparison is None)
        elif not self._is_loading:
            self._is_loading = True
            self._hints.say(f"loading {self._against_name} …")

            def loaded(result: Any) -> None:
                self._is_loading = False
                self._finish(result, done)

            def done(other: Engine) -> None:
                self._hints.say("")
                self._kept = ReaderComparison(self.reader, other, self._against_name)
                self._compare(on=True)

            app = self.app  # `self.app` raises an error once the app has ended
            self._worker.submit(lambda engine: load(), lambda result: app.call_from_thread(loaded, result))

    def _compare(self, *, on: bool) -> None:
        """Show the text with or without the second model."""
        self.comparison = self._kept if on else None
        self.text_view.comparison = self.comparison
        if on or self.text_view.figure == KL:
            self.text_view.figure = KL if on else FIGURES[0]
        self._score()

    def _score(self) -> None:
        """Have the text, or the comparison, computed from now on."""
        self._worker.read(self.reader if self.comparison is None else self.comparison)
        self._drawn = (-1, -1, -1)
        self._look()

    def action_export(self) -> None:
        """Write the scored text as a page, or while two models are compared the comparison."""
        compared = self.comparison
        kind = "inspect" if compared is None else "compare"
        path = self._folder / f"{Path(self._title).stem or 'text'}.{kind}.html"
        if path.exists():
            self._hints.say(f"{one_line(str(path))}: exists; move it first")
            return
        self._hints.say("writing the page …")
        reader = self.reader

        def job(engine: Engine) -> str:
            with path.open("x", encoding="utf-8") as file:
                if compared is None:
                    file.writelines(reader.page(engine, self._title))
                else:
                    file.writelines(_compared_page(engine, compared.other, reader.text, reader.window))
            return f"written: {path}"

        self._submit(job, self._hints.say)

    def _run(self, index: int, job: Callable[[Engine], Any], words: Callable[[Any], str]) -> None:
        """Run a job, then show its result next to its token."""

        def done(result: Any) -> None:
            text = words(result)
            if text and index == self.text_view.cursor:
                self._hints.say("")
                self._notes.append(text)
                self._show_token()

        self._submit(job, done)

    def _submit(self, job: Callable[[Engine], Any], done: Callable[[Any], None]) -> None:
        """Run a job in the worker's thread; `done` gets its result in the app's."""
        app = self.app  # `self.app` raises an error once the app has ended
        self._worker.submit(job, lambda result: app.call_from_thread(self._finish, result, done))

    def on_unmount(self) -> None:
        """End the second model's computation."""
        if self._kept is not None:
            self._kept.other.cancel()

    def _finish(self, result: Any, done: Callable[[Any], None]) -> None:
        if isinstance(result, BaseException):
            self._hints.say(f"error: {result}", "$error")
        else:
            done(result)

    def fail(self, error: BaseException) -> None:
        """Show an error of scoring."""
        self._hints.say(f"error: {error}", "$error")


def _compared_page(engine: Engine, other: Engine, text: str, window: int) -> Iterator[str]:
    from ropechat.inspector.compare import TokenPair, compare_tokens
    from ropechat.inspector.compare_page import render
    from ropechat.inspector.compare_text import pair_text, window_size

    pairing, pairs = pair_text(engine, other, text), list[TokenPair]()
    result = compare_tokens(pairing, window=window_size(pairing, window), on_token=pairs.append)
    yield from render(result, pairs)


def _next_from(values: Sequence[float], here: int, by: int, least: float) -> int | None:
    """The next place (by 1) or the one before (by -1) with at least this value; None: not found yet."""
    places = range(here + 1, len(values)) if by > 0 else range(here - 1, -1, -1)
    return next((place for place in places if place < len(values) and values[place] >= least), None)


def _first_unknown(values: Sequence[float], here: int, by: int, stop: int) -> int | None:
    """The first place between here and `stop` whose value is not known yet."""
    for index in range(here + by, stop, by):
        if index > 0 and (index >= len(values) or math.isnan(values[index])):
            return index
    return None


def _words_of(found: Any) -> str:
    """A string that was looked up, and how probable it is."""
    share = math.exp(found.logprob)
    many = f", {len(found.ids)} tokens" if len(found.ids) > 1 else ""
    return f"{found.text!r}: {share:.3g} ({-found.logprob / math.log(2):.1f} bits, rank {found.rank:,}{many})"
