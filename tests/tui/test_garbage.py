"""When garbage is collected while a chat is open."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from fakes import FakeEngine
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._styles_cache import StylesCache
from textual.color import Color
from textual.geometry import Region
from textual.strip import Strip

from ropechat.tui.terminal import gc_pause

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Later tests collect as pytest does."""
    monkeypatch.setattr(gc_pause, "_is_started", False)
    monkeypatch.setattr(gc_pause, "_left", float("-inf"))
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Ring:
    """Refers to itself."""

    alive = 0

    def __init__(self) -> None:
        self.self = self
        Ring.alive += 1

    def __del__(self) -> None:
        Ring.alive -= 1


@pytest.mark.slow
def test_rest_collects_what_is_new_and_looks_at_nothing_twice() -> None:
    gc_pause.start()
    gc_pause.rest()
    kept = Ring()
    Ring()
    gc_pause.rest()
    assert Ring.alive == 1
    assert gc.get_freeze_count() > 1000
    del kept  # frozen: another model's arrival has it looked at again
    gc_pause.rest()
    assert Ring.alive == 1
    gc_pause.thaw()
    gc_pause.rest()
    assert Ring.alive == 0


@pytest.mark.slow
def test_garbage_that_was_set_aside_goes_once_memory_has_grown() -> None:
    """A hundred chats that were open, each in a ring and each looked at once while it was alive."""
    gc_pause.start()
    gc_pause.rest()
    least = sys.getallocatedblocks()
    most, alive = 0, list[int]()
    for _ in range(100):
        chat = Ring()
        chat.__dict__["lines"] = [[number] for number in range(least // 200)]  # of two blocks each
        gc_pause.rest()
        most = max(most, sys.getallocatedblocks())
        alive.append(Ring.alive)
        del chat
    assert max(alive) > 2  # what has been looked at is left alone for a while
    assert most < 1.2 * least
    gc_pause.thaw()
    gc_pause.rest()
    assert Ring.alive == 0


@pytest.mark.slow
def test_what_was_left_goes_although_something_held_it_for_a_moment() -> None:
    """An answer that was still written, when its chat was left, holds it until it has ended."""
    gc_pause.start()
    chat = Ring()
    gc_pause.rest()
    gc_pause.thaw()
    gc_pause.rest()  # the next question is typed
    assert Ring.alive == 1
    del chat
    gc_pause.rest()
    assert Ring.alive == 0


@pytest.mark.slow
def test_garbage_goes_without_a_pause() -> None:
    """Answers that follow each other at once: the chat is never idle, and each leaves rings behind."""
    gc_pause.start()
    gc_pause.rest()
    gc_pause.rest()  # CPython waits for a quarter of what the last one looked at: earlier tests left that
    most = 0
    for _ in range(40):
        rings = [Ring() for _ in range(10_000)]
        del rings
        most = max(most, Ring.alive)
    assert most < 120_000  # 65,000; 238,000 where nothing but `rest` looks at old ones


def test_the_styles_of_places_on_the_screen_go_with_the_garbage() -> None:
    """Textual keeps one for each line of a text at each place."""
    text = Strip([Segment("text", Style(color="red"))])
    gc_pause.thaw()
    for line in range(300):
        text.apply_offsets(0, line).render(Console(color_system="truecolor", force_terminal=True))
    assert Strip.render_ansi.cache_info().currsize >= 300
    gc_pause.thaw()
    assert Strip.render_ansi.cache_info().currsize == 0


def test_the_lines_of_closed_widgets_go_with_the_garbage() -> None:
    """Textual's table of backgrounds holds the lines of each widget that asked for one."""
    lines = StylesCache()
    lines.get_inner_outer(Color.parse("red"), Color.parse("blue"))
    kept = weakref.ref(lines)
    del lines
    gc.collect()
    assert kept() is not None
    gc_pause.thaw()
    assert kept() is None


def test_the_regions_of_left_chats_go_with_the_garbage() -> None:
    """Textual keeps 4,096 answers to whether a point is in a region, and 1,024 to whether a region is."""
    whole = Region(0, 0, 80, 300)
    for line in range(300):
        assert whole.__contains__((3, line))
        assert whole.contains_region(Region(0, 0, 80, line))
    tables = (Region.__contains__, Region.contains_region)
    assert all(table.cache_info().currsize >= 300 for table in tables)
    gc_pause.thaw()
    assert all(table.cache_info().currsize == 0 for table in tables)


def test_few_young_objects_at_a_time_whatever_a_start_had() -> None:
    gc.set_threshold(50_000)
    gc_pause.start()
    assert gc.get_threshold()[0] < 1000


def test_without_a_chat_nothing_changes() -> None:
    frozen, before = gc.get_freeze_count(), gc.get_threshold()
    gc_pause.rest()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (frozen, before)


async def test_a_chat_that_was_left_is_garbage(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its widgets and lines refer to each other, and were set aside while it was open."""
    monkeypatch.setattr("ropechat.tui.ui.gc_pause", gc_pause)
    async with chat(FakeEngine("An answer of some words.")) as c:
        await c.ask("Tell")
        await c.idle()
        gc_pause.start()
        gc_pause.rest()
        shown = [weakref.ref(block) for block in c.app.transcript.blocks]
        c.app.transcript.blocks[0].__dict__["ring"] = c.app.transcript.blocks[0]
        await c.pilot.press("ctrl+n", "ctrl+n")
        await c.idle()
        gc_pause.rest()
        assert shown
        assert not any(block() for block in shown)
