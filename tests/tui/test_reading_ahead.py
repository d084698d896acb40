"""What the chat reads before it is sent: the history, a branch, a file, a long paste, the system text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from branches import transcript
from fakes import FakeEngine, pieces

from ropechat.chat import events as ev
from ropechat.chat.session import Session
from ropechat.sampling import Sampling

if TYPE_CHECKING:
    from pathlib import Path

    from ropechat.store.store import Store

PASTE = "\n".join(f"line {number} of a long text" for number in range(100))


def size(engine: FakeEngine, *texts: str) -> int:
    """Tokens of a prompt of these messages."""
    return sum(len(pieces(text)) + 4 for text in texts)


def totals(engine: FakeEngine) -> list[int]:
    return [text.total for text in engine.read]


async def test_a_chat_that_is_opened_and_a_branch_that_is_chosen(chat: Any, store: Store) -> None:
    engine = FakeEngine(["One answer.", "Another one."])
    async with chat(engine, store=store, system="Be brief.") as c:
        assert totals(engine) == [size(engine, "Be brief.")]
        await c.ask("Hi?")
        await c.idle()
        first = size(engine, "Be brief.", "Hi?", "One answer.")
        await c.until(lambda: totals(engine)[-1] == first)
        await transcript(c, "r")
        second = size(engine, "Be brief.", "Hi?", "Another one.")
        await c.until(lambda: totals(engine)[-1] == second)
        assert "‹ 2/2 ›" in c.screen()
        await transcript(c, "b")
        await c.until(lambda: totals(engine)[-1] == first)
        id = c.app.session.recorder.id
    again = FakeEngine("Third.")
    async with chat(again, store=store, resume=id) as c:
        await c.until(lambda: first in totals(again))


async def test_a_file_and_a_long_paste(chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text(PASTE)
    engine = FakeEngine("Yes.", context=10_000)
    async with chat(engine) as c:
        c.app.composer.set_text("Short?")
        c.app.writing.count()
        c.app.composer.set_text("What is in @notes.txt?")
        c.app.writing.count()
        await c.until(
            lambda: totals(engine)[-1:] == [size(engine, c.app.writing.expand(c.app.composer.text))]
        )
        assert size(engine, "Short?") not in totals(engine)
        c.app.composer.set_text(PASTE)
        c.app.writing.count()
        await c.until(lambda: totals(engine)[-1] == size(engine, PASTE))


async def test_the_system_text_after_a_model_is_switched(chat: Any) -> None:
    other = FakeEngine("ok", name="other-2m")

    class Models:
        def check(self, model: str) -> object:
            return None

        def load(self, model: str, context: int | None = None) -> Any:
            return other

    async with chat(FakeEngine("ok"), models=Models(), system="Be brief.") as c:
        c.app.models.switch_model("other-2m")
        await c.until(lambda: set(totals(other)) == {size(other, "Be brief.")})


async def test_the_gauge_says_how_much_is_read(chat: Any) -> None:
    async with chat(FakeEngine("ok"), size=(100, 24)) as c:
        c.app.session.apply(ev.ReadSoFar(1200, 2069))
        c.app.ui.refresh()
        await c.pilot.pause(0.05)
        assert "1,200 of 2,069 read" in c.screen()
        c.app.session.apply(ev.ReadSoFar(2069, 2069))
        c.app.ui.refresh()
        await c.pilot.pause(0.05)
        assert "read" not in str(c.line("gauge"))


async def test_a_setting_turns_it_off(chat: Any) -> None:
    engine = FakeEngine("ok")
    async with chat(engine) as c:
        before = len(engine.read)
        c.app.ui.settings["read_ahead"](False)
        await c.ask("Hi?")
        await c.idle()
        c.app.writing.count()
        await c.idle()
        assert len(engine.read) == before
        c.app.ui.settings["read_ahead"](True)
        c.app.writing.count()
        await c.until(lambda: len(engine.read) == before + 1)
        c.app.ui.settings["kv_disk_gb"](3)
        assert c.app.session.recorder.kv_bytes == 3_000_000_000


def test_what_is_read_ahead_is_no_longer_said_to_take_time() -> None:
    session = Session("m", Sampling())
    count = session.count("a long draft")
    session.apply(ev.PromptCounted(count.serial, 1000, False, 800, 8.0))
    for done, left in ((200, 800), (600, 400), (1000, 0)):
        session.apply(ev.ReadSoFar(done, 1000))
        assert session.draft_unread == left
        assert session.draft_seconds == pytest.approx(left / 100)
