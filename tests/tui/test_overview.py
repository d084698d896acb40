"""What stands at the left of a wide screen: chats, branches, personas, sampling."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from branches import last, transcript
from chats import branched
from fakes import STORY, FakeEngine
from snapshots import compare, shown
from stores import put
from textual.visual import Visual

from ropechat.chat import personas
from ropechat.store.store import Store
from ropechat.tui.features.sidebar import WIDTH
from ropechat.tui.format import lists
from ropechat.tui.options import ChatOptions
from ropechat.tui.screens.branches import BranchesScreen
from ropechat.tui.screens.chats import ChatsScreen
from ropechat.tui.screens.personas import PersonasScreen
from ropechat.tui.widgets import sidebar as overview
from ropechat.tui.widgets.sidebar import Line, Section, lay_out_sections, shares

WIDE = (160, 45)


def lines(c: Any) -> list[str]:
    return str(c.app.ui.overview.text).split("\n")


async def click(c: Any, words: str) -> None:
    """On the first line of the overview that says so."""
    y = next(y for y, line in enumerate(lines(c)) if words in line)
    await c.pilot.click("#overview", offset=(4, y))
    await c.pilot.pause(0.1)


async def two_chats(c: Any) -> None:
    await c.ask("First chat?")
    await c.idle()
    await c.pilot.press("ctrl+n")
    await c.ask("Second chat?")
    await c.idle()
    await c.until(lambda: "Second" in c.app.ui.overview.text)


@pytest.mark.slow
async def test_chats_are_listed_and_opened_without_taking_the_keyboard(chat: Any, store: Store) -> None:
    async with chat(FakeEngine(["one", "two", "three"]), store=store, size=WIDE) as c:
        assert "chats" not in c.app.ui.overview.text  # nothing was said yet
        await two_chats(c)
        found = lines(c)
        assert found[0].split() == ["chats", "F2"]
        assert found[1].strip() == "today"
        assert found[2].startswith("● Second chat?")
        assert found[3].startswith("  First chat?")
        await click(c, "First chat?")
        await c.until(lambda: last(c).question == "First chat?")
        await c.until(lambda: "● First chat?" in c.app.ui.overview.text)
        assert c.app.composer.has_focus
        await c.ask("/rename Another name")
        await c.until(lambda: "● Another name" in c.app.ui.overview.text)


async def test_a_chat_that_was_deleted_in_its_sheet_goes(chat: Any, store: Store) -> None:
    async with chat(FakeEngine(["one", "two"]), store=store, size=WIDE) as c:
        await two_chats(c)
        await click(c, "chats")
        await c.until(lambda: isinstance(c.app.screen, ChatsScreen) and len(c.app.screen._found) == 2)
        await c.pilot.press("down", "ctrl+x", "ctrl+x")
        await c.until(lambda: len(c.app.screen._found) == 1)
        await c.pilot.press("escape")
        await c.until(lambda: "First chat?" not in c.app.ui.overview.text)
        assert "● Second chat?" in c.app.ui.overview.text


@pytest.mark.slow
async def test_branches_are_opened_or_scrolled_to(chat: Any) -> None:
    async with chat(FakeEngine([STORY, "Another one.", "Third."], context=10**5), size=WIDE) as c:
        await c.ask("Tell")
        await c.idle()
        assert "branches" not in c.app.ui.overview.text  # there is only one
        first = last(c).node
        await transcript(c, "r")
        await c.ask("And then?")
        await c.idle()
        await c.until(lambda: "branches 2" in c.app.ui.overview.text)
        found = lines(c)
        top = next(y for y, line in enumerate(found) if "branches 2" in line)
        assert [line.split("  ")[0] for line in found[top + 1 : top + 5]] == ["", "", "", "●"]
        assert "├─ 1/2  Once upon" in found[top + 2]
        assert "└─ 2/2  Another one." in found[top + 3]
        assert "And then?" in found[top + 4]
        await click(c, "1/2")
        await c.until(lambda: last(c).node == first)
        await c.until(lambda: "● ├─ 1/2" in c.app.ui.overview.text)
        await click(c, "branches")
        await c.until(lambda: isinstance(c.app.screen, BranchesScreen))


@pytest.mark.slow
async def test_a_click_on_what_is_shown_scrolls_there(chat: Any) -> None:
    async with chat(FakeEngine([STORY * 20, "Two."], context=10**5), size=WIDE) as c:
        await c.ask("Tell")
        await c.idle()
        await transcript(c, "r")
        await transcript(c, "left_square_bracket")
        await c.until(lambda: c.app.transcript.scroll_y > 20)
        node = last(c).node
        await click(c, "Tell")
        await c.until(lambda: c.app.transcript.scroll_y == 0)
        assert last(c).node == node


@pytest.mark.slow
async def test_personas_and_sampling(chat: Any) -> None:
    personas.save("teacher", "Teach.")
    personas.save("poet", "Rhyme.")
    async with chat(FakeEngine("ok"), size=WIDE) as c:
        assert "● no system text" in c.app.ui.overview.text
        await click(c, "teacher")
        assert c.app.session.system == "Teach."
        assert "● teacher" in c.app.ui.overview.text
        await click(c, "no system text")
        assert not c.app.session.system
        await click(c, "personas")
        await c.until(lambda: isinstance(c.app.screen, PersonasScreen))
        await c.pilot.press("down", "ctrl+x", "ctrl+x", "escape")
        await c.until(lambda: "poet" not in c.app.ui.overview.text)
        assert "teacher" in c.app.ui.overview.text
        await c.ask("/set temperature 0.3")
        assert any(line.split() == ["temperature", "0.3"] for line in lines(c))
        await c.ask("/sampling greedy")
        assert "sampling greedy" in c.app.ui.overview.text
        await click(c, "top_k")
        assert c.app.ui.sampling_panel.has_focus
        assert "sampling" not in c.app.ui.overview.text  # it stands at the right now


async def test_it_shows_only_where_the_text_stays_readable(chat: Any) -> None:
    async with chat(FakeEngine("ok"), size=(149, 40)) as c:
        assert not c.app.ui.overview.display
        for width, beside, shown_left in ((150, False, True), (150, True, False), (154, True, True)):
            await c.pilot.resize_terminal(width, 40)
            if c.app.ui.engine_facts.display != beside:
                await c.pilot.press("f9")
            await c.pilot.pause(0.1)
            assert c.app.ui.overview.display is shown_left
            assert c.app.transcript.size.width >= 72
        assert c.app.transcript.size.width == 154 - 48 - WIDTH


async def test_a_key_hides_it_and_a_setting_too(chat: Any) -> None:
    async with chat(FakeEngine("ok"), size=WIDE) as c:
        assert c.app.ui.overview.display
        await c.pilot.press("ctrl+l")
        assert not c.app.ui.overview.display
        assert c.app.transcript.size.width == 160
        await c.ask("/overview")
        await c.until(lambda: c.app.ui.overview.display)
    async with chat(FakeEngine("ok"), size=(100, 30), look=ChatOptions(overview=False)) as c:
        assert not c.app.ui.overview.display
        await c.pilot.press("ctrl+l")
        assert "150 columns" in c.line("footer")


@pytest.mark.slow
async def test_an_answer_that_streams_costs_it_nothing(
    chat: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(STORY, rate=400)
    async with chat(engine, store=store, size=WIDE) as c:
        await two_chats(c)
        asked: list[Future[Any]] = []
        drawn, seen = [], []
        conversations, show = store.conversations, c.app.ui.overview.show

        def ask(limit: int) -> Future[Any]:
            asked.append(conversations(limit))
            return asked[-1]

        monkeypatch.setattr(store, "conversations", ask)
        monkeypatch.setattr(c.app.ui.overview, "show", lambda parts: (drawn.append(1), show(parts)))
        engine.gate.clear()
        await c.ask("More?")
        await c.until(lambda: c.app.session.generating and bool(asked) and asked[-1].done())
        await c.pilot.pause(0.1)
        begun = len(asked), len(drawn)
        look = c.app.sidebar.refresh
        monkeypatch.setattr(c.app.sidebar, "refresh", lambda: (seen.append(1), look()))
        waits, wait = [], engine._wait

        def hold(seconds: float) -> bool:
            """Close the gate before a later token, so that the answer goes on while the test looks."""
            waits.append(1)
            if len(waits) == 60:
                engine.gate.clear()
            return wait(seconds)

        monkeypatch.setattr(engine, "_wait", hold)
        engine.gate.set()
        # Until the screen was brought up to date meanwhile.
        await c.until(lambda: len(last(c).answer.node.steps) > 40 and bool(seen))
        assert c.app.session.generating
        assert (len(asked), len(drawn)) == begun
        engine.gate.set()
        await c.idle()


async def test_only_rows_that_changed_are_drawn_again(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with chat(FakeEngine("ok"), size=WIDE) as c:
        regions: list[Any] = []
        monkeypatch.setattr(c.app.ui.overview, "refresh", lambda *where, **_: regions.extend(where))
        await c.ask("/set seed 7")
        row = next(y for y, line in enumerate(lines(c)) if "seed" in line)
        assert [region.y for region in regions] == [row]


@pytest.mark.usefixtures("every_frame")
async def test_a_row_that_says_what_it_said_is_not_made_again(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chat(FakeEngine("ok"), size=WIDE) as c:
        made: list[str] = []
        to_strips = Visual.to_strips

        def counted(widget: Any, row: Any, *more: Any, **options: Any) -> Any:
            made.append(row.plain)
            return to_strips(widget, row, *more, **options)

        monkeypatch.setattr(overview, "Visual", SimpleNamespace(to_strips=counted))
        await c.ask("/set seed 7")
        await c.until(lambda: bool(made))
        assert [text.split() for text in made] == [["seed", "7"]]


# --- the share of each part ---


def section(title: str, count: int, chosen: int = 0) -> Section:
    return Section(
        title, "", "F2", ("do", title), list(range(count)), lambda n: Line(((f"  {title} {n}", ""),)), chosen
    )


def said(found: list[Line]) -> list[str]:
    return [" ".join("".join(text for text, _ in line.parts).split()) for line in found]


def test_parts_share_the_rows() -> None:
    assert shares([3, 20, 5], 100) == [3, 20, 5]
    assert shares([3, 20, 20], 23) == [3, 10, 10]
    assert sum(shares([8, 9, 10, 11], 21)) <= 21
    assert said(lay_out_sections([section("a", 2), section("b", 9)], 20, 10)) == [
        *("a F2", "a 0", "a 1", "", "b F2", "b 0", "b 1", "b 2", "b 3", "and 5 more")
    ]


def test_what_is_chosen_is_in_sight_and_the_last_parts_give_way() -> None:
    found = said(lay_out_sections([section("a", 30, 20), section("b", 5)], 20, 12))
    assert "a 20" in found
    assert any(line.startswith("and 2") for line in found)
    assert said(lay_out_sections([section("a", 3), section("b", 3)], 20, 6)) == ["a F2", "a 0", "a 1", "a 2"]
    assert said(lay_out_sections([section("a", 3)], 20, 0)) == []
    for height in range(30):
        assert len(lay_out_sections([section(name, 7) for name in "abcd"], 20, height)) <= height


def test_a_text_between_things_is_not_left_alone() -> None:
    items = ["today", 1, 2, "older", 3, 4]
    part = Section("a", "", "F2", ("do", ""), items, lambda n: Line(((str(n), ""),)))
    assert said(lay_out_sections([part], 20, 6)) == ["a F2", "today", "1", "2", "and 2 more"]


# --- lines ---


def test_a_short_tree_keeps_what_tells_branches_apart() -> None:
    tree = branched()
    kept = [node.text[:10] for _, node in lists.branch_rows(tree)]
    assert kept == ["Why is the", "Rayleigh s", "Rayleigh, ", "And red at"]
    assert [stem for stem, _ in lists.branch_rows(tree)] == ["", "├─ ", "└─ ", "   "]


def test_days_are_counted_by_midnights() -> None:
    noon = time.mktime((2026, 3, 10, 12, 0, 0, 0, 0, -1))
    assert [lists.days_ago(noon - hours * 3600, noon) for hours in (0, 11, 13, 35, 37)] == [0, 0, 1, 1, 2]
    assert lists.days_ago(1e300, noon) > 1  # of a file that a stranger wrote
    assert lists.format_time(1e300, noon).count("-") == 2


@pytest.mark.slow
@pytest.mark.parametrize("height", [45, 20])
async def test_what_it_looks_like(
    chat: Any, store: Store, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "format_time", lambda seconds: "12:34")
    now = time.time()
    for number, (title, days) in enumerate((("haiku", 0), ("regex", 1), ("oddities", 40), ("the sky", 0))):
        tree = branched(number)
        for node in tree.nodes.values():
            node.created = now - days * 86400
        put(store, tree, f"chat-{number}", title)
    for name, text in (("teacher", "Teach."), ("brief", "Be brief.")):
        personas.save(name, text)
    async with chat(FakeEngine("ok"), store=store, size=(160, height), resume="chat-3") as c:
        await c.until(lambda: last(c) is not None)
        await c.until(lambda: "the sky" in c.app.ui.overview.text and "branches" in c.app.ui.overview.text)
        await c.pilot.pause(0.1)
        compare(f"overview-{height}", shown(c, c.app.ui.overview))
