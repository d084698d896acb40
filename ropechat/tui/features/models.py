"""Choosing, downloading and loading models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.context import larger_context, longest_context
from ropechat.chat.download import Stage
from ropechat.chat.errors import explain
from ropechat.chat.score_worker import ScoreWorker
from ropechat.errors import NotDownloadedError
from ropechat.models.catalog import offered_model
from ropechat.models.resolve import hub_name, resolve
from ropechat.tui.features.sampling import SamplingFeature
from ropechat.tui.features.turns import TurnsFeature
from ropechat.tui.features.writing import WritingFeature
from ropechat.tui.format.models import describe_offer
from ropechat.tui.format.status import model_heading
from ropechat.tui.screens.models import ModelsScreen
from ropechat.tui.terminal import gc_pause
from ropechat.tui.ui import ChatUi, Feature, command, event, setting
from ropechat.util.paths import expand_home
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.timer import Timer

    from ropechat.chat.download import Download
    from ropechat.conversation import Message
    from ropechat.engine.engine import Engine
    from ropechat.tui.screens.rope import RopeScreen

POLL_INTERVAL_S = 0.25  # seconds between two updates of a download


class ModelsFeature(Feature):
    """The commands that choose, load and download models."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.turns, self.writing, self.sampling = ui[TurnsFeature], ui[WritingFeature], ui[SamplingFeature]
        self._folders = ui.options.model_folders
        self.downloads = self.chat.downloads
        self._wanted = ""  # the model that is being loaded
        self._same = False  # whether that is the one that was loaded before, with another context
        self._first: Download | None = None  # of a model that is loaded as soon as it is here
        self._watch: Timer | None = None
        self._positions: RopeScreen | None = None

    @command("model.rope")
    def _show_positions(self) -> str | None:
        from ropechat.tui.screens.rope import RopeScreen

        if self.session.info is None or self.session.coming:
            return "no model is loaded yet"
        messages = self.session.messages()
        worker = ScoreWorker(self.chat.inference)
        about = "this chat" if messages else "a sample text"
        self._positions = screen = RopeScreen(
            self.session.info.rope_spec,
            self.session.used or 0,
            self.keymap,
            worker.submit,
            lambda engine: _measured_ids(engine, messages),
            about,
        )
        self.ui.push(screen, lambda result: None)
        return None

    @command("model.pick")
    def _pick(self, model: str) -> None:
        if model:
            self.switch_model(model)
        elif not self.ui.closes(ModelsScreen):
            self._open()

    def _open(self, wanted: str = "") -> None:
        """Open the dialog. wanted: a model whose download is offered."""
        screen = ModelsScreen(self.chat.model, self.downloads, self.keymap, self._folders, wanted)
        screen.about_loaded = self._about_context()
        self.ui.push(screen, self.switch_model)

    def _about_context(self) -> str:
        """What the loaded model could hold, if that is more than it does."""
        info = self.session.info
        if info is None or self.chat.models is None or (larger := larger_context(info, 0)) is None:
            return ""
        return f"context {info.context:,} of {longest_context(info):,} tokens: {larger.words}"

    @command("model.first")
    def _open_first(self) -> None:
        """Load the smallest model of the catalog; download it first if it is not here."""
        model = offered_model()
        name, running = model.short[0], self.downloads.running
        try:
            resolve(name, self._folders)
        except NotDownloadedError:
            if running is None:
                self.downloads.plan(model.hub_name)
                self._first = self.downloads.current
                self.watch_download()
                self.ui.hint(f"{model.name}: asking for its files …")
            elif running.name != model.hub_name:
                self.ui.hint(
                    f"{running.name} is being downloaded; {self.keymap.named('model.pick')} shows it"
                )
        else:
            self.switch_model(name)

    @setting("model_folders")
    def use_folders(self, names: object) -> None:
        """List the models of these folders too."""
        self._folders = [expand_home(str(name)) for name in names] if isinstance(names, list) else []

    def switch_model(self, model: str) -> None:
        """Load another model; the chat stays. The old one is closed once the new one is checked."""
        if self.chat.models is None:
            self.ui.hint("this chat cannot load another model")
            return
        self.chat.when_idle(lambda: self._switch(model))

    def enlarge(self, context: int) -> None:
        """Load this model again with another context; the chat stays, and so do the weights of tokens."""
        self._switch(self.chat.model, context)

    def _switch(self, model: str, context: int | None = None) -> None:
        models = self.chat.models
        assert models is not None
        self._wanted, self._same = model, context is not None
        self.session.await_model(one_line(model))
        self.chat.submit(ev.Load(lambda: models.load(model, context), lambda: models.check(model)))

    @event(ev.ModelLoaded)
    def _model_loaded(self, event: ev.ModelLoaded) -> None:
        """Finish the switch to another model; remember the model that is loaded."""
        if self._wanted:
            gc_pause.thaw()
            if self._positions is not None:  # of the model before
                self._positions.dismiss(None)
            self.chat.model, self._wanted = self._wanted, ""
            if not self._same:
                self.sampling.bias("off")  # token ids differ between models
            self.turns.show()
        self.ui.options.remember(self.chat.model, event.info.name)
        self.chat.release()

    @event(ev.LoadFailed)
    def _not_loaded(self, event: ev.LoadFailed) -> None:
        """Report a failed load and what to do; a model that is not here can be downloaded."""
        wanted, self._wanted = self._wanted, ""
        self.chat.release()
        if wanted and isinstance(event.error, NotDownloadedError) and hub_name(wanted) is not None:
            self._open(wanted)
        if event.kept and self.session.info is not None:
            self.turns.notice("error", f"Not loaded: {explain(event.error)}")
            self.turns.notice("notice", f"{model_heading(self.session.info.name)} stays loaded.")
            self.writing.count()
        else:
            self.turns.notice("error", f"The model cannot be loaded: {explain(event.error)}")
            pick, quit = self.keymap.named("model.pick"), self.keymap.named("app.quit")
            first = f"{self.keymap.named('model.first')} gets {describe_offer(offered_model())}"
            self.turns.notice("notice", f"{first}, {pick} chooses another one, {quit} quits.")

    # --- downloads ---

    @property
    def watching(self) -> bool:
        """Whether a download is polled."""
        return self._watch is not None

    def watch_download(self) -> None:
        """Poll the download until it ends."""
        if self._watch is None:
            self._watch = self.ui.app.set_interval(POLL_INTERVAL_S, self._look)

    def _look(self) -> None:
        download, screen = self.downloads.current, self.ui.app.screen
        if download is not None and download is self._first and download.stage is Stage.PLANNED:
            download.start()
        ended = download is None or not download.stage.works
        if isinstance(screen, ModelsScreen):
            screen.show_download()
            if ended and download is not None and download.stage in (Stage.DONE, Stage.CANCELLED):
                screen.look_again()
        elif ended and download is not None:
            self._tell_end(download)
        if ended and self._watch is not None:
            self._watch.stop()
            self._watch = None
        self.ui.refresh()

    def _tell_end(self, download: Download) -> None:
        name = one_line(str(download.name))
        if download.stage is Stage.DONE and download is self._first:
            self.switch_model(offered_model().short[0])
        elif download.stage is Stage.DONE:
            self.turns.notice("notice", f"{name} is downloaded: {self.keymap.named('model.pick')} loads it.")
        elif download.stage is Stage.FAILED:
            self.turns.notice("error", download.error)

    def download_words(self) -> str:
        """The progress of a running download, for the title."""
        running = self.downloads.running
        return "" if running is None else f"↓ {running.share:.0%}"


def _measured_ids(engine: Engine, messages: Sequence[Message]) -> Sequence[int]:
    """The tokens on which positions are measured: the conversation, or a sample before there is one."""
    from ropechat.inspector.rope.report import SAMPLE  # imports numpy, so late

    return engine.prompt_ids(messages) if messages else engine.tokenizer.encode(SAMPLE)
