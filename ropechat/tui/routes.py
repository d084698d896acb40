"""Which controller a message of a widget goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.tui.terminal.textual_compat import CompatApp

if TYPE_CHECKING:
    from textual.widgets import Input

    from ropechat.tui.commands.dispatch import Commands
    from ropechat.tui.controllers.answers import AnswersController
    from ropechat.tui.controllers.composer import ComposerController
    from ropechat.tui.controllers.drafts import DraftsController
    from ropechat.tui.controllers.find import FindController
    from ropechat.tui.controllers.inspector import InspectorController
    from ropechat.tui.controllers.keyboard import KeyboardController
    from ropechat.tui.controllers.models import ModelsController
    from ropechat.tui.controllers.sampling import SamplingController
    from ropechat.tui.controllers.sidebar import SidebarController
    from ropechat.tui.controllers.transcript import TranscriptController
    from ropechat.tui.controllers.view import View
    from ropechat.tui.widgets.bars import Bar, KeyClicked
    from ropechat.tui.widgets.composer import Composer
    from ropechat.tui.widgets.input import FindBar
    from ropechat.tui.widgets.inspector import Inspector
    from ropechat.tui.widgets.sidebar import Overview
    from ropechat.tui.widgets.token_transcript import TokenTranscript


class MessageRoutes(CompatApp):
    """Hands each message of a widget to its controller; the chat sets the controllers."""

    composer: Composer
    transcript: TokenTranscript
    inspector: Inspector
    find_bar: FindBar
    view: View
    commands: Commands
    path: TranscriptController
    writing: ComposerController
    drafts: DraftsController
    answers: AnswersController
    find: FindController
    reading: InspectorController
    keyboard: KeyboardController
    models: ModelsController
    sampling: SamplingController
    sidebar: SidebarController

    def _quit(self) -> None:
        raise NotImplementedError

    def refresh_status(self) -> None:
        """Bring the lines around the transcript up to date."""
        raise NotImplementedError

    def on_resize(self) -> None:
        self.call_after_refresh(self.refresh_status)

    def on_descendant_focus(self) -> None:
        if self.find.active and self.composer.has_focus:
            self.find.leave()
        self.refresh_status()

    def on_composer_leave(self) -> None:
        self._quit()

    def on_composer_page(self, message: Composer.Page) -> None:
        if message.direction < 0:
            self.transcript.action_page_up()
        else:
            self.transcript.action_page_down()

    def on_composer_sought(self, message: Composer.Sought) -> None:
        self.view.hint(message.words)

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
        if example := self.path.line_clicked(message.block, message.text):
            self.writing.take_example(example)

    def on_inspector_picked(self, message: Inspector.Picked) -> None:
        self.reading.pick(forks=message.forks)

    def on_bar_chosen(self, message: Bar.Chosen) -> None:
        self.call_later(self.commands.run, message.command)

    def on_key_clicked(self, message: KeyClicked) -> None:
        self.keyboard.press(message.symbol)

    def on_sampling_panel_changed(self) -> None:
        self.refresh_status()

    def on_sampling_panel_closed(self) -> None:
        self.sampling.close_panel()

    def on_models_screen_download_changed(self) -> None:
        self.models.watch_download()

    def on_overview_resized(self) -> None:
        self.refresh_status()

    def on_overview_chosen(self, message: Overview.Chosen) -> None:
        self.sidebar.choose(message.target)
