"""Which model answers: choose one, download one, load it in the place of the one that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.download import Stage
from ropechat.chat.downloads import Downloads
from ropechat.chat.errors import explain
from ropechat.tui.controllers.weighing import Weighing
from ropechat.tui.screens.models import ModelsScreen
from ropechat.tui.terminal import gc_pause as garbage
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from textual.timer import Timer

    from ropechat.chat.download import Download
    from ropechat.chat.protocols import ModelLoader
    from ropechat.tui.commands.dispatch import Typed

LOOKS = 0.25  # seconds between two looks at a download


class Switching(Weighing):
    """The commands over models. models: loads any of them; model: what the loaded one was called."""

    models: ModelLoader | None = None
    model: str = ""
    _watch: Timer | None = None

    def __init__(self) -> None:
        super().__init__()
        self.downloads = Downloads()

    def typed(self) -> dict[str, Typed]:
        """Also over models."""
        return {**super().typed(), "model.pick": self._model_typed}

    def _model_typed(self, words: str) -> str:
        self.switch_model(words)
        return ""

    def action_models(self) -> None:
        """The models here, and those to be had."""
        if not self.closes(ModelsScreen):
            self._push(ModelsScreen(self.model, self.downloads, self.keymap), self.switch_model)

    def switch_model(self, model: str) -> None:
        """Load another model; the chat stays. The old one is closed once the new one is known to be sound."""
        if self.models is None:
            self._say_hint("this chat has one model only")
            return
        self.when_idle(lambda: self._switch(model))

    def _switch(self, model: str) -> None:
        models = self.models
        assert models is not None
        self._wanted = model
        self.session.await_model(one_line(model))
        self._submit(ev.Load(lambda: models.load(model), lambda: models.check(model)))

    _wanted = ""

    def loaded_another(self) -> None:
        """The model that was asked for is there."""
        if self._wanted:
            garbage.thaw()
            self.model, self._wanted = self._wanted, ""
            self.bias("off")  # its tokens are others
            self.show_path()

    def not_loaded(self, event: ev.LoadFailed) -> None:
        """Say why, and what to do."""
        self._wanted = ""
        if event.kept and self.session.info is not None:
            self._notice("error", f"Not loaded: {explain(event.error)}")
            self._notice("notice", f"{one_line(self.session.info.name)} goes on.")
            self._count()
        else:
            self._notice("error", f"The model cannot be loaded: {explain(event.error)}")
            pick, quit = self.keymap.named("model.pick"), self.keymap.named("app.quit")
            self._notice("notice", f"{pick} chooses another one, {quit} leaves.")

    # --- downloads ---

    def on_models_screen_download_changed(self) -> None:
        """Look at the download again and again, as long as it works."""
        if self._watch is None:
            self._watch = self.set_interval(LOOKS, self._look)

    def _look(self) -> None:
        download, screen = self.downloads.current, self.screen
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
        self._redraw()

    def _tell_end(self, download: Download) -> None:
        name = one_line(str(download.name))
        if download.stage is Stage.DONE:
            self._notice("notice", f"{name} is downloaded: {self.keymap.named('model.pick')} loads it.")
        elif download.stage is Stage.FAILED:
            self._notice("error", download.error)

    def download_words(self) -> str:
        """What the title says of a download that runs."""
        running = self.downloads.running
        return "" if running is None else f"↓ {running.share:.0%}"
