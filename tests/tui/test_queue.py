"""A question that is typed while an answer is written waits in the composer until that ends."""

from typing import Any

from fakes import FakeEngine


async def ask_two(c: Any, engine: FakeEngine) -> None:
    """Ask, and ask again while the gate holds the first answer."""
    engine.gate.clear()
    await c.ask("First")
    await c.until(lambda: c.app.session.generating)
    await c.ask("Second")


async def test_a_queued_question_is_sent_when_the_answer_ends(chat: Any) -> None:
    engine = FakeEngine(["One two.", "Three four."])
    async with chat(engine) as c:
        await ask_two(c, engine)
        await c.until(lambda: "queued: sent when the answer ends" in c.screen())
        assert c.app.composer.text == "Second"
        engine.gate.set()
        await c.until(lambda: "Three four." in c.screen())
        assert [turn.question for turn in c.app.session.turns] == ["First", "Second"]
        assert c.app.composer.text == ""


async def test_a_queued_question_is_taken_back_by_enter_and_by_a_change(chat: Any) -> None:
    engine = FakeEngine(["One two."])
    async with chat(engine) as c:
        await ask_two(c, engine)
        await c.until(lambda: "queued" in c.screen())
        await c.pilot.press("enter")
        await c.until(lambda: "queued" not in c.screen())
        await c.pilot.press("enter")
        await c.until(lambda: "queued" in c.screen())
        await c.pilot.press("x")
        await c.until(lambda: "queued" not in c.screen())
        engine.gate.set()
        await c.until(lambda: not c.app.session.generating)
        await c.idle()
        assert [turn.question for turn in c.app.session.turns] == ["First"]
        assert c.app.composer.text == "Secondx"


async def test_a_stopped_answer_sends_nothing(chat: Any) -> None:
    engine = FakeEngine(["One two three four five.", "No."])
    async with chat(engine) as c:
        await ask_two(c, engine)
        await c.until(lambda: "queued" in c.screen())
        await c.pilot.press("escape")
        engine.gate.set()
        await c.until(lambda: not c.app.session.generating)
        await c.idle()
        assert [turn.question for turn in c.app.session.turns] == ["First"]
        assert c.app.composer.text == "Second"
