"""What the chat says while the model is loaded or reads, and of a question that will take long to read."""

import re
import threading
import time
from typing import Any

import pytest
from fakes import FakeEngine

from ropechat.tui.format.status import rounded
from ropechat.util.progress import Progress


@pytest.mark.slow
async def test_a_load_shows_a_bar_the_rate_and_the_time_left(chat: Any) -> None:
    loaded, begun = threading.Event(), time.monotonic()

    def load() -> FakeEngine:
        assert loaded.wait(60)
        return FakeEngine()

    def progress() -> Progress | None:  # 1 GB in a second
        done = (time.monotonic() - begun) * 1e9
        return None if loaded.is_set() else Progress("packing", done, 600e9, "bytes")

    async with chat(load, wait=False, progress=progress) as c:
        await c.until(lambda: "left" in c.line("gauge"))
        amount, rate = r"[\d.]+ [MG]B of 600 GB", r"[\d.]+ [MG]B/s"
        assert re.search(rf"packing [━╸]+─+ {amount} · {rate} · \d+ min( \d+ s)? left", c.line("gauge"))
        assert re.search(r"○ packing \d+%, \d+ min( \d+ s)? left", c.line("title"))
        loaded.set()
        await c.until(lambda: "ready" in c.line("title"))
        assert "ctx" in c.line("gauge")


@pytest.mark.parametrize("size", [(80, 24), (60, 20)])
async def test_a_question_that_takes_long_to_read_says_so(chat: Any, size: tuple[int, int]) -> None:
    engine = FakeEngine("ok")
    engine.prefill_rate = 0.1
    async with chat(engine, size=size) as c:
        c.app.composer.set_text("Why is the sky blue?")
        c.app.writing.count_soon()
        await c.until(lambda: "to read" in c.line("gauge"))
        assert "about 2 min to read" in c.line("gauge")
        assert ("10 tokens, about" in c.line("gauge")) == (size[0] == 80)
        engine.prefill_rate = 1000.0
        c.app.writing.count_soon()
        await c.until(lambda: "to read" not in c.line("gauge"))


def test_an_expected_time_has_no_more_digits_than_it_deserves() -> None:
    assert [rounded(seconds) for seconds in (2.4, 9.4, 12.6, 57, 95, 3500)] == [2, 9, 15, 55, 120, 3480]
