"""The chat application: composes widgets and controllers, and routes keys, messages and events to them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.containers import Container, Horizontal
from textual.widgets import Label, Static

from ropechat.chat.context import OverflowPolicy
from ropechat.chat.errors import exit_code
from ropechat.tui.commands import palette
from ropechat.tui.commands import registry as keys
from ropechat.tui.commands.dispatch import Commands
from ropechat.tui.controllers.answers import AnswersController
from ropechat.tui.controllers.composer import ComposerController
from ropechat.tui.controllers.drafts import DraftsController
from ropechat.tui.controllers.find import FindController
from ropechat.tui.controllers.frames import FramesController
from ropechat.tui.controllers.hints import HintsController
from ropechat.tui.controllers.history import HistoryController
from ropechat.tui.controllers.inspector import InspectorController
from ropechat.tui.controllers.keyboard import KeyboardController
from ropechat.tui.controllers.models import ModelsController
from ropechat.tui.controllers.overflow import OverflowController
from ropechat.tui.controllers.reader import ReaderController
from ropechat.tui.controllers.sampling import SamplingController
from ropechat.tui.controllers.settings import SettingsController
from ropechat.tui.controllers.sidebar import SidebarController
from ropechat.tui.controllers.stats import StatsController
from ropechat.tui.controllers.status import Lines, StatusController
from ropechat.tui.controllers.system_prompt import SystemPromptController
from ropechat.tui.controllers.terminal import TerminalController
from ropechat.tui.controllers.tips import TipsController
from ropechat.tui.controllers.transcript import TranscriptController
from ropechat.tui.controllers.view import SIDE_PANEL, View
from ropechat.tui.controllers.vocabularies import Vocabularies
from ropechat.tui.options import ChatOptions
from ropechat.tui.routes import MessageRoutes
from ropechat.tui.screens.dialog import Dialog
from ropechat.tui.widgets.bars import Bar
from ropechat.tui.widgets.composer import Composer
from ropechat.tui.widgets.input import FindBar
from ropechat.tui.widgets.inspector import Inspector
from ropechat.tui.widgets.sampling_panel import SamplingPanel
from ropechat.tui.widgets.side_panel import SidePanel
from ropechat.tui.widgets.sidebar import Overview
from ropechat.tui.widgets.stats import EngineFacts
from ropechat.tui.widgets.token_transcript import TokenTranscript

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.app import ComposeResult, SystemCommand
    from textual.await_complete import AwaitComplete
    from textual.binding import BindingType
    from textual.driver import Driver
    from textual.screen import Screen
    from textual.theme import Theme

    from ropechat.chat.live import LiveChat


class ChatApp(MessageRoutes):
    """Composer, transcript, title, gauge and footer around one running chat."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-normal"), (120, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (14, "-short"), (20, "-tall"), (24, "-roomy"), (30, "-large")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = list(keys.bindings())
    COMMANDS = {palette.ChatCommands}  # noqa: RUF012

    def __init__(self, chat: LiveChat, resume: str | None = None, look: ChatOptions | None = None) -> None:
        super().__init__(look or ChatOptions())
        self.keys_wanted = threading.Event()  # set once the chat given at the start is open
        self.chat, self.session, self.inference = chat, chat.session, chat.inference
        self._make_widgets()
        self._make_controllers(resume)

    def _make_widgets(self) -> None:
        self.title_bar, self.gauge, self.footer = Bar(id="title"), Bar(id="gauge"), Bar(id="footer")
        self.transcript = TokenTranscript(id="transcript")
        self.vocabularies = words = Vocabularies(self, self.session, self._respell)
        self.inspector = Inspector(words.text, id="inspector")
        self.sampling_panel = SamplingPanel(self.session, self.keymap, words, id="dials")
        self.engine_facts = EngineFacts(self.session, id="engine")
        self.side_panel = SidePanel(self.inspector, self.sampling_panel, self.engine_facts, id="rail")
        self.overview = Overview(id="overview")
        self.find_bar, self.found = FindBar(), Label("", id="found", markup=False)
        self.completions = Static("", id="completions", markup=False)
        self.tip = Static("", id="tip", markup=False)
        self.composer = Composer(lambda text: self.writing.send(text), self.keymap, id="composer")
        self.compose_line = Horizontal(id="compose")

    def _make_controllers(self, resume: str | None) -> None:
        chat, transcript = self.chat, self.transcript
        inspector, side_panel = self.inspector, self.side_panel
        self.view = view = View(
            *(self, self.keymap, transcript, self.composer),
            hint=lambda text: self.hints.say(text),
            refresh_status=self.refresh_status,
            closed=self._dialog_closed,
        )
        self.settings = SettingsController(view, self.look)
        self.hints = hints = HintsController(view)
        self.commands = Commands(view.hint, self.call_later)
        self.path = path = TranscriptController(chat, view, transcript)
        self.writing = writing = ComposerController(
            chat, view, path, self.composer, self.completions, self.commands.run_line
        )
        self.system_prompt = SystemPromptController(chat, view, path, writing)
        self.overflow = OverflowController(chat, view, path, writing, self.commands.run)
        self.sampling = SamplingController(
            *(chat, view, path, inspector, side_panel, self.sampling_panel, self.vocabularies)
        )
        self.stats = StatsController(chat, view, side_panel, self.engine_facts)
        self.answers = AnswersController(
            *(chat, view, path, writing, transcript, self.vocabularies, self.copy_to_clipboard)
        )
        self.find = FindController(view, transcript, self.find_bar, self.found)
        self.reading = InspectorController(
            *(view, transcript, inspector, side_panel, self.composer, self.find, self.answers),
            *(ReaderController(chat, view), self.settings.remember),
        )
        self.drafts = DraftsController(self.session.recorder, view, self.composer)
        self.history = HistoryController(
            *(chat, view, path, writing, self.drafts, hints, self.find, self.vocabularies),
            *(resume, self.keys_wanted),
            self.look.fixed,
        )
        self.tips = TipsController(chat, view, self.tip, self.settings.remember, wanted=self.look.tips)
        self.commands.ran = self.tips.ran
        self.models = ModelsController(chat, view, path, writing, self.sampling, self.look.model_folders)
        self.terminal = TerminalController(view, self.composer)
        hints.standing = (writing.standing_hint, self.answers.standing_hint, self.history.standing_hint)
        lines = Lines(self.title_bar, self.gauge, self.footer, self.compose_line)
        self.status = StatusController(
            *(chat, view, lines, transcript, hints, self.reading),
            download=self.models.download_words,
            figures=self.stats.figures,
            footer=(self.sampling.footer_keys, self.reading.footer_keys),
        )
        self.frames = FramesController(
            chat, self, path, self.react, self.reading.watch_newest, self.refresh_status
        )
        self.keyboard = KeyboardController(
            *(chat, view, writing, self.reading, self.sampling, hints),
            copy=self.copy_to_clipboard,
            leave=lambda: self.call_later(self._quit),
        )
        self.sidebar = SidebarController(
            *(chat, view, self.overview, transcript, side_panel, self.sampling_panel),
            *(self.history, self.answers, self.system_prompt, self.commands.run, self.settings.remember),
            wanted=self.look.overview,
        )
        self.commands.handlers |= {
            "view.theme": lambda words: self.action_change_theme(),
            "app.palette": lambda words: self.action_command_palette(),
            "app.quit": lambda words: self._quit(),
        }
        for controller in (
            *(self.system_prompt, self.overflow, self.sampling, self.stats, self.answers, self.find),
            *(self.reading, self.history, self.models, self.terminal, self.keyboard, self.sidebar),
            *(self.settings, path),
        ):
            self.commands.handlers |= controller.handlers()
        self.settings.apply = self.settings_by_name()

    def compose(self) -> ComposeResult:
        yield self.title_bar
        with Container(id="stage"):
            yield self.overview
            yield self.transcript
            yield self.side_panel
        with Horizontal(id="find"):
            yield Label("/ ", id="slash", markup=False)
            yield self.find_bar
            yield self.found
        yield self.completions
        with self.compose_line:
            yield Label("› ", id="prompt", markup=False)
            yield self.composer
        yield self.tip
        yield self.gauge
        yield self.footer

    # --- life ---

    def on_mount(self) -> None:
        """Show the first frame, then start loading."""
        self.composer.focus()
        self._apply_options()
        self.frames.start()
        self.theme_changed_signal.subscribe(self, self._theme_chosen)
        self.call_after_refresh(self._begin)

    def _theme_chosen(self, chosen: Theme) -> None:
        self.settings.remember_theme(chosen.name)
        self.refresh_status()

    def _apply_options(self) -> None:
        self.reading.use_view(self.look.view)
        if self.look.inspector and self.size.width >= SIDE_PANEL:
            self.reading.open()
        self.transcript.set_tint(self.look.tint)
        self.path.follows = self.look.follow
        self.session.when_full = OverflowPolicy(self.look.when_full)
        if not self.look.mouse:
            self.call_after_refresh(self.terminal.toggle_mouse)

    def get_driver_class(self) -> type[Driver]:
        """Replace Textual's driver for terminals by `ChatDriver`."""
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":
            return found
        from ropechat.tui.terminal.driver import ChatDriver

        return ChatDriver

    def _begin(self) -> None:
        self.view.give_keys(self.composer)
        self.refresh_status()
        self.inference.start()
        self.frames.resume()
        self.system_prompt.learn_personas()
        self.history.open_store()

    async def action_quit(self) -> None:
        """Quit at once; running work is cancelled."""
        self._quit()

    def _quit(self) -> None:
        error = self.session.load_error
        self.leave(exit_code(error) if error is not None else 0)

    def leave(self, code: int) -> None:
        """End with an exit code; running work is cancelled, and the typed text is kept."""
        self.drafts.keep()
        self.history.write_exports()
        if self.size.width >= SIDE_PANEL:
            self.settings.remember("inspector", self.inspector.display)
        self.settings.write()
        self.chat.leave()
        super().leave(code)

    # --- what `View` and its controllers call ---

    def refresh_status(self) -> None:
        """Bring title, gauge, footer and panels up to date; what did not change costs nothing."""
        self.status.refresh()
        self.tips.refresh()
        self.sampling.refresh_panel()
        self.stats.refresh_panel()
        self.sidebar.refresh()

    def _respell(self) -> None:
        """Draw what shows tokens of a model whose vocabulary was read."""
        self.inspector.respell()
        self.sampling_panel.redraw()

    def _dialog_closed(self) -> None:
        self.sidebar.look_again()
        self.system_prompt.learn_personas()

    def pop_screen(self) -> AwaitComplete:
        """Give the keys to the composer once a dialog is closed."""
        if isinstance(self.screen, Dialog):
            self.view.write()
        return super().pop_screen()

    def copy_to_clipboard(self, text: str) -> None:
        """Copy through the terminal and report it."""
        self.terminal.copy(text)

    # --- commands ---

    def action_command(self, id: str) -> None:
        """Run the command that a key is bound to."""
        self.commands.run(id)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The entries of the palette."""
        labels = {"view.toggle": self.status.other_view()}
        yield from palette.entries(self.keymap, labels, self._run_chosen)
        known = {name: one.dark for name, one in self.available_themes.items()}
        yield from palette.themes(known, lambda name: setattr(self, "theme", name))

    def _run_chosen(self, command: keys.Command) -> None:
        """Run a command of the palette; if it needs words, put its name into the composer."""
        if command.needs_words:
            self.writing.begin_line(f"/{command.slash} ")
        elif command.action:
            self.call_later(self.run_action, command.action, self.transcript)
        else:
            self.call_later(self.commands.run, command.id)

    # --- which key goes where ---

    async def on_event(self, event: events.Event) -> None:
        """Run key bindings of the transcript here, so that keys act in the order they are typed."""
        if isinstance(event, events.Key | events.Paste | events.MouseDown) and not event.is_forwarded:
            self.hints.disarm_by(event)
            if not self.view.covered and (key := self.keyboard.key_for_transcript(event)):
                await self.run_key_bindings(key)
                return
        await super().on_event(event)

    def on_app_blur(self, event: events.AppBlur) -> None:
        """Keep the focus while the terminal's window is not active."""
        event.prevent_default()

    def action_focus_next(self) -> None:
        """Tab goes through the fields of a dialog; in the chat the keys stay with the composer."""
        self._move_focus(super().action_focus_next)

    def action_focus_previous(self) -> None:
        """As `action_focus_next`."""
        self._move_focus(super().action_focus_previous)

    def _move_focus(self, move: Callable[[], None]) -> None:
        if self.view.covered:
            move()
        else:
            self.view.write()
