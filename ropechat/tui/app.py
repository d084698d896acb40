"""The chat application: keys and events in, session and widgets out."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, ClassVar

from textual.app import App, ComposeResult
from textual.containers import Container, Horizontal
from textual.theme import BUILTIN_THEMES
from textual.widgets import Label

from ropechat.chat import events as ev
from ropechat.chat.errors import exit_code, explain
from ropechat.chat.inference import Inference
from ropechat.chat.recorder import ConversationRecorder
from ropechat.chat.session import Session
from ropechat.conversation_tree import added_nothing
from ropechat.tui.commands import registry as keys
from ropechat.tui.commands.keymap import Keymap
from ropechat.tui.controllers.keyboard import Keyboard
from ropechat.tui.format import status as panel
from ropechat.tui.format import theme
from ropechat.tui.options import ChatOptions
from ropechat.tui.render.blocks import AnswerBlock, Block
from ropechat.tui.screens.dialog import Sheet
from ropechat.tui.terminal.screen import leave_on_signals
from ropechat.tui.widgets.bars import Bar, cells, whole_items
from ropechat.tui.widgets.composer import Composer
from ropechat.tui.widgets.sampling_panel import Dials
from ropechat.tui.widgets.stats import EngineFacts
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.await_complete import AwaitComplete
    from textual.binding import BindingType
    from textual.driver import Driver
    from textual.timer import Timer

    from ropechat.chat.protocols import ChatEngine
    from ropechat.sampling import Sampling
    from ropechat.store.store import Store
    from ropechat.trace import Step
    from ropechat.tui.commands.dispatch import Typed

FRAMES = 30.0  # per second, while the model works
FRAMES_REMOTE = 15.0
PANELS = 0.2  # seconds between two looks of title and gauge at what the model does
FIRST_TOKEN_HOLD_S = 0.025  # seconds that nothing is drawn while a first token is awaited

BUILTIN_THEMES.update({own.name: own for own in theme.OWN_THEMES})  # known before the first frame is styled


class ChatApp(Keyboard):
    """Composer, transcript, title, gauge and footer around one session and one inference thread."""

    TITLE = "ropechat"
    CSS_PATH = "app.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-normal"), (120, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (14, "-short"), (20, "-tall"), (24, "-roomy"), (30, "-large")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = list(keys.bindings())

    def __init__(
        self,
        load: Callable[[], ChatEngine],
        model: str,
        sampling: Sampling,
        system: str | None = None,
        store: Store | None = None,
        resume: str | None = None,
        look: ChatOptions | None = None,
    ) -> None:
        look = look or ChatOptions()
        self.set_reactive(App.theme, theme.choose_theme(os.environ, look.theme))
        super().__init__()
        self.look, self.keymap = look, Keymap(look.keys)
        self.session = Session(one_line(model), sampling, system, recorder=ConversationRecorder(store))
        self.resume, self.model = resume, model
        self.inference = Inference(wake=self._wake)
        self.inference.submit(ev.Load(load))  # before any question, however early that is typed
        self.outcome = 70  # until the app ends as it should
        self.title_bar, self.gauge, self.footer = Bar(id="title"), Bar(id="gauge"), Bar(id="footer")
        self.dials = Dials(self.session, self.keymap, self.inspector.spelled, id="dials")
        self.engine_facts = EngineFacts(self.session, id="engine")
        self.rail.hold(self.dials, self.engine_facts)
        self.composer = Composer(self._send, self.keymap, id="composer")
        self._blocks: dict[int, AnswerBlock] = {}
        self._ticker: Timer | None = None
        self._counter: Timer | None = None
        self._drawn = 0.0
        self._held: ExitStack | None = None

    def compose(self) -> ComposeResult:
        """Title, transcript, composer, gauge, footer."""
        yield self.title_bar
        with Container(id="stage"):
            yield self.overview
            yield self.transcript
            yield self.rail
        with Horizontal(id="find"):
            yield Label("/ ", id="slash", markup=False)
            yield self.find_bar
            yield self.found
        yield self.completions
        with self.compose_line:
            yield Label("› ", id="prompt", markup=False)
            yield self.composer
        yield self.gauge
        yield self.footer

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our own colour names, for themes that lack them."""
        return dict(theme.DEFAULTS)

    # --- life ---

    def on_mount(self) -> None:
        """Show the first frame, then start loading."""
        self.composer.focus()
        self.apply_look()
        rate = FRAMES_REMOTE if "SSH_CONNECTION" in os.environ else FRAMES
        self._ticker = self.set_interval(1 / rate, self._tick, pause=True)
        self.theme_changed_signal.subscribe(self, lambda _: self._redraw())
        if not self.is_headless:
            leave_on_signals(self._leave)
        self.call_after_refresh(self._begin)

    def get_driver_class(self) -> type[Driver]:
        """Ours in the place of Textual's for terminals."""
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":
            return found
        from ropechat.tui.terminal.driver import ChatDriver

        return ChatDriver

    def _begin(self) -> None:
        self.give_keys(self.composer)
        self._redraw()
        self.inference.start()
        if self._ticker is not None:
            self._ticker.resume()
        self.learn_personas()
        self.open_store()

    async def action_quit(self) -> None:
        """Quit at once; whatever runs is cancelled."""
        error = self.session.load_error
        self._leave(exit_code(error) if error is not None else 0)

    def _leave(self, code: int) -> None:
        self.downloads.pause()
        if self.session.last is not None and self.session.last.request is not None:
            self.inference.cancel(self.session.last.request)
        self.outcome = code
        self.exit(return_code=code)

    def _fatal_error(self) -> None:
        """Textual would print a traceback with all local values, the chat among them; only when asked for."""
        if os.environ.get("ROPECHAT_DEBUG"):
            super()._fatal_error()
        else:
            self._close_messages_no_wait()

    # --- asking and stopping ---

    @property
    def _completes(self) -> bool:
        """Does the model continue text instead of answering?"""
        return self.session.info is not None and not self.session.info.has_chat_template

    def _answer_title(self) -> str:
        info = self.session.info
        return one_line(info.name) if info else self.session.model

    def action_stop(self) -> None:
        """Stop the answer; with nothing to stop, move between composer and transcript."""
        if self._stop() or self.session.generating or self.step_back():
            return
        if self.has_keys(self.composer):
            self.give_keys(self.transcript)
            self._redraw()
        else:
            self.action_write()

    def _stop(self) -> bool:
        turn = self.session.stop()
        if turn is None or turn.request is None:
            return False
        self.inference.cancel(turn.request)
        self._redraw()
        return True

    def action_interrupt(self) -> None:
        """ctrl+c: stop, or copy what is selected, or clear the draft, or quit when pressed twice."""
        selected = self.composer.selected_text or self.screen.get_selected_text()
        if self._stop() or self.session.generating:
            return
        if selected:
            self.copy_to_clipboard(selected)
        elif self.composer.text and len(self.screen_stack) == 1:
            self.clear_draft()
        elif self._again("chat.interrupt", f"{self.keymap.named('chat.interrupt')} again quits"):
            self.call_later(self.action_quit)

    def action_new_chat(self) -> None:
        """Begin a new chat; asks first when nothing is kept."""
        self.action_write()
        key = self.keymap.named("chat.new")
        drops = self.session.turns and self.session.recorder.store is None
        if not drops or self._again("chat.new", f"{key} again drops this chat and begins a new one"):
            self.when_idle(self.begin_chat)

    def typed(self) -> dict[str, Typed]:
        """Also: stop, which does less than its key."""
        return {**super().typed(), "chat.stop": self._stop_typed}

    def _stop_typed(self, words: str) -> str:
        return (
            "" if self._stop() or self.session.generating else "nothing to stop: no answer is being written"
        )

    def pop_screen(self) -> AwaitComplete:
        """People write once a sheet is closed."""
        if isinstance(self.screen, Sheet):
            self.action_write()
        return super().pop_screen()

    # --- events of the inference thread ---

    def _submit(self, request: ev.Request) -> None:
        self.inference.submit(request)
        if isinstance(request, ev.Reply):
            self._hold()
        if self._ticker is not None:
            self._ticker.resume()
        self._redraw()

    def _wake(self) -> None:
        """Called from the inference thread when people wait for a frame.

        The transcript's queue is short; the app's own waits for keys, and for sheets that come and go.
        """
        with suppress(RuntimeError):  # the loop is closed: nobody looks any more
            self.transcript.call_later(self._tick)

    def _hold(self) -> None:
        """Draw nothing until a first token is there, or for a moment: two pictures take twice as long."""
        if self._held is None:
            self._held = ExitStack()
            self._held.enter_context(self.batch_update())
            self._held_size = self.size
            self.set_timer(FIRST_TOKEN_HOLD_S, self._let_go)

    def _let_go(self) -> None:
        """Draw again."""
        held, self._held = self._held, None
        if held is not None:
            held.close()
            if self.size == self._held_size:
                self.screen.check_idle()
            else:
                self.screen.refresh()

    def _tick(self) -> None:
        """Take in all that happened since the last frame."""
        steps: list[Step] = []
        serial = 0
        for event in self.inference.drain():
            if not self.session.apply(event):
                continue
            if isinstance(event, ev.TokenGenerated | ev.PrefixAccepted):
                steps += [event.step] if isinstance(event, ev.TokenGenerated) else self.began(event)
                serial = event.serial
                continue
            self._feed(serial, steps)
            self._react(event)
        self._feed(serial, steps)
        if self.session.last is None or self.session.last.answer.first_at is not None:
            self._let_go()
        self.watch_newest()
        if not self.session.generating or time.monotonic() - self._drawn > PANELS:
            self._drawn = time.monotonic()
            self._redraw()
        if not self.inference.busy and self._ticker is not None:
            self._ticker.pause()

    def _feed(self, serial: int, steps: list[Step]) -> None:
        if steps:
            self.transcript.feed(self._blocks[serial], steps)
            steps.clear()

    def _react(self, event: ev.EngineEvent) -> None:
        match event:
            case ev.ModelLoaded(info):
                self.know(info)
                self._loaded()
            case ev.Notice(text):
                self._notice("notice", text, len(self.transcript.blocks) - 2 * self.session.generating)
            case ev.Started(serial, _, ids):
                self._blocks[serial].prompt = ids
            case ev.LoadFailed():
                self.not_loaded(event)
            case ev.ContextTruncated():
                self.show_path()
            case ev.TooLong():
                self.too_long(event)
            case ev.PreviewReady():
                self.on_previewed(event)
            case ev.TextsEncoded():
                self.on_encoded(event)
            case ev.Finished(serial, _) | ev.Failed(serial, _):
                self._ended(serial)

    def _loaded(self) -> None:
        self.composer.placeholder = "Text to continue" if self._completes else "Message"
        for block in self._blocks.values():
            if block.live:
                block.title = self._answer_title()
        self.transcript.redraw()
        self._welcome()
        self._count()
        self.show_resumed()
        self.loaded_another()

    def _ended(self, serial: int) -> None:
        block, turn = self._blocks[serial], self.session.last
        assert turn is not None
        answer = turn.answer
        if len(block.steps) > len(answer.steps):  # it never began
            self.show_path()
            block = self._blocks[serial]
        block.note = panel.summarize(answer)
        self.transcript.finish(block)
        if answer.error is not None:
            self._notice("error", f"The answer broke off: {explain(answer.error)}")
        elif answer.reason == "context":
            self._notice(
                "notice",
                f"The context is full ({self.session.context:,} tokens), so the answer ends here. "
                f"What then happens to a question: /context, now {self.session.when_full}.",
            )
        elif turn.node is not None and added_nothing(self.session.tree[turn.node]):
            self._notice("notice", "The model had ended its answer: it added nothing.")
        if not answer.counts:
            self._notice("notice", "No answer, so this question is not part of what the model reads next.")
        self.count_soon()
        self.idle_again()

    # --- the screen ---

    def _notice(self, kind: str, text: str, at: int | None = None) -> Block:
        block = Block("error" if kind == "error" else "notice")
        block.say(text)
        self.transcript.add(block, at)
        return block

    def _redraw(self) -> None:
        """Bring title, gauge and footer up to date; lines that did not change cost nothing."""
        width = self.size.width
        left, right = panel.title(self.session, width)
        if words := self.download_words():
            right.insert(0, (f"  {words}  ", "$primary"))
        self.title_bar.show(left, right)
        taken = panel.gauge(self.session, width)
        figures = self.with_legend(self.figures(width), width, width - cells(taken) - 2)
        if cells(taken) + cells(figures) > width:
            taken = panel.gauge(self.session, width, share=False)
        self.gauge.show(taken, figures)
        hint = self._hint or self.standing_hint()
        if hint:
            self.footer.say(hint, max(1, self.size.height // 3))
        else:
            self.footer.show(whole_items(self.footer_keys(), width))
        self.show_reading()
        self.show_rail()

    def on_resize(self) -> None:
        """Fit the lines to the new width."""
        self.call_after_refresh(self._redraw)

    def on_descendant_focus(self) -> None:
        """The footer tells the keys of what has the focus; who writes looks for nothing any more."""
        if self.finding and self.composer.has_focus:
            self.leave_find()
        self._redraw()
