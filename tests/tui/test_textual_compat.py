"""The private names of Textual that the chat uses: each exists, and only one module uses them."""

import ast
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
from textual.keys import Keys
from textual.widget import Widget
from textual.widgets import OptionList

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
    textual_compat.bear_narrow_terminals()
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
