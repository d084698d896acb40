"""The chat application: composes widgets and features, and passes keys and messages to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.containers import Container, Horizontal
from textual.theme import ThemeProvider
from textual.widgets import Label, Static

from ropechat.chat.errors import exit_code
from ropechat.tui.base_app import BaseApp
from ropechat.tui.commands import palette
from ropechat.tui.commands import registry as keys
from ropechat.tui.features.answers import AnswersFeature
from ropechat.tui.features.chart import ChartFeature
from ropechat.tui.features.continuations import ContinuationsFeature
from ropechat.tui.features.frames import FramesFeature
from ropechat.tui.features.history import HistoryFeature
from ropechat.tui.features.keyboard import KeyboardFeature
from ropechat.tui.features.models import ModelsFeature
from ropechat.tui.features.overflow import OverflowFeature
from ropechat.tui.features.reading import FindFeature, ReadingFeature
from ropechat.tui.features.sampling import SamplingFeature
from ropechat.tui.features.settings import SettingsFeature
from ropechat.tui.features.sidebar import SidebarFeature
from ropechat.tui.features.status import FactsFeature, StatusFeature, TipsFeature
from ropechat.tui.features.stepping import StepFeature
from ropechat.tui.features.system_prompt import SystemPromptFeature
from ropechat.tui.features.terminal import TerminalFeature
from ropechat.tui.features.turns import TurnsFeature
from ropechat.tui.features.why import WhyFeature
from ropechat.tui.features.writing import DraftsFeature, WritingFeature
from ropechat.tui.format import status
from ropechat.tui.options import ChatOptions
from ropechat.tui.screens.dialog import Dialog
from ropechat.tui.ui import SIDE_PANEL, ChatUi
from ropechat.tui.vocabularies import Vocabularies
from ropechat.tui.widgets.bars import Bar, KeyClicked
from ropechat.tui.widgets.chart_panel import ChartPanel
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
    from textual.widgets import Input

    from ropechat.chat.live import LiveChat


class ChatApp(BaseApp):
    """Composer, transcript, title, gauge and footer around one running chat."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-normal"), (120, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (14, "-short"), (20, "-tall"), (24, "-roomy"), (30, "-large")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = list(keys.bindings())
    COMMANDS = {palette.ChatCommands}  # noqa: RUF012

    def __init__(self, chat: LiveChat, resume: str | None = None, options: ChatOptions | None = None) -> None:
        super().__init__(options or ChatOptions())
        self.chat, self.session, self.inference = chat, chat.session, chat.inference
        self.ui = ChatUi(self, chat, self.keymap, self.options, resume)
        self.keys_wanted = self.ui.opened  # for the terminal's driver
        self._make_widgets()
        self._make_features()

    def _make_widgets(self) -> None:
        ui = self.ui
        ui.vocabularies = words = Vocabularies(self, self.session, self.options.model_folders, self._respell)
        ui.title_bar, ui.gauge, ui.footer = Bar(id="title"), Bar(id="gauge"), Bar(id="footer")
        ui.reading_bar = Bar(id="reading")
        ui.transcript = self.transcript = TokenTranscript(id="transcript")
        ui.inspector = self.inspector = Inspector(words.text, id="inspector")
        ui.sampling_panel = SamplingPanel(self.session, self.keymap, words, id="sampling")
        ui.engine_facts = EngineFacts(self.session, id="engine")
        ui.side_panel = SidePanel(ui.inspector, ui.sampling_panel, ui.engine_facts, id="side_panel")
        ui.overview = Overview(id="overview")
        ui.chart = ChartPanel(id="chart")
        ui.find_bar, ui.found = FindBar(), Label("", id="found", markup=False)
        ui.completions = Static("", id="completions", markup=False)
        ui.tip = Static("", id="tip", markup=False)
        ui.composer = self.composer = Composer(
            lambda text: self.writing.send(text), self.keymap, id="composer"
        )
        ui.compose_line = Horizontal(id="compose")
        self.find_bar = ui.find_bar

    def _make_features(self) -> None:
        """Each feature uses those before it; they handle events and redraw in this order."""
        add = self.ui.add
        self.settings, self.terminal, self.turns = (
            add(SettingsFeature),
            add(TerminalFeature),
            add(TurnsFeature),
        )
        self.writing, self.drafts = add(WritingFeature), add(DraftsFeature)
        self.system_prompt, self.sampling = add(SystemPromptFeature), add(SamplingFeature)
        self.answers, self.find, self.reading = add(AnswersFeature), add(FindFeature), add(ReadingFeature)
        add(ContinuationsFeature)
        add(WhyFeature)
        self.history, self.models = add(HistoryFeature), add(ModelsFeature)
        add(OverflowFeature)
        add(StepFeature)
        self.chart = add(ChartFeature)
        add(FactsFeature)
        self.tips, self.status = add(TipsFeature), add(StatusFeature)
        self.sidebar, self.keyboard, self.frames = (
            add(SidebarFeature),
            add(KeyboardFeature),
            add(FramesFeature),
        )
        self.ui.handlers |= {
            "view.theme": lambda words: self.action_change_theme(),
            "app.palette": lambda words: self.action_command_palette(),
            "app.quit": lambda words: self._quit(),
        }

    def compose(self) -> ComposeResult:
        ui = self.ui
        yield ui.title_bar
        with Container(id="stage"):
            yield ui.overview
            yield ui.transcript
            yield ui.side_panel
        yield ui.chart
        with Horizontal(id="find"):
            yield Label("/ ", id="slash", markup=False)
            yield ui.find_bar
            yield ui.found
        yield ui.completions
        yield ui.reading_bar
        with ui.compose_line:
            yield Label("› ", id="prompt", markup=False)
            yield ui.composer
        yield ui.tip
        yield ui.gauge
        yield ui.footer

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
        self.ui.refresh()

    def _apply_options(self) -> None:
        self.reading.use_view(self.options.view)
        if self.options.inspector and self.size.width >= SIDE_PANEL:
            self.reading.open()
        self.transcript.set_tint(self.options.tint)
        if not self.options.mouse:
            self.call_after_refresh(self.terminal.toggle_mouse)

    def get_driver_class(self) -> type[Driver]:
        """Replace Textual's driver for terminals by `ChatDriver`."""
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":
            return found
        from ropechat.tui.terminal.driver import ChatDriver

        return ChatDriver

    def _begin(self) -> None:
        self.ui.give_keys(self.composer)
        self.ui.refresh()
        if self.keymap.notes:
            self.ui.hint("; ".join(self.keymap.notes))
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

    def _respell(self) -> None:
        """Draw what shows tokens of a model whose vocabulary was read."""
        self.inspector.respell()
        self.ui.sampling_panel.redraw()

    def pop_screen(self) -> AwaitComplete:
        """Give the keys to the composer once a dialog is closed."""
        if isinstance(self.screen, Dialog):
            self.ui.write()
        return super().pop_screen()

    def copy_to_clipboard(self, text: str) -> None:
        """Copy through the terminal and report it."""
        self.terminal.copy(text)

    # --- commands ---

    def action_command(self, id: str) -> None:
        """Run the command that a key is bound to."""
        self.ui.run(id)

    def action_command_palette(self) -> None:
        """Open the palette of commands."""
        if not isinstance(self.screen, palette.OncePalette):
            self.push_screen(palette.OncePalette())

    def search_themes(self) -> None:
        """Open the palette of themes."""
        self.push_screen(palette.OncePalette([ThemeProvider], placeholder="Search for themes…"))

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
            self.call_later(self.ui.run, command.id)

    # --- which key goes where ---

    async def on_event(self, event: events.Event) -> None:
        """Run key bindings of the transcript here, so that keys act in the order they are typed."""
        if isinstance(event, events.Key | events.Paste | events.MouseDown) and not event.is_forwarded:
            self.ui.disarm_by(event)
            key = None if self.ui.covered else self.keyboard.key_for_transcript(event)
            if key is not None and (
                await self.run_key_bindings(key.key) or not self.keyboard.begin_to_write(key)
            ):
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
        if self.ui.covered:
            move()
        else:
            self.ui.write()

    # --- messages of widgets ---

    def on_resize(self) -> None:
        self.call_after_refresh(self.ui.refresh)

    def on_descendant_focus(self) -> None:
        if self.find.active and self.composer.has_focus:
            self.find.leave()
        self.ui.refresh()

    def on_composer_leave(self) -> None:
        self._quit()

    def on_composer_page(self, message: Composer.Page) -> None:
        if message.direction < 0:
            self.transcript.action_page_up()
        else:
            self.transcript.action_page_down()

    def on_composer_sought(self, message: Composer.Sought) -> None:
        self.ui.hint(message.words)

    def on_text_area_changed(self) -> None:
        self.writing.offer()
        self.writing.count_soon()
        self.drafts.changed()

    def on_input_changed(self, message: Input.Changed) -> None:
        if message.input is self.find_bar:
            self.find.changed()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        if message.input is self.find_bar:
            self.find.submitted()

    def on_token_transcript_found(self) -> None:
        self.find.count()

    def on_token_transcript_moved(self, message: TokenTranscript.Moved) -> None:
        self.reading.moved(clicked=message.clicked)

    def on_token_transcript_choose(self, message: TokenTranscript.Choose) -> None:
        self.inspector.choose(message.step)

    def on_token_transcript_version(self, message: TokenTranscript.Version) -> None:
        self.answers.show_version(message.node, message.step)

    def on_token_transcript_line(self, message: TokenTranscript.Line) -> None:
        if message.block is self.turns.offer:
            self.call_later(self.ui.run, "model.first")
        elif example := self.turns.line_clicked(message.block, message.text):
            self.writing.take_example(example)

    def on_token_transcript_thought(self, message: TokenTranscript.Thought) -> None:
        place = message.block.line.find(status.ANSWER_NOW) if self.answers.thinks_now else -1
        if 0 <= place <= message.x:
            self.answers.answer_now()
        else:
            self.turns.toggle_thought(message.block)

    def on_token_transcript_code(self, message: TokenTranscript.Code) -> None:
        self.answers.copy_code_of(message.node, message.number)

    def on_token_transcript_foot(self, message: TokenTranscript.Foot) -> None:
        self.answers.resume_node(message.node)

    def on_inspector_picked(self, message: Inspector.Picked) -> None:
        self.reading.pick(forks=message.forks)

    def on_chart_panel_picked(self, message: ChartPanel.Picked) -> None:
        self.chart.pick(message.index)

    def on_bar_chosen(self, message: Bar.Chosen) -> None:
        self.call_later(self.ui.run, message.command)

    def on_key_clicked(self, message: KeyClicked) -> None:
        self.keyboard.press(message.symbol)

    def on_sampling_panel_changed(self) -> None:
        self.ui.refresh()

    def on_sampling_panel_closed(self) -> None:
        self.sampling.close_panel()

    def on_models_screen_download_changed(self) -> None:
        self.models.watch_download()

    def on_overview_resized(self) -> None:
        self.ui.refresh()

    def on_overview_chosen(self, message: Overview.Chosen) -> None:
        self.sidebar.choose(message.target)
