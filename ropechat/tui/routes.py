"""The controllers of messages of widgets, events of the inference thread and changed settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.context import OverflowPolicy
from ropechat.tui.base_app import BaseApp
from ropechat.tui.format import theme

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.widgets import Input

    from ropechat.chat.live import LiveChat
    from ropechat.chat.session import Session
    from ropechat.tui.commands.dispatch import Commands
    from ropechat.tui.controllers.answers import AnswersController
    from ropechat.tui.controllers.composer import ComposerController
    from ropechat.tui.controllers.drafts import DraftsController
    from ropechat.tui.controllers.find import FindController
    from ropechat.tui.controllers.history import HistoryController
    from ropechat.tui.controllers.inspector import InspectorController
    from ropechat.tui.controllers.keyboard import KeyboardController
    from ropechat.tui.controllers.models import ModelsController
    from ropechat.tui.controllers.overflow import OverflowController
    from ropechat.tui.controllers.sampling import SamplingController
    from ropechat.tui.controllers.sidebar import SidebarController
    from ropechat.tui.controllers.tips import TipsController
    from ropechat.tui.controllers.transcript import TranscriptController
    from ropechat.tui.controllers.view import View
    from ropechat.tui.controllers.vocabularies import Vocabularies
    from ropechat.tui.widgets.bars import Bar, KeyClicked
    from ropechat.tui.widgets.composer import Composer
    from ropechat.tui.widgets.input import FindBar
    from ropechat.tui.widgets.inspector import Inspector
    from ropechat.tui.widgets.sidebar import Overview
    from ropechat.tui.widgets.token_transcript import TokenTranscript


class MessageRoutes(BaseApp):
    """Passes each message, event and changed setting to its controller; the chat sets the controllers."""

    chat: LiveChat
    session: Session
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
    history: HistoryController
    reading: InspectorController
    keyboard: KeyboardController
    models: ModelsController
    overflow: OverflowController
    sampling: SamplingController
    sidebar: SidebarController
    tips: TipsController
    vocabularies: Vocabularies

    def _quit(self) -> None:
        raise NotImplementedError

    def refresh_status(self) -> None:
        """Update the lines around the transcript."""
        raise NotImplementedError

    # --- events of the inference thread ---

    def react(self, event: ev.EngineEvent) -> None:
        """Pass an event other than a token to its controllers."""
        match event:
            case ev.ModelLoaded(info):
                self.vocabularies.learn(info)
                self._loaded()
            case ev.Notice(text):
                self.path.notice("notice", text, len(self.transcript.blocks) - 2 * self.session.generating)
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
        self.writing.count()
        self.history.show_resumed()
        self.models.loaded_another()

    # --- changed settings ---

    def settings_by_name(self) -> dict[str, Callable[[object], object]]:
        """{name of a setting: applies a changed value}."""
        return {
            "theme": lambda name: setattr(self, "theme", theme.choose_theme(os.environ, str(name))),
            "tint": lambda name: self.transcript.set_tint(str(name)),
            "view": lambda name: self.reading.use_view(str(name)),
            "model_folders": self.models.use_folders,
            "tips": lambda shown: self.tips.want(shown=bool(shown)),
            "overview": lambda shown: self.sidebar.want(shown=bool(shown)),
            "inspector": lambda shown: self.reading.open() if shown else self.reading.close(),
            "follow": lambda follows: setattr(self.path, "follows", bool(follows)),
            "when_full": lambda name: setattr(self.session, "when_full", OverflowPolicy(str(name))),
            "read_ahead": lambda reads: setattr(self.chat, "reads_ahead", bool(reads)),
            "kv_disk_gb": lambda size: setattr(self.session.recorder, "kv_bytes", int(str(size)) * 10**9),
        }

    # --- messages of widgets ---

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
