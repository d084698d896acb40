"""The models on this machine and those of the catalog: load one, or download one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ropechat.chat.download import Stage
from ropechat.engine.loading import read_header
from ropechat.engine.native import free_memory
from ropechat.errors import RopechatError
from ropechat.models import recent
from ropechat.models.completion import complete_model
from ropechat.models.installed import HUB_CACHE, ModelSummary, list_installed, remove, summarize
from ropechat.models.resolve import hub_name, resolve
from ropechat.models.speed import known_machine
from ropechat.tui.format.models import (
    Row,
    RowLayout,
    describe_download,
    describe_row,
    is_loaded,
    key_of,
    models_here,
    models_to_get,
)
from ropechat.tui.screens.dialog import ChoiceList, Dialog, bindings
from ropechat.tui.widgets.input import SanitizedInput
from ropechat.tui.workers import begin
from ropechat.util.text import common_prefix, format_bytes, one_line
from ropechat.util.width import fit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from textual.app import ComposeResult

    from ropechat.chat.download import Download, Downloads
    from ropechat.models.hub.names import HubName
    from ropechat.tui.commands.keymap import Keymap

WANTED = "filter, a Hub id (org/name:Q4_K_M) or a path"
WITH_DOWNLOAD = (("⏎", "load or download"), "models.pause", "models.cancel", "sheet.leave")


def found_models(
    current: str, folders: Sequence[Path], on_note: Callable[[str], None]
) -> tuple[list[ModelSummary], Path | None]:
    """All models on this machine including the current one, and the current one's path."""
    found = list(list_installed(read_header, folders, on_note))
    try:
        path = resolve(current, folders)
    except RopechatError:
        return found, None
    if all(row.path != path for row in found):
        files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
        found.insert(0, summarize(current, path, sum(file.stat().st_size for file in files), read_header))
    return found, path


def _probe() -> bool:
    """Measure what other models may reach here; whether that is known then."""
    from ropechat.engine.bench.probe import probe_machine  # imported here: most starts do not need it

    return probe_machine() is not None


class ModelsScreen(Dialog["str | None"]):
    """A search field, the models, details and a download; the result is the model to load.

    folders: more folders with models. wanted: a model that is not here; its download is offered at once.
    """

    BINDINGS = bindings("models")
    context = "models"
    heading = "models"
    items = (("⏎", "load or download"), ("type", "to filter"), "models.delete", "sheet.leave")

    class DownloadChanged(Message):
        """A download was begun, paused, resumed or cancelled."""

    def __init__(
        self,
        current: str,
        downloads: Downloads,
        keymap: Keymap,
        folders: Sequence[Path] = (),
        wanted: str = "",
    ) -> None:
        super().__init__(keymap)
        self._current, self._downloads, self._folders = current, downloads, folders
        self._wanted = wanted
        self.about_loaded = ""  # one more line about the model that is in use
        self._rows: list[ModelSummary] = []
        self._path: Path | None = None
        self._shown: list[Row | None] = []  # None: the name of a section
        self._read = False

    @property
    def _download(self) -> Download | None:
        return self._downloads.current

    def compose(self) -> ComposeResult:
        with Vertical(id="models", classes="sheet"):
            yield SanitizedInput(self._wanted, placeholder=WANTED, id="wanted-model")
            yield ChoiceList(id="rows", markup=False)
            yield Static(id="about", markup=False)
            yield Static(id="coming", markup=False)
            yield self.key_hints

    def on_mount(self) -> None:
        self.query_one("#rows").can_focus = False
        self.query_one("#about", Static).update(Content.styled("reading the headers …", "$quiet"))
        self.look_again()
        self.show_download()

    def look_again(self) -> None:
        """Read the headers of all models."""
        begin(self, "list", self._load, replaces=True)

    async def _load(self) -> None:
        notes: list[str] = []
        chosen = self._chosen()
        try:
            self._rows, self._path = await asyncio.to_thread(
                found_models, self._current, self._folders, notes.append
            )
        except (RopechatError, OSError) as error:
            notes.append(str(error))
        if notes:
            more = f" (and {len(notes) - 1} more)" if len(notes) > 1 else ""
            self.say(f"{one_line(notes[0])}{more}")
        self._read = True
        self._list("" if chosen is None else key_of(chosen))
        if known_machine() is None and await asyncio.to_thread(_probe):
            self.look_again()  # with the rates that are expected
        if self._wanted and (offered := self._chosen()) is not None:
            self._wanted = ""
            if not is_loaded(offered):
                self._take()

    def on_resize(self) -> None:
        if self._read:
            self._list()

    # --- the list ---

    @property
    def _text(self) -> str:
        return self.query_one(Input).value.strip()

    def on_input_changed(self, _: Input.Changed) -> None:
        if self._read:
            self._list()

    def _list(self, chosen: str = "") -> None:
        """Fill the list; chosen: the key of the row to highlight, if it is still there."""
        wanted = self._text
        self._shown = []
        here = models_here(self._rows, wanted)
        by_path = [row for row in here if getattr(row, "source", "") == recent.SOURCE]
        here = [row for row in here if row not in by_path]
        for found in (by_path, here, models_to_get(self._rows, wanted)):
            self._shown += [None, *found] if found else []
        layout = RowLayout(self.app.size.width)
        options = [self._option(layout, at) for at in range(len(self._shown))]
        rows = [(at, one) for at, one in enumerate(self._shown) if one is not None]
        same = [at for at, one in rows if key_of(one) == chosen]
        loaded = [at for at, one in rows if isinstance(one, ModelSummary) and one.path == self._path]
        first = [at for at, _ in rows]
        self.list_options(options, next(iter([*same, *([] if wanted else loaded), *first]), None))
        free = free_memory()
        self.title_with("" if free is None else f"{format_bytes(free)} of memory free")
        self._about()

    def _option(self, layout: RowLayout, at: int) -> Option:
        row = self._shown[at]
        if row is None:
            return Option(layout.section(self._shown[at + 1]), disabled=True)
        return Option(layout.row(row, is_current=isinstance(row, ModelSummary) and row.path == self._path))

    def _chosen(self) -> Row | None:
        index = self.query_one(OptionList).highlighted
        return None if index is None or index >= len(self._shown) else self._shown[index]

    def _about(self) -> None:
        chosen = self._chosen()
        text, style = describe_row(chosen, self._text)
        if self.about_loaded and isinstance(chosen, ModelSummary) and chosen.path == self._path:
            text += f"\n{self.about_loaded}"
        lines = [fit(one_line(line), max(20, min(96, self.app.size.width - 4))) for line in text.split("\n")]
        self.query_one("#about", Static).update(Content.styled("\n".join(lines), style))

    def on_option_list_option_highlighted(self, _: OptionList.OptionHighlighted) -> None:
        self._about()

    def action_move(self, by: int) -> None:
        """Up and down, while the field keeps the keyboard."""
        options = self.query_one(OptionList)
        self._sure = ""
        self.say("")
        if any(one is not None for one in self._shown):
            at = options.highlighted or 0
            while self._shown[at := (at + by) % len(self._shown)] is None:
                pass
            options.highlighted = at
            if at == 1:
                options.scroll_home(animate=False)  # the section's name is above the first row

    def action_complete(self) -> None:
        """Complete the path or name in the field; several ways on are shown."""
        field = self.query_one(Input)
        found = complete_model(field.value, [row.name for row in self._rows])
        field.value = common_prefix(found) or field.value
        field.cursor_position = len(field.value)
        if len(found) > 1:
            ends = (name.rstrip("/").rpartition("/")[2] for name in found)
            self.say("  ".join(map(one_line, ends)), "$quiet")

    # --- doing ---

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._take()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take()

    def _take(self) -> None:
        one, download = self._chosen(), self._download
        if one is None:
            return
        name = key_of(one)
        if (
            download is not None
            and str(download.name) == name
            and download.stage in (Stage.PLANNED, Stage.PAUSED)
        ):
            download.start()
            self.post_message(self.DownloadChanged())
        elif is_loaded(one):
            self.dismiss(str(getattr(one, "path", one)))
        elif isinstance(one, ModelSummary) and one.source != HUB_CACHE:
            self.say(one.reason or "")
        else:
            self.say(self._plan(name))
        self.show_download()

    def _plan(self, model: str) -> str:
        """Ask the Hub for a model's files; returns an error text or ""."""
        name, running = hub_name(model), self._downloads.running
        if name is None:
            return f"{one_line(model)}: not a Hub id"
        if running is not None:
            pause, cancel = self.keymap.named("models.pause"), self.keymap.named("models.cancel")
            return f"{running.name} is being downloaded; {pause} pauses it, {cancel} cancels it"
        self._downloads.plan(name)
        self.post_message(self.DownloadChanged())
        return ""

    def action_pause(self) -> None:
        """Pause or resume the download."""
        if self._download is not None:
            if self._download.stage is Stage.RUNNING:
                self._download.pause()
            else:
                self._download.start()
            self.post_message(self.DownloadChanged())
            self.show_download()

    def action_cancel(self) -> None:
        """Cancel the download and delete its parts."""
        if self._download is not None and self._download.stage is not Stage.DONE:
            self._download.cancel()
            self.post_message(self.DownloadChanged())
            self.show_download()

    def action_delete(self) -> None:
        """Delete a download at the second press; not the model that is in use."""
        one = self._chosen()
        name = hub_name(one.name) if isinstance(one, ModelSummary) and one.source == HUB_CACHE else None
        if not isinstance(one, ModelSummary) or name is None:
            self.say("only downloaded models can be deleted here")
        elif one.path == self._path:
            self.say("this model is in use; load another one first")
        elif self.is_sure(one.name, f"the same key again deletes {one.name}, {format_bytes(one.size)}"):
            begin(self, "delete", lambda: self._delete(name))

    async def _delete(self, name: HubName) -> None:
        try:
            size = await asyncio.to_thread(remove, name)
        except (RopechatError, OSError) as error:
            self.say(str(error), "$error")
            return
        self.say(f"deleted: {name}, {format_bytes(size)} freed", "$quiet")
        self.look_again()

    def show_download(self) -> None:
        """Show the progress of the download."""
        if not self.query("#coming"):  # the timer may come before the widgets, or after them
            return
        download = self._download
        lines = [] if download is None else describe_download(download, self.keymap)
        coming = self.query_one("#coming", Static)
        coming.display = bool(lines)
        coming.update(Content("\n").join(lines))
        works = download is not None and download.stage not in (Stage.DONE, Stage.CANCELLED)
        self.key_hints.show_keys(WITH_DOWNLOAD if works else self.items)
