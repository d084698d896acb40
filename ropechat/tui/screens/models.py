"""The models on this machine: load one, or download another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ropechat import builtin
from ropechat.chat.download import Stage
from ropechat.engine.loading import read_header
from ropechat.engine.native import free_memory
from ropechat.errors import RopechatError
from ropechat.models.installed import format_count, list_installed, remove, summarize
from ropechat.models.resolve import hub_name, resolve
from ropechat.tui.render.width import cells, fit
from ropechat.tui.screens.dialog import ChoiceList, Dialog, bindings
from ropechat.tui.widgets.bars import meter
from ropechat.tui.widgets.input import SanitizedInput
from ropechat.util.text import format_bytes, one_line

if TYPE_CHECKING:
    from pathlib import Path

    from textual.app import ComposeResult

    from ropechat.chat.download import Download
    from ropechat.chat.downloads import Downloads
    from ropechat.models.hub.names import HubName
    from ropechat.models.installed import ModelSummary
    from ropechat.tui.commands.keymap import Keymap

WANTED = "filter; a Hub id to download (org/name, org/name:Q4_K_M); a path"
WITH_DOWNLOAD = (("⏎", "load or get"), "models.pause", "models.cancel", "sheet.leave")
SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
COLUMNS = (("params", 6), ("dtype", 6), ("size", 7), ("≈needs", 7), ("context", 7))
METER = 24
PATHS = ("/", "./", "../", "~")


def found_models(current: str) -> tuple[list[ModelSummary], Path | None]:
    """All models on this machine including the current one, and the current one's path."""
    found = list(list_installed(read_header))
    try:
        path = resolve(current)
    except RopechatError:
        return found, None
    if all(row.path != path for row in found):
        files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
        found.insert(0, summarize(current, path, sum(file.stat().st_size for file in files), read_header))
    return found, path


class ModelsScreen(Dialog["str | None"]):
    """A search field, the models, details and a download; the result is the model to load."""

    BINDINGS = bindings("models")
    context = "models"
    heading = "models"
    items = (("⏎", "load or get"), ("type", "to filter"), "models.delete", "sheet.leave")

    class DownloadChanged(Message):
        """A download was begun, paused, resumed or cancelled."""

    def __init__(self, current: str, downloads: Downloads, keymap: Keymap) -> None:
        super().__init__(keymap)
        self._current, self._downloads = current, downloads
        self._rows: list[ModelSummary] = []
        self._path: Path | None = None
        self._shown: list[ModelSummary | str] = []  # a text: a Hub id or a path
        self._read = False
        self._sure = ""  # the model that a second press deletes

    @property
    def _download(self) -> Download | None:
        return self._downloads.current

    def compose(self) -> ComposeResult:
        with Vertical(id="models", classes="sheet"):
            yield SanitizedInput(
                placeholder=WANTED,
                id="wanted-model",
            )
            yield Static(id="head", markup=False)
            yield ChoiceList(id="rows", markup=False)
            yield Static(id="about", markup=False)
            yield Static(id="coming", markup=False)
            yield self.key_hints

    def on_mount(self) -> None:
        self.query_one("#rows").can_focus = False
        self.query_one("#head", Static).update(Content.styled("reading the headers …", "$quiet"))
        self.look_again()
        self.show_download()

    def look_again(self) -> None:
        """Read the headers of all models."""
        self.run_worker(self._load, exclusive=True)  # type: ignore[arg-type]

    async def _load(self) -> None:
        try:
            self._rows, self._path = await asyncio.to_thread(found_models, self._current)
        except (RopechatError, OSError) as error:
            self.say(str(error), "$error")
        self._read = True
        self._list()

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

    def _list(self) -> None:
        wanted = self._text
        self._shown = [row for row in self._rows if wanted.lower() in row.name.lower()]
        known = {row.name for row in self._rows if row.reason is None}
        if wanted.startswith(PATHS) or (hub_name(wanted) is not None and wanted not in known):
            self._shown.append(wanted)
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(self._line(one)) for one in self._shown])
        here = [n for n, one in enumerate(self._shown) if not isinstance(one, str) and one.path == self._path]
        options.highlighted = (here[0] if here and not wanted else 0) if self._shown else None
        head = "  model".ljust(self._name_width + 2) + "".join(
            name.rjust(width + 1) for name, width in self._columns
        )
        self.query_one("#head", Static).update(Content.styled(head, "$quiet"))
        free = free_memory()
        self.title_with("" if free is None else f"{format_bytes(free)} of memory free")
        self._about()

    @property
    def _columns(self) -> tuple[tuple[str, int], ...]:
        return COLUMNS if self.app.size.width >= 76 else COLUMNS[2:4]

    @property
    def _name_width(self) -> int:
        rest = sum(width + 1 for _, width in self._columns)
        return max(16, min(100, self.app.size.width) - 7 - rest)

    def _line(self, one: ModelSummary | str) -> Content:
        if isinstance(one, str):
            what = "load" if one.startswith(PATHS) else "download"
            return Content.assemble(
                ("↓ " if what == "download" else "  ", "$primary"), f"{what} {one_line(one)}"
            )
        mark, style = (
            ("●", "$primary") if one.path == self._path else ("!", "$warning") if one.reason else (" ", "")
        )
        free = free_memory()
        values = {
            "params": "–" if one.num_parameters is None else format_count(one.num_parameters),
            "dtype": SHORT.get(one.dtype or "–", one.dtype or "–"),
            "size": format_bytes(one.size),
            "≈needs": "–" if one.needs is None else format_bytes(one.needs),
            "context": f"{one.context:,}" if one.context else "–",
        }
        parts: list[tuple[str, str]] = [(f"{mark} ", style), (fit(one_line(one.name), self._name_width), "")]
        for name, width in self._columns:
            heavy = name == "≈needs" and free is not None and (one.needs or 0) > free
            text = (
                fit(one_line(values[name]), width)
                if cells(values[name]) > width
                else values[name].rjust(width)
            )
            parts.append((" " + text, "$warning" if heavy else "$quiet"))
        return Content.assemble(*parts)

    def _chosen(self) -> ModelSummary | str | None:
        index = self.query_one(OptionList).highlighted
        return None if index is None or index >= len(self._shown) else self._shown[index]

    def _about(self) -> None:
        one = self._chosen()
        text, style = "", "$quiet"
        if one is None:
            text = "not found here; type a Hub id (org/name) or a path"
        elif isinstance(one, str):
            text = "⏎ loads it" if one.startswith(PATHS) else "⏎ shows size and files first"
        elif one.reason:
            text, style = f"cannot load: {one.reason}", "$warning"
        else:
            template = "with a chat template" if one.chat_template else "no chat template: it continues text"
            place = "comes with ropechat" if one.name == builtin.NAME else str(one.path)
            text = f"architecture {one.model_type}, {template}\n{place}"
        lines = [fit(one_line(line), max(20, min(96, self.app.size.width - 4))) for line in text.split("\n")]
        self.query_one("#about", Static).update(Content.styled("\n" + "\n".join(lines), style))

    def on_option_list_option_highlighted(self, _: OptionList.OptionHighlighted) -> None:
        self._about()

    def action_move(self, by: int) -> None:
        """Up and down, while the field keeps the keyboard."""
        options = self.query_one(OptionList)
        self._sure = ""
        self.say("")
        if self._shown:
            options.highlighted = ((options.highlighted or 0) + by) % len(self._shown)

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
        name = one if isinstance(one, str) else one.name
        if (
            download is not None
            and str(download.name) == name
            and download.stage in (Stage.PLANNED, Stage.PAUSED)
        ):
            download.start()
            self.post_message(self.DownloadChanged())
        elif isinstance(one, str) and one.startswith(PATHS):
            self.dismiss(one)
        elif isinstance(one, str) or (one.reason and hub_name(one.name) is not None):
            self.say(self._plan(name))
        elif one.reason:
            self.say(one.reason)
        else:
            self.dismiss(str(one.path))
        self.show_download()

    def _plan(self, model: str) -> str:
        """Ask the Hub for a model's files; returns an error text or ""."""
        name, running = hub_name(model), self._downloads.running
        if name is None:
            return f"{one_line(model)}: no Hub id"
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
        name = None if one is None or isinstance(one, str) else hub_name(one.name)
        if one is None or isinstance(one, str) or name is None or one.name == builtin.NAME:
            self.say("only what was downloaded can be deleted here")
        elif one.path == self._path:
            self.say("this model is in use; load another one first")
        elif self._sure != one.name:
            self._sure = one.name
            self.say(f"the same key again deletes {one.name}, {format_bytes(one.size)}")
        else:
            self._sure = ""
            self.run_worker(self._delete(name))

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
        text = Content("") if download is None else Content("\n").join(told(download, self.keymap))
        self.query_one("#coming", Static).update(text)
        works = download is not None and download.stage not in (Stage.DONE, Stage.CANCELLED)
        self.key_hints.show_keys(WITH_DOWNLOAD if works else self.items)


def told(download: Download, keymap: Keymap) -> list[Content]:
    """The state of a download in a few lines."""
    name, plan = one_line(str(download.name)), download.plan
    pause, cancel = keymap.named("models.pause"), keymap.named("models.cancel")
    head = Content.assemble(("\n↓ ", "$primary"), name)
    bar = [
        (part, style) for part, style in zip(meter(download.share, METER), ("$primary", "$rule"), strict=True)
    ]
    words = one_line("  " + "  ".join(download.words))
    match download.stage:
        case Stage.ASKING:
            return [Content.assemble(head, ("  asking the Hub …", "$quiet"))]
        case Stage.PLANNED if plan is not None:
            lines = [Content.styled("  " + one_line(line), "$quiet") for line in plan.lines(free_memory())]
            return [
                head,
                *lines,
                Content.styled(f"  ⏎ downloads {format_bytes(plan.rest)}   {cancel} cancels", "$primary"),
            ]
        case Stage.RUNNING:
            return [head, Content.assemble("  ", *bar, (f" {download.share:4.0%}", ""), (words, "$quiet"))]
        case Stage.PAUSING | Stage.PAUSED:
            note = f"  paused: {pause} goes on, {cancel} cancels; what came is kept"
            return [head, Content.assemble("  ", *bar, f" {download.share:4.0%}", (note, "$quiet"))]
        case Stage.DONE:
            return [
                Content.assemble(head, ("  complete, every hash is right: choose it and press ⏎", "$success"))
            ]
        case Stage.FAILED:
            return [head, Content.styled(f"  {one_line(download.error)}", "$error")]
    return [Content.assemble(head, ("  cancelled; what came is removed", "$quiet"))]
