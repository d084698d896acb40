"""The private names of Textual that the chat uses: each exists, and only one module uses them."""

import ast
import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import textual
from textual.app import App, ComposeResult
from textual.content import Content
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Resize
from textual.geometry import Size
from textual.keys import Keys
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Label, OptionList
from textual.worker import WorkerState

import ropechat.tui
from ropechat.tui.terminal import textual_compat
from ropechat.tui.terminal.textual_compat import PRIVATE_ATTRIBUTES, PRIVATE_NAMES, key_of_character

SOURCES = Path(ropechat.tui.__file__).parent
PRIVATE_IMPORT = re.compile(r"(?:from|import) textual\S*\._|from textual\S* import [^\n]*\b_[a-z]")


@pytest.mark.parametrize(("owner", "name"), PRIVATE_NAMES)
def test_every_private_name_exists(owner: object, name: str) -> None:
    assert callable(getattr(owner, name))


async def test_every_private_attribute_exists() -> None:
    app: App[None] = App()
    async with app.run_test():
        made = {"app": app, "driver": LinuxDriver(app), "widget": Widget()}
        for owner, name in PRIVATE_ATTRIBUTES:
            assert hasattr(made[owner], name), f"{owner}.{name}"


def _private_names(file: Path) -> set[str]:
    """The names that begin with one underscore which a module uses or defines on objects."""
    tree = ast.parse(file.read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    methods = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return {name for name in used | methods if re.match(r"_[a-z]", name)}


def test_no_other_module_uses_a_private_name_of_textual() -> None:
    names = {name for _, name in (*PRIVATE_NAMES, *PRIVATE_ATTRIBUTES) if name.startswith("_")} - {
        "_app",
        "_exit",
    }  # of other classes; os._exit
    names -= {"_exit"}  # os has one, too
    names |= {
        "_on_key",
        "_on_paste",
        "_replace_via_keyboard",
        "_on_mouse_scroll_up",
    }  # public ways took their place
    for file in SOURCES.rglob("*.py"):
        if file.name != "textual_compat.py":
            assert not _private_names(file) & names, file
            assert not PRIVATE_IMPORT.search(file.read_text()), file
    assert _private_names(Path(textual_compat.__file__)) >= {"_fatal_error", "_check_bindings", "_driver"}


def test_characters_have_the_names_of_keys() -> None:
    assert [key_of_character(one) for one in "a?/"] == ["a", "question_mark", "slash"]


def test_alt_enter_is_a_key_of_its_own() -> None:
    textual_compat.teach_alt_enter()
    parser = textual_compat.XTermParser()
    assert [event.key for event in parser.feed("\x1b\r")] == ["alt+enter"]  # type: ignore[attr-defined]
    assert [event.key for event in parser.feed("\r")] == [Keys.Enter]  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [-3, 0, 1])
def test_texts_wrap_where_no_cell_is_left(width: int) -> None:
    textual_compat.bear_any_size()
    assert [line.plain for line in Content("abc").wrap(width)] == ["a", "b", "c"]
    assert Content("abc").get_height({"line_pad": 1}, width) == 3
    assert [line.plain for line in Content("ab c").wrap(2)] == ["ab", "c"]


async def test_a_list_without_room_moves_by_a_page() -> None:
    class Lists(textual_compat.CompatApp):
        def compose(self) -> ComposeResult:
            yield OptionList("one", "two")

    async with Lists().run_test(size=(2, 2)) as pilot:
        assert pilot.app.focused is (choices := pilot.app.query_one(OptionList))
        await pilot.press("pagedown", "pageup")
        assert choices.scrollable_content_region.width == 0


async def test_two_sizes_within_a_batch_of_updates_end() -> None:
    """A screen sends itself each size that it handles: each of two brought the other one back, for ever."""
    laid_out: list[Size] = []

    class Counted(Screen[None]):
        def _screen_resized(self, size: Size) -> None:
            laid_out.append(size)
            assert len(laid_out) < 100
            super()._screen_resized(size)

    class Batched(textual_compat.CompatApp):
        def get_default_screen(self) -> Screen[None]:
            return Counted()

    async with Batched().run_test(size=(80, 24)) as pilot:
        screen = pilot.app.screen
        with pilot.app.batch_update():
            for size in (Size(40, 10), Size(80, 24)):
                screen.post_message(Resize(size, size))
                screen.call_later(lambda: None)
            await pilot.pause()
        assert screen.size == (80, 24)
        await pilot.resize_terminal(30, 7)
        assert screen.size == laid_out[-1] == (30, 7)


@pytest.mark.parametrize("closed", [True, False])
async def test_work_of_a_closed_dialog_may_miss_its_widgets(closed: bool) -> None:
    class Sheet(Screen[None]):
        def compose(self) -> ComposeResult:
            yield Label(id="part")

        async def on_unmount(self) -> None:
            await asyncio.sleep(0.1)  # the palette waits as well, with its widgets gone

        async def work(self) -> None:
            while True:
                self.query_one("#part")
                await asyncio.sleep(0)

    app = textual_compat.CompatApp()
    async with app.run_test():
        await app.push_screen(sheet := Sheet())
        worker = sheet.run_worker(sheet.work)
        await (app.pop_screen() if closed else sheet.query_one(Label).remove())
        while not worker.is_finished:
            await asyncio.sleep(0.01)
        assert worker.state == WorkerState.ERROR
        assert (app.crash is None) == closed
        app._exception = None


READ = """
import os
from ropechat.tui.commands import keymap
import ropechat.tui
ropechat.tui._restore_environment()
from textual import constants, screen
print(constants.ESCAPE_DELAY, screen.UPDATE_PERIOD, os.environ.get("ESCDELAY"), os.environ.get("TEXTUAL_FPS"))
"""


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ({}, f"0.025 {1 / 120} None None"),
        ({"ESCDELAY": "60", "TEXTUAL_FPS": "30"}, f"0.06 {1 / 30} 60 30"),  # what the user chose stays
    ],
)
def test_textual_reads_our_timing_and_no_child_inherits_it(given: dict[str, str], printed: str) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("ESCDELAY", "TEXTUAL_FPS")}
    run = subprocess.run([sys.executable, "-c", READ], env=environ | given, capture_output=True, text=True)
    assert run.stdout.split() == printed.split(), run.stderr


def test_the_tested_minor_version_is_pinned() -> None:
    text = (SOURCES.parents[1] / "pyproject.toml").read_text()
    assert '"textual~=8.2.8"' in text
    assert textual.__version__.startswith("8.2.")
