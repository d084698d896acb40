"""What sheets and rails look like, without anything that changes from run to run; keys in sheets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import STORY, FakeEngine
from reading import answered, inspected
from snapshots import compare, shown

from ropechat.chat import personas
from ropechat.models.installed import ModelSummary
from ropechat.tui.commands.keymap import Keymap, KeymapError
from ropechat.tui.format import models as rows
from ropechat.tui.format import stats as facts
from ropechat.tui.options import ChatOptions
from ropechat.tui.screens import branches, chats, models
from ropechat.tui.screens import dialog as sheet
from ropechat.tui.screens.branches import BranchesScreen
from ropechat.tui.screens.compare import CompareScreen
from ropechat.tui.screens.context import ContextScreen
from ropechat.tui.screens.facts import FactsScreen
from ropechat.tui.screens.fork import ForkScreen
from ropechat.tui.screens.models import ModelsScreen
from ropechat.tui.screens.personas import PersonasScreen
from ropechat.tui.screens.sampling import SamplingScreen

SIZES = [(80, 24), (60, 20), (160, 45)]
MODELS = [
    ModelSummary(
        "org/small",
        Path("/models/small"),
        269_000_000,
        0,
        "llama",
        135_000_000,
        "bfloat16",
        8192,
        True,
        458_000_000,
        prefill_tok_s=412.0,
        decode_tok_s=61.25,
    ),
    ModelSummary(
        "org/a-name-that-is-too-long-for-its-column", Path("/models/long"), 10**9, 0, "qwen2", 494_000_000
    ),
    ModelSummary(
        "org/huge", Path("/models/huge"), 10**11, 0, "llama", 7 * 10**10, "float32", 131072, True, 2 * 10**11
    ),
    ModelSummary("org/broken", Path("/models/broken"), 12, reason="config.json: no such file"),
]


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock, no speed, no memory of this machine."""
    monkeypatch.setattr(facts, "format_rate", lambda value: "" if value is None else "100 tok/s")
    monkeypatch.setattr(facts, "format_seconds", lambda value: "1.00 s")
    monkeypatch.setattr(facts, "free_memory", lambda: 16 * 10**9)
    monkeypatch.setattr(models, "free_memory", lambda: 16 * 10**9)
    monkeypatch.setattr(rows, "free_memory", lambda: 16 * 10**9)
    monkeypatch.setattr(models, "found_models", lambda *given: (list(MODELS), MODELS[0].path))
    monkeypatch.setattr(branches, "format_time", lambda seconds: "12:34")
    monkeypatch.setattr(chats, "format_time", lambda seconds: "12:34")


async def on(c: Any, screen: type) -> Any:
    """The part of the screen that a sheet takes up."""
    await c.until(lambda: isinstance(c.app.screen, screen))
    await c.pilot.pause(0.1)
    return c.app.screen.query_one(".sheet")


def name(what: str, size: tuple[int, int]) -> str:
    return f"{what}-{size[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_sampling(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine("ok"), size=size, temperature=1.0, top_k=3, top_p=0.8) as c:
        await inspected(c)
        await c.pilot.press("f7", "down")
        sheet = c.app.ui.sampling_panel if size[0] == 160 else await on(c, SamplingScreen)
        await c.pilot.pause(0.1)
        compare(name("sampling", size), shown(c, sheet))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_facts(chat: Any, size: tuple[int, int]) -> None:
    known = {"dtype": "q8_0", "isa": "avx2", "threads": 3, "weight_bytes": 1_500_000, "num_parameters": 10**6}
    async with chat(FakeEngine("a b c d", facts=known), size=size) as c:
        await c.ask("Hi")
        await c.idle()
        await c.pilot.press("f9")
        sheet = c.app.ui.engine_facts if size[0] == 160 else await on(c, FactsScreen)
        await c.pilot.pause(0.1)
        compare(name("facts", size), shown(c, sheet))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_models(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine("ok"), size=size) as c:
        await c.pilot.press("f6")
        sheet = await on(c, ModelsScreen)
        await c.until(lambda: c.app.screen._read)
        await c.pilot.press("down")
        await c.pilot.pause(0.1)
        compare(name("models", size), shown(c, sheet))
        await c.pilot.press(*["down"] * 4)
        await c.pilot.pause(0.1)
        compare(name("models-catalog", size), shown(c, sheet))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_personas(chat: Any, size: tuple[int, int]) -> None:
    personas.save("teacher", "You are a patient teacher. Explain step by step, with one example of each.")
    personas.save("terse", "Be brief.")
    async with chat(FakeEngine("ok"), size=size, system="Speak like a pirate, but only at sea.") as c:
        await c.ask("/persona")
        sheet = await on(c, PersonasScreen)
        compare(name("personas", size), shown(c, sheet))


async def test_a_list_longer_than_the_screen_leaves_the_keys_in_sight(chat: Any) -> None:
    for number in range(40):
        personas.save(f"persona {number}", "Be brief.")
    async with chat(FakeEngine("ok"), size=(80, 24)) as c:
        await c.ask("/persona")
        await on(c, PersonasScreen)
        assert "esc back" in c.screen()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_a_full_context(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine(["alpha " * 5, "beta " * 5], context=48), size=size) as c:
        for text in ("one " * 4, "two " * 4):
            await c.ask(text)
            await c.idle()
        await c.ask("three " * 6)
        sheet = await on(c, ContextScreen)
        compare(name("full", size), shown(c, sheet))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_branches_and_comparison(chat: Any, size: tuple[int, int]) -> None:
    async with chat(FakeEngine([STORY, STORY, "Another answer."]), size=size, seed=7) as c:
        await answered(c)
        node = c.app.session.last.node
        c.app.answers.fork(node, 10, 77)
        await c.idle()
        await c.ask("And then?")
        await c.idle()
        await c.pilot.press("f5")
        sheet = await on(c, BranchesScreen)
        compare(name("branches", size), shown(c, sheet))
        await c.pilot.press("up", "up", "equals_sign")
        sheet = await on(c, CompareScreen)
        compare(name("compare", size), shown(c, sheet))


@pytest.mark.parametrize("theme", ["ropechat-ansi-dark", "no colour"])
async def test_the_chosen_row_shows_with_few_colours_and_with_none(
    chat: Any, theme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*(("NO_COLOR", "1") if theme == "no colour" else ("TEXTUAL_THEME", theme)))
    async with chat(FakeEngine(["one", "two"])) as c:
        await answered(c)
        await c.pilot.press("f5")
        sheet = await on(c, BranchesScreen)
        rows = [strip.crop(sheet.region.x + 2, sheet.region.right - 3) for strip in c.strips()]
        turned = [strip.text for strip in rows if all(piece.style.reverse for piece in strip)]
        assert len(turned) == 1
        assert "answer  one" in turned[0]


# --- keys ---


@pytest.mark.slow
async def test_keys_in_sheets_can_be_others_and_are_shown(chat: Any) -> None:
    chosen = ChatOptions(
        keys={"branches.mark": ("x",), "sheet.leave": ("ctrl+w",), "chat.branches": ("f12",)}
    )
    async with chat(FakeEngine(["one", "two"]), look=chosen) as c:
        await answered(c)
        await c.pilot.press("f12")
        await on(c, BranchesScreen)
        assert "x mark" in c.screen()
        assert "^w back" in c.screen()
        await c.pilot.press("space")
        assert not c.app.screen._marked
        await c.pilot.press("x")
        assert len(c.app.screen._marked) == 1
        await c.pilot.press("escape")
        assert isinstance(c.app.screen, BranchesScreen)
        await c.pilot.press("ctrl+w")
        assert not isinstance(c.app.screen, BranchesScreen)
        await c.pilot.press("f12")
        await on(c, BranchesScreen)
        await c.pilot.press("f12")
        assert not isinstance(c.app.screen, BranchesScreen)


async def test_keys_of_the_sampling_can_be_others(chat: Any) -> None:
    chosen = ChatOptions(keys={"dials.greedy": ("g",), "dials.less": ("-",), "dials.more": ("+",)})
    async with chat(FakeEngine("ok"), look=chosen) as c:
        await c.pilot.press("f7")
        await on(c, SamplingScreen)
        await c.pilot.press("minus", "left")
        assert c.app.session.sampling.temperature == 0.65
        await c.pilot.press("plus", "g", "1")
        assert c.app.session.sampling.temperature == 0


@pytest.mark.slow
async def test_help_opens_over_a_sheet_and_tells_its_keys_first(chat: Any) -> None:
    async with chat(FakeEngine("ok"), size=(80, 40)) as c:
        await answered(c)
        await c.pilot.press("f5")
        await on(c, BranchesScreen)
        await c.pilot.press("f1")
        await c.pilot.pause(0.1)
        assert "Mark an answer, to compare up to four" in c.screen()
        await c.pilot.press("f1")
        assert isinstance(c.app.screen, BranchesScreen)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"branches.mark": ("m",), "branches.compare": ("m",)}, "m is also a key of branches."),
        ({"branches.mark": ("escape", "q"), "chats.undo": ("ctrl+k",)}, "q is also a key of sheet.leave"),
        ({"chats.rename": ("ctrl+q",)}, "ctrl+q is also a key of app.quit"),
        ({"chats.rename": ("r",)}, "r: types text"),
        ({"alternative.1": ("x",)}, "x is also a key of alternative.ban"),
    ],
)
def test_keys_in_sheets_that_cannot_be(chosen: Any, message: str) -> None:
    with pytest.raises(KeymapError) as error:
        Keymap(chosen)
    assert str(error.value).startswith(message)


def test_a_chosen_key_of_a_sheet_wins() -> None:
    keymap = Keymap({"branches.mark": ("d",), "full.slide": ("f",), "sheet.leave": ("h",)})
    assert keymap.keys("branches.delete") == ("ctrl+x",)
    assert keymap.keys("compare.left") == ("left",)
    assert keymap.notes == ["f is full.slide, as your settings say: full.fresh has no key"]


def test_one_key_may_do_different_things_in_different_sheets() -> None:
    keymap = Keymap({"branches.mark": ("m",), "personas.name": ("m",)})
    assert keymap.first("branches.mark", "personas.name") == "m m"


@pytest.mark.slow
@pytest.mark.parametrize(("later", "stays"), [(60.0, True), (0.01, False)])
async def test_the_widgets_of_a_sheet_go_when_nobody_waits(
    later: float, stays: bool, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheet, "REMOVAL_DELAY_S", later)
    async with chat(FakeEngine(STORY)) as c:
        await answered(c)
        await c.ask("/fork 5")
        await c.until(lambda: isinstance(c.app.screen, ForkScreen))
        left = c.app.screen
        await c.pilot.press("enter")
        await c.until(lambda: c.app.screen is not left)
        await c.idle()
        await c.until(lambda: left.is_attached == stays)


async def test_help_on_a_narrow_screen_keeps_its_columns(chat: Any) -> None:
    """A wrapped line goes on below the text, not below the keys."""
    async with chat(FakeEngine("x"), size=(60, 20)) as c:
        await c.pilot.press("f1")
        await c.until(
            lambda: "In the first or last line" in c.screen() and "before, or after it" in c.screen()
        )
        lines = c.screen().splitlines()
        first = next(line for line in lines if "In the first or last line" in line)
        second = next(line for line in lines if "before, or after it" in line)
        assert second.index("before") == first.index("In the first")
