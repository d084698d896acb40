"""The dialog of settings, and what the chat remembers for the next time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import STORY, FakeEngine

from ropechat.errors import SettingsError
from ropechat.settings.file import SettingsFile, read_settings, with_value
from ropechat.settings.spec import THEMES
from ropechat.tui.options import ChatOptions
from ropechat.tui.screens.settings import SettingsScreen

TEXT = """# mine
tint = "rank"  # my figure

[sampling]
top_k = 5
[keys]
"chat.new" = "f12"
"""


@pytest.fixture
def file(monkeypatch: Any, tmp_path: Path) -> Path:
    """A settings file of this test."""
    path = tmp_path / "config.toml"
    path.write_text(TEXT)
    monkeypatch.setenv("ROPECHAT_CONFIG", str(path))
    return path


def values() -> dict[str, object]:
    return dict(read_settings().values)


def test_one_value_changes_and_all_else_stays(file: Path) -> None:
    before = file.read_text()
    editor = SettingsFile({})
    editor.change("tint", "entropy")
    assert file.read_text() == before.replace('"rank"', '"entropy"')
    editor.change("tint", "rank")
    editor.change("theme", "nord")
    editor.change("sampling.temperature", 0.25)
    editor.change("sampling.top_k", 7)
    editor.change("overview", False)
    assert values() == {
        **{"tint": "rank", "theme": "nord", "overview": False},
        **{"sampling.temperature": 0.25, "sampling.top_k": 7},
    }
    for name in ("theme", "sampling.temperature", "overview"):
        editor.change(name, None)
    editor.change("sampling.top_k", 5)
    assert "# mine" in file.read_text()
    assert values() == {"tint": "rank", "sampling.top_k": 5}
    assert read_settings().keys == {"chat.new": ("f12",)}


def test_a_new_file_is_made(file: Path) -> None:
    file.unlink()
    file.touch()
    SettingsFile({}).change("sampling.temperature", 0.5)
    assert file.read_text() == "[sampling]\ntemperature = 0.5\n"
    SettingsFile({}).change("theme", "light")
    assert values() == {"theme": "light", "sampling.temperature": 0.5}


def test_what_cannot_be_changed_safely_is_refused(file: Path) -> None:
    file.write_text("sampling = { top_k = 5 }\n")
    with pytest.raises(SettingsError, match="change it in an editor"):
        SettingsFile({}).change("sampling.temperature", 0.5)
    assert file.read_text() == "sampling = { top_k = 5 }\n"
    with pytest.raises(SettingsError, match="temperature: must be"):
        SettingsFile({}).change("sampling.temperature", -1.0)


def test_values_of_any_text_stay_text() -> None:
    made = with_value("", "model", 'a "b" # c', None)
    assert with_value(made, "model", "plain", 1) == 'model = "plain"\n'


def test_origins_name_the_winner(file: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ROPECHAT_THEME", "light")
    rows = {row.setting.name: row for row in SettingsFile({"tint": "off"}).rows()}
    assert (rows["theme"].value, rows["theme"].origin) == ("light", "ROPECHAT_THEME")
    assert (rows["tint"].value, rows["tint"].origin) == ("off", "command line")
    assert rows["sampling.top_k"].origin == f"{file}: line 5"
    assert rows["follow"].origin == "default"


async def test_folders_with_models_are_typed(chat: Any, file: Path, tmp_path: Path) -> None:
    async with chat(FakeEngine(STORY), size=(100, 40), look=ChatOptions(settings=SettingsFile({}))) as c:
        await c.ask("/settings")
        await c.until(lambda: isinstance(c.app.screen, SettingsScreen))
        rows = [row.setting.name for row in c.app.screen._rows]
        await c.pilot.press(*["down"] * rows.index("model_folders"), "enter")
        await c.pilot.press(*"~/models:/mnt/more", "enter")
        await c.until(lambda: values().get("model_folders") == ["~/models", "/mnt/more"])
        assert "~/models:/mnt/m" in c.screen()
        assert c.app.models._folders == [Path("~/models").expanduser(), Path("/mnt/more")]
        await c.pilot.press("ctrl+x")
        await c.until(lambda: "model_folders" not in values())
        assert c.app.models._folders == []


async def test_the_dialog_writes_the_file_and_applies(chat: Any, file: Path) -> None:
    async with chat(FakeEngine(STORY), look=ChatOptions(settings=SettingsFile({}))) as c:
        await c.ask("/settings")
        await c.until(lambda: isinstance(c.app.screen, SettingsScreen))
        screen = c.app.screen
        options = screen.query_one("#rows")
        options.highlighted = [row.setting.name for row in screen._rows].index("tint")
        await c.pilot.press("right")
        assert values()["tint"] == "off"
        assert c.app.transcript.tint == "off"
        options.highlighted = [row.setting.name for row in screen._rows].index("sampling.temperature")
        await c.pilot.press("enter", *"0.3", "enter")
        assert values()["sampling.temperature"] == 0.3
        await c.pilot.press("ctrl+x")
        assert "sampling.temperature" not in values()
        await c.pilot.press("escape")
        await c.until(lambda: len(c.app.screen_stack) == 1)
        assert c.app.composer.has_focus


async def test_looks_are_remembered(chat: Any, file: Path) -> None:
    async with chat(FakeEngine(STORY), look=ChatOptions(settings=SettingsFile({})), size=(160, 45)) as c:
        await c.ask("Tell")
        await c.idle()
        await c.ask("/tint entropy")
        await c.pilot.press("f3", "ctrl+l", "f4")
        c.app.theme = "nord"
        await c.pilot.pause(0.1)
        c.app.leave(0)
    found = values()
    assert {name: found[name] for name in ("tint", "view", "overview", "theme", "inspector")} == {
        **{"tint": "entropy", "view": "prose", "overview": False, "theme": "nord", "inspector": True},
    }
    look = ChatOptions(theme="nord", tint="entropy", view="prose", overview=False, inspector=True)
    async with chat(FakeEngine(STORY), look=look, size=(160, 45)) as c:
        assert c.app.theme == "nord"
        assert (c.app.transcript.page.view, c.app.inspector.display) == ("prose", True)
        assert not c.app.ui.overview.display


def test_every_theme_of_the_picker_is_a_setting() -> None:
    from textual.theme import BUILTIN_THEMES

    from ropechat.tui.format.theme import OWN_THEMES, setting_of

    picked = {setting_of(name) for name in (*BUILTIN_THEMES, *(own.name for own in OWN_THEMES))}
    assert picked | {"auto"} == set(THEMES)
