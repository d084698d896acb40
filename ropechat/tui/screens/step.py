"""Step mode: the user is the sampler, and takes the tokens of an answer one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.containers import Vertical

from ropechat.chat.stepping import Lexicon, candidates_at, next_tokens, record, search
from ropechat.tui.screens.dialog import Dialog, bindings
from ropechat.tui.widgets.step_view import StepInput, StepView
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.widgets import Input

    from ropechat.chat.stepping import Place, Stepping
    from ropechat.engine.engine import Engine
    from ropechat.inspector.explain import Candidate
    from ropechat.inspector.text_reader import Done, Job
    from ropechat.tui.commands.keymap import Keymap

    Submit = Callable[[Job, Done], None]

END = "The answer ends here."
BATCH = 12  # candidates whose next tokens are computed together


class StepScreen(Dialog[bool]):
    """The candidates of the next token of an answer. The result is whether the model goes on from here.

    submit: runs a job in the engine's thread, and gives its result or exception in the app's.
    """

    BINDINGS = bindings("step")
    context = "step"
    heading = "step"
    items = (
        *(("↓ ↑ ⏎ 1-9", "take"), ("⌫", "take back"), ("type", "to find")),
        *("step.drawn", "step.go_on", "sheet.leave"),
    )

    def __init__(
        self, stepping: Stepping, about: str, submit: Submit, spell: Callable[[int], str], keymap: Keymap
    ) -> None:
        super().__init__(keymap)
        self.stepping, self._about, self._submit = stepping, about, submit
        self.view = StepView(spell, id="step_view")
        self._input = StepInput(id="step_input", compact=True, placeholder="Type a part of any token")
        self._serial = 0  # of the newest place
        self._is_looking_ahead = False  # whether what follows the candidates is being computed
        self._asked: set[int] = set()  # candidates of this place for which that was asked
        self._taking = False
        self._listed = ""  # the text whose tokens are listed
        self._takes_found = False  # whether the first one that is found is taken
        self._lexicon: Lexicon | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet whole broad"):
            yield self.view
            yield self._input
            yield self.key_hints

    def on_mount(self) -> None:
        self.title_with(self._about)
        self._input.focus()
        self._begin_step()

    # --- places ---

    def _begin_step(self) -> None:
        """Show what can come after the tokens so far."""
        self._serial += 1
        serial, spot, view = self._serial, self.stepping.spot, self.view
        view.steps, view.place, view.found, view.next_tokens, view.choice = spot.steps, None, None, {}, 0
        view.note, self._taking, self._asked = "", False, set()
        self._listed, self._takes_found = "", False
        self.say("")
        with self._input.prevent(StepInput.Changed):
            self._input.value = ""
        view.redraw()
        self._run(serial, lambda engine: candidates_at(engine, spot), self._computed)

    def _run(self, serial: int, job: Callable[[Engine], Any], done: Callable[[Any], None]) -> None:
        """Run a job for a place, unless another one is shown meanwhile."""

        def work(engine: Engine) -> Any:
            return job(engine) if serial == self._serial else None

        def finish(result: Any) -> None:
            if serial == self._serial and self.is_attached:
                done(result)

        self._submit(work, finish)

    def _computed(self, result: Place | BaseException | None) -> None:
        if isinstance(result, BaseException):
            self.view.note = one_line(str(result))
        elif result is None:
            self.view.note = (
                f"{END} {self.keymap.first('sheet.leave')} goes back to the chat, ⌫ takes it back."
            )
        else:
            self.view.place = result
            self.stepping.prompt_tokens = len(result.ids) - len(result.spot.steps)
        self.view.redraw()
        if self._input.value:
            self._search(self._input.value)
        else:
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Compute what would come after the candidates in sight, in one batch."""
        view, serial = self.view, self._serial
        place = view.place
        ids = [one.id for one in view.shown if one.id not in self._asked][:BATCH]
        if place is None or not ids or self._is_looking_ahead:
            return
        self._is_looking_ahead = True
        self._asked.update(ids)

        def done(result: Any) -> None:
            self._is_looking_ahead = False
            if serial != self._serial or not self.is_attached:
                self._look_ahead()
            elif isinstance(result, dict):
                view.next_tokens = {**view.next_tokens, **result}
                view.redraw()
                self._look_ahead()
            elif isinstance(result, BaseException):
                self.say(f"what would follow: {result}", "$error")

        self._submit(lambda engine: next_tokens(engine, place, ids) if serial == self._serial else {}, done)

    # --- keys ---

    def action_move(self, by: int) -> None:
        """Select another candidate."""
        self.view.move(by)
        self._look_ahead()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the selected candidate."""
        event.stop()
        if self._input.value != self._listed:
            self._takes_found = True
        elif (chosen := self.view.chosen) is not None:
            self._take(chosen.id)

    def on_step_input_digit(self, message: StepInput.Digit) -> None:
        """Take the candidate of a number."""
        listed = self.view.candidates
        if message.number <= len(listed):
            self._take(listed[message.number - 1].id)

    def on_step_view_picked(self, message: StepView.Picked) -> None:
        """Select what was clicked, or take it."""
        if message.takes and self.view.chosen is not None:
            self._take(self.view.chosen.id)
        else:
            self.action_move(message.choice - self.view.choice)

    def action_drawn(self) -> None:
        """Take what the sampler would draw."""
        if self.view.place is not None:
            self._take(self.view.place.drawn.id)

    def _take(self, id: int) -> None:
        place = self.view.place
        if place is None or self._taking:  # what is not on the screen cannot be chosen
            return
        if self.stepping.ended:
            self.dismiss(False)
            return
        self._taking = True

        def taken(result: Any) -> None:
            self._taking = False
            if isinstance(result, BaseException):
                self.say(f"not taken: {result}", "$error")
            elif not self.stepping.ended:
                self.stepping.take(result)
                self._begin_step()

        self._run(self._serial, lambda engine: record(engine, place, id), taken)

    def on_step_input_back(self) -> None:
        """Take back the last token."""
        if self.stepping.ended:
            self.dismiss(False)
        elif self.stepping.take_back():
            self._begin_step()
        else:
            self.say("nothing was taken yet")

    def action_go_on(self) -> None:
        """Close, and have the model go on from here."""
        if self.stepping.node is None:
            self.say("take a token first")
        else:
            self.dismiss(True)

    def action_leave(self) -> None:
        """Clear the filter, or close."""
        if self._input.value:
            self._input.value = ""
        else:
            self.dismiss(False)

    # --- the filter ---

    def on_input_changed(self, event: Input.Changed) -> None:
        """List the tokens with this text."""
        event.stop()
        self._takes_found = False
        self._search(event.value)

    def _search(self, words: str) -> None:
        place = self.view.place
        if place is None:  # which will be searched when it is known
            return
        if not words:
            self._list("", None)
            return

        def job(engine: Engine) -> list[Candidate] | None:
            if self._input.value != words:  # more was typed while this waited
                return None
            self._lexicon = self._lexicon or Lexicon(engine)
            return search(engine, place, self._lexicon, words)

        def done(result: Any) -> None:
            if isinstance(result, BaseException):
                self.say(f"not found: {result}", "$error")
            elif result is not None and self._input.value == words:
                self._list(words, result)

        self._run(self._serial, job, done)

    def _list(self, words: str, found: list[Candidate] | None) -> None:
        view, takes, self._takes_found = self.view, self._takes_found, False
        self._listed, view.found, view.choice = words, found, 0
        view.redraw()
        if takes and view.chosen is not None:
            self._take(view.chosen.id)
        else:
            self._look_ahead()
