"""The chat application: composes widgets and controllers, and routes keys, messages and events to them."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import App, ComposeResult, SystemCommand
from textual.containers import Container, Horizontal
from textual.widgets import Label, Static

from ropechat.chat import events as ev
from ropechat.chat.context import OverflowPolicy
from ropechat.chat.errors import exit_code
from ropechat.chat.live import LiveChat
from ropechat.tui.commands import registry as keys
from ropechat.tui.commands.dispatch import Commands
from ropechat.tui.commands.keymap import Keymap
from ropechat.tui.controllers.answers import AnswersController
from ropechat.tui.controllers.composer import ComposerController
from ropechat.tui.controllers.find import FindController
from ropechat.tui.controllers.frames import FramesController
from ropechat.tui.controllers.hints import HintsController
from ropechat.tui.controllers.history import HistoryController
from ropechat.tui.controllers.inspector import InspectorController
from ropechat.tui.controllers.keyboard import KeyboardController
from ropechat.tui.controllers.models import ModelsController
from ropechat.tui.controllers.overflow import OverflowController
from ropechat.tui.controllers.sampling import SamplingController
from ropechat.tui.controllers.sidebar import SidebarController
from ropechat.tui.controllers.stats import StatsController
from ropechat.tui.controllers.status import Lines, StatusController
from ropechat.tui.controllers.system_prompt import SystemPromptController
from ropechat.tui.controllers.terminal import TerminalController
from ropechat.tui.controllers.transcript import TranscriptController
from ropechat.tui.format import theme
from ropechat.tui.options import ChatOptions
from ropechat.tui.screens.dialog import Sheet
from ropechat.tui.terminal.screen import leave_on_signals
from ropechat.tui.terminal.textual_compat import CompatApp
from ropechat.tui.widgets.bars import Bar
from ropechat.tui.widgets.composer import Composer
from ropechat.tui.widgets.input import FindBar
from ropechat.tui.widgets.inspector import Inspector
from ropechat.tui.widgets.reader import Reader
from ropechat.tui.widgets.sampling_panel import Dials
from ropechat.tui.widgets.side_panel import Rail
from ropechat.tui.widgets.sidebar import Overview
from ropechat.tui.widgets.stats import EngineFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.await_complete import AwaitComplete
    from textual.binding import BindingType
    from textual.driver import Driver
    from textual.screen import ModalScreen, Screen
    from textual.theme import Theme
    from textual.widget import Widget
    from textual.widgets import Input, TextArea

    from ropechat.chat.protocols import ChatEngine, ModelLoader
    from ropechat.sampling import Sampling
    from ropechat.store.store import Store
    from ropechat.tui.commands.dispatch import Handler
    from ropechat.tui.render.blocks import Block


class ChatApp(CompatApp):
    """Composer, transcript, title, gauge and footer around one running chat; the `View` of controllers."""

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
        models: ModelLoader | None = None,
    ) -> None:
        self.look = look or ChatOptions()
        self.set_reactive(App.theme, theme.choose_theme(os.environ, self.look.theme))
        super().__init__()
        self.keymap = Keymap(self.look.keys)
        self.keys_wanted = threading.Event()  # set once a key finds the chat that was asked for
        self.outcome = 70  # until the app ends as it should
        self.chat = LiveChat(load, model, sampling, system, store, models, wake=lambda: self.frames.wake())
        self.session, self.inference = self.chat.session, self.chat.inference
        self._make_widgets()
        self._make_controllers(resume)

    def _make_widgets(self) -> None:
        self.title_bar, self.gauge, self.footer = Bar(id="title"), Bar(id="gauge"), Bar(id="footer")
        self.transcript, self.inspector = Reader(id="transcript"), Inspector(id="inspector")
        self.dials = Dials(self.session, self.keymap, self.inspector.spelled, id="dials")
        self.engine_facts = EngineFacts(self.session, id="engine")
        self.rail = Rail(self.inspector, self.dials, self.engine_facts, id="rail")
        self.overview = Overview(id="overview")
        self.find_bar, self.found = FindBar(), Label("", id="found", markup=False)
        self.completions = Static("", id="completions", markup=False)
        self.composer = Composer(self._send, self.keymap, id="composer")
        self.compose_line = Horizontal(id="compose")

    def _make_controllers(self, resume: str | None) -> None:
        chat, transcript, inspector, rail = self.chat, self.transcript, self.inspector, self.rail
        self.path = path = TranscriptController(chat, self, transcript)
        self.writing = writing = ComposerController(
            chat, self, path, self.composer, self.completions, self._run_line
        )
        self.system_prompt = SystemPromptController(chat, self, path)
        self.overflow = OverflowController(chat, self, path, writing)
        self.sampling = SamplingController(chat, self, transcript, inspector, rail, self.dials)
        self.stats = StatsController(chat, self, rail, self.engine_facts)
        self.answers = AnswersController(
            chat, self, path, writing, transcript, inspector, self.copy_to_clipboard
        )
        self.find = FindController(self, transcript, self.find_bar, self.found)
        self.reading = InspectorController(
            self, transcript, inspector, rail, self.composer, self.find, self.answers
        )
        self.history = HistoryController(chat, self, path, writing, resume, self.keys_wanted)
        self.models = ModelsController(chat, self, path, self.sampling)
        self.hints = HintsController(
            self, (writing.standing_hint, self.answers.standing_hint, self.history.standing_hint)
        )
        self.terminal = TerminalController(self, self, self.composer)
        lines = Lines(self.title_bar, self.gauge, self.footer, self.compose_line)
        self.status = StatusController(
            *(chat, self, lines, transcript, self.hints, self.reading),
            download=self.models.download_words,
            figures=self.stats.figures,
            footer=(self.sampling.footer_keys, self.reading.footer_keys),
        )
        self.frames = FramesController(
            chat, self, path, self._react, self.reading.watch_newest, self.refresh_status
        )
        self.keyboard = KeyboardController(
            *(chat, self, writing, self.reading, self.sampling, self.hints),
            copy=self.copy_to_clipboard,
            leave=lambda: self.call_later(self._quit),
        )
        handlers = self._handlers()
        for controller in (
            *(self.system_prompt, self.overflow, self.sampling, self.answers),
            *(self.find, self.reading, self.history, self.models, self.terminal, self.keyboard),
        ):
            handlers |= controller.handlers()
        self.commands = Commands(handlers, self.hint, self.call_later)
        self.sidebar = SidebarController(
            *(chat, self, self.overview, transcript, rail, self.dials),
            *(self.history, self.answers, self.system_prompt, self.commands.run),
            wanted=self.look.overview,
        )

    def _handlers(self) -> dict[str, Handler]:
        """The commands of the app itself."""
        return {
            "chat.new": lambda words: self._new_chat(),
            "engine.facts": lambda words: self.stats.open(),
            "view.overview": lambda words: self.sidebar.toggle(),
            "view.theme": lambda words: self.action_change_theme(),
            "app.palette": lambda words: self.action_command_palette(),
            "app.help": lambda words: self._open_help(),
            "app.quit": lambda words: self._quit(),
        }

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

    @property
    def available_themes(self) -> dict[str, Theme]:
        """Textual's themes and ours; `App.__init__` needs the chosen one for its first style sheet."""
        return super().available_themes | {own.name: own for own in theme.OWN_THEMES}

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our own colour names, for themes that lack them."""
        return dict(theme.DEFAULTS)

    # --- life ---

    def on_mount(self) -> None:
        """Show the first frame, then start loading."""
        self.composer.focus()
        self._apply_options()
        self.frames.start()
        self.theme_changed_signal.subscribe(self, lambda _: self.refresh_status())
        if not self.is_headless:
            leave_on_signals(self.leave)
        self.call_after_refresh(self._begin)

    def _apply_options(self) -> None:
        self.set_keymap(self.keymap.changes)
        self.transcript.set_tint(self.look.tint)
        self.path.follows = self.look.follow
        self.session.when_full = OverflowPolicy(self.look.when_full)
        if not self.look.mouse:
            self.call_after_refresh(self.terminal.toggle_mouse)

    def get_driver_class(self) -> type[Driver]:
        """Ours in the place of Textual's for terminals."""
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":
            return found
        from ropechat.tui.terminal.driver import ChatDriver

        return ChatDriver

    def _begin(self) -> None:
        self.give_keys(self.composer)
        self.refresh_status()
        self.inference.start()
        self.frames.resume()
        self.system_prompt.learn_personas()
        self.history.open_store()

    async def action_quit(self) -> None:
        """Quit at once; whatever runs is cancelled."""
        self._quit()

    def _quit(self) -> None:
        error = self.session.load_error
        self.leave(exit_code(error) if error is not None else 0)

    def leave(self, code: int) -> None:
        """End with an exit code; whatever runs is cancelled."""
        self.chat.leave()
        self.outcome = code
        self.exit(return_code=code)

    # --- events of the inference thread ---

    def _react(self, event: ev.EngineEvent) -> None:
        match event:
            case ev.ModelLoaded(info):
                self.inspector.spell = info.token_bytes
                self._loaded()
            case ev.Notice(text):
                self.notice("notice", text, len(self.transcript.blocks) - 2 * self.session.generating)
            case ev.Started():
                self.path.started(event)
            case ev.LoadFailed():
                self.models.not_loaded(event)
            case ev.ContextTruncated():
                self.path.show()
            case ev.TooLong():
                self.overflow.too_long(event)
            case ev.PreviewReady():
                self.answers.previewed(event)
            case ev.TextsEncoded():
                self.sampling.encoded(event)
            case ev.Finished(serial, _) | ev.Failed(serial, _):
                self.path.ended(serial)
                self.writing.count_soon()
                self.answers.ended(called_off=self.chat.run_waiting())

    def _loaded(self) -> None:
        self.composer.placeholder = "Text to continue" if self.chat.completes else "Message"
        self.path.model_loaded()
        self.count_draft()
        self.history.show_resumed()
        self.models.loaded_another()

    # --- what controllers ask of the screen: see `View` ---

    def hint(self, text: str) -> None:
        """Say something at the bottom of the screen for a while."""
        self.hints.say(text)

    def notice(self, kind: str, text: str, at: int | None = None) -> Block:
        """Put a notice into the transcript."""
        return self.path.notice(kind, text, at)

    def refresh_status(self) -> None:
        """Bring title, gauge, footer and panels up to date; what did not change costs nothing."""
        self.status.refresh()
        self.sampling.refresh_panel()
        self.stats.refresh_panel()
        self.sidebar.refresh()

    def count_draft(self) -> None:
        """Have the tokens of the draft counted."""
        self.writing.count()

    def push(self, screen: ModalScreen[Any], chosen: Callable[..., None]) -> None:
        """Open a dialog; `chosen` gets its result, unless that is None."""

        def closed(result: object) -> None:
            self.sidebar.look_again()
            self.system_prompt.learn_personas()
            if result is not None:
                chosen(result)
            self.refresh_status()

        self.push_screen(screen, closed)

    def pop_screen(self) -> AwaitComplete:
        """Keys go to the composer once a dialog is closed."""
        if isinstance(self.screen, Sheet):
            self.write()
        return super().pop_screen()

    def closes(self, dialog: type[ModalScreen[Any]]) -> bool:
        """Close this kind of dialog if it is on top; returns whether any dialog is open."""
        covered = self.covered
        if isinstance(self.screen, dialog):
            self.screen.dismiss(None)
        return covered

    @property
    def covered(self) -> bool:
        """Is a dialog over the chat?"""
        return len(self.screen_stack) > 1

    def way_to(self, id: str) -> str:
        """How a command is given from where the keyboard is: by its key, or typed."""
        command = keys.BY_ID[id]
        by_name = command.slash and command.context == "transcript" and not self.transcript.has_focus
        return f"/{command.slash}" if by_name else self.keymap.named(id)

    @property
    def chat_focus(self) -> Widget | None:
        """The widget of the chat that has the keys, or will have them once the dialog over it is closed."""
        return self.screen_stack[0].focused if self.screen_stack else None

    def give_keys(self, widget: Widget) -> None:
        """Keys go to a widget of the chat from now on: the next one, however soon it comes."""
        widget.screen.set_focus(widget)

    def write(self) -> None:
        """Keys go to the composer."""
        self.transcript.commands = False
        self.give_keys(self.composer)
        self.refresh_status()

    # --- commands ---

    def action_command(self, id: str) -> None:
        """What a key does that is bound to a command."""
        self.commands.run(id)

    def _run_line(self, line: str) -> bool:
        known = self.commands.run_line(line)
        self.refresh_status()
        return known

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette: every command, also of the transcript; those that need words begin to be typed."""
        for command in (*keys.COMMANDS, *keys.READING):
            if command.id not in keys.NO_PALETTE:
                label = (
                    self.status.other_view() if command.id == "view.toggle" else command.label
                ).capitalize()
                shown = self.keymap.shown(command.id)
                help = f"{command.help}  ({shown})" if shown else command.help
                yield SystemCommand(label, help, self._doing(command))

    def _doing(self, command: keys.Command) -> Callable[[], object]:
        if command.needs_words:
            return lambda: self.writing.begin_line(f"/{command.slash} ")
        if command.action:
            return lambda: self.call_later(self.run_action, command.action, self.transcript)
        return lambda: self.call_later(self.commands.run, command.id)

    def _new_chat(self) -> None:
        """Begin a new chat; asks first when nothing is kept."""
        self.write()
        key = self.keymap.named("chat.new")
        drops = self.session.turns and self.session.recorder.store is None
        if not drops or self.hints.again("chat.new", f"{key} again drops this chat and begins a new one"):
            self.chat.when_idle(self.history.begin_chat)

    def _open_help(self) -> None:
        """The keys and commands, those of this place first."""
        from ropechat.tui.screens.help import HelpScreen

        self.push_screen(HelpScreen(self.keymap, self._keys_of()))

    def _keys_of(self) -> str:
        """Where keys go now."""
        if isinstance(self.screen, Sheet):
            return self.screen.context
        return "transcript" if self.chat_focus is self.transcript else "composer"

    def copy_to_clipboard(self, text: str) -> None:
        """Copy through the terminal, and say so."""
        self.terminal.copy(text)

    # --- which key goes where ---

    async def on_event(self, event: events.Event) -> None:
        """Keys of the transcript act before the next event is looked at: none can overtake another."""
        if isinstance(event, events.Key | events.Paste | events.MouseDown) and not event.is_forwarded:
            self.hints.disarm_by(event)
            if not self.covered and (key := self.keyboard.key_for_transcript(event)):
                await self.run_key_bindings(key)
                return
        await super().on_event(event)

    def on_app_blur(self, event: events.AppBlur) -> None:
        """The window is left: keys go where they went once it is entered again, and the footer says so."""
        event.prevent_default()

    def action_focus_next(self) -> None:
        """Tab goes through the fields of a sheet; in the chat it stays where people write."""
        if len(self.screen_stack) > 1:
            super().action_focus_next()
        else:
            self.write()

    def action_focus_previous(self) -> None:
        """As tab."""
        if len(self.screen_stack) > 1:
            super().action_focus_previous()
        else:
            self.write()

    # --- messages of widgets ---

    def _send(self, text: str) -> bool:
        return self.writing.send(text)

    def on_resize(self) -> None:
        """Fit the lines to the new width."""
        self.call_after_refresh(self.refresh_status)

    def on_descendant_focus(self) -> None:
        """The footer tells the keys of what has the focus; who writes looks for nothing any more."""
        if self.find.active and self.composer.has_focus:
            self.find.leave()
        self.refresh_status()

    def on_composer_leave(self) -> None:
        """ctrl+d on an empty line."""
        self._quit()

    def on_composer_page(self, message: Composer.Page) -> None:
        """Scroll the transcript without leaving the composer."""
        if message.direction < 0:
            self.transcript.action_page_up()
        else:
            self.transcript.action_page_down()

    def on_composer_sought(self, message: Composer.Sought) -> None:
        """ctrl+r, or tab: say how it goes on."""
        self.hint(message.words)

    def on_text_area_changed(self, _: TextArea.Changed) -> None:
        """Offer completions; count the draft once the typing rests."""
        self.writing.offer()
        self.writing.count_soon()

    def on_input_changed(self, message: Input.Changed) -> None:
        """Another text is looked for."""
        if message.input is self.find_bar:
            self.find.changed()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Enter in the field of what is looked for."""
        if message.input is self.find_bar:
            self.find.submitted()

    def on_reader_found(self) -> None:
        """Another match is the current one."""
        self.find.count()

    def on_reader_moved(self, message: Reader.Moved) -> None:
        """The cursor is on another token."""
        self.reading.moved(clicked=message.clicked)

    def on_reader_choose(self, message: Reader.Choose) -> None:
        """Another alternative."""
        self.inspector.choose(message.step)

    def on_reader_take(self) -> None:
        """The token, or the alternative, is to be used."""
        self.reading.take()

    def on_reader_number(self, message: Reader.Number) -> None:
        """The alternative of this rank is to be used."""
        self.reading.take_number(message.number)

    def on_reader_other(self) -> None:
        """Any other token is wanted."""
        self.reading.take_other()

    def on_reader_ask_preview(self) -> None:
        """How would it go on?"""
        self.reading.preview()

    def on_reader_bias(self, message: Reader.Bias) -> None:
        """The alternative is to become more or less likely."""
        self.sampling.bias_chosen(message.by)

    def on_dials_changed(self) -> None:
        """Another sampling, from the next answer on."""
        self.refresh_status()

    def on_dials_closed(self) -> None:
        """The settings beside the transcript are left."""
        self.sampling.close_panel()

    def on_models_screen_download_changed(self) -> None:
        """A download works, or does not any more."""
        self.models.watch_download()

    def on_overview_resized(self) -> None:
        """It has other rows than before."""
        self.refresh_status()

    def on_overview_chosen(self, message: Overview.Chosen) -> None:
        """A chat, a branch, a persona, or the dialog with all of a part."""
        self.sidebar.choose(message.target)
