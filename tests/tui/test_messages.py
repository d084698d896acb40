"""What the chat says: messages that are whole, true, and fit where they are said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from branches import last, told, transcript
from fakes import STOP, STORY, FakeEngine, fake_step

from ropechat.chat import personas
from ropechat.chat.presets import USUAL
from ropechat.store.store import Store
from ropechat.tui.screens.context import ContextScreen
from ropechat.tui.widgets.bars import fit_title

if TYPE_CHECKING:
    pass


class Ending(FakeEngine):
    """Ends its answers with a token that stands for no text, as models do."""

    def _steps(self, used: int, given: int, *rest: Any) -> Any:
        for step in super()._steps(used, given, *rest):
            yield step._replace(finish_reason=None)
        yield fake_step(STOP, b"", "", "stop", used + len(self._script))


# --- an answer that is continued ---


async def test_a_continue_that_adds_nothing_says_so_and_loses_nothing(chat: Any, store: Store) -> None:
    said = "The model had finished its answer; nothing was added."
    async with chat(Ending("One two."), store=store) as c:
        await c.ask("Hi")
        await c.idle()
        assert said not in c.screen()
        for _ in range(3):
            await told(c, "/continue")
            assert c.screen().count(said) == 1
        assert "not on disk" not in c.line("footer")
        id, tree = c.app.session.recorder.id, c.app.session.tree
    kept = store.load(id).result(60).tree
    for id, node in tree.nodes.items():
        assert [step.id for step in kept[id].steps] == [step.id for step in node.steps]
    assert len(kept.path()[-1].steps) == 3


# --- headings, times, speeds ---

NOTE = "cut at the token limit · 12 tok · 48 ms · 213 tok/s · 2.40 bits/token"


@pytest.mark.parametrize("width", range(8, 110))
def test_why_an_answer_ended_is_dropped_last(width: int) -> None:
    for title in ("builtin  ‹ 2/2 ›", "fake-1m", "a name of a model that is very long  ‹ 12/14 ›"):
        head, note = fit_title(title, NOTE, width)
        assert len(head) + len(note) + 2 * bool(note) <= width
        if width >= 27:
            assert note.startswith("cut at the t")
        if width >= 16 + 2 + 22 and title.startswith("builtin"):
            assert head == title
            assert note.startswith("cut at the token limit")
    assert fit_title("builtin", NOTE, 100) == ("builtin", NOTE)


async def test_the_reason_stays_beside_siblings_in_a_narrow_heading(chat: Any) -> None:
    async with chat(FakeEngine(STORY, name="builtin", rate=400), max_tokens=12) as c:
        for line in ("Tell me a short story.", "/continue"):
            await told(c, line)
        assert "cut at the token limit" in c.screen()
        assert "builtin  ‹ 2/2 ›" in c.screen()


async def test_the_time_in_a_dialogue_is_not_the_answers(chat: Any) -> None:
    async with chat(FakeEngine(["alpha " * 5, "beta " * 5, "gamma"], context=48)) as c:
        for text in ("one " * 4, "two " * 4):
            await c.ask(text)
            await c.idle()
        now = c.app.session._clock
        await c.ask("three " * 6)
        await c.until(lambda: isinstance(c.app.screen, ContextScreen))
        shown = now()
        await c.pilot.pause(0.1)
        chosen = now()
        assert chosen > shown
        await c.pilot.press("a")
        await c.idle()
        answer = last(c).answer
        assert answer.node.text == "gamma"
        assert answer.asked >= chosen
        assert last(c).request.asked == answer.asked  # what is kept on disk counts from there too


async def test_tokens_that_were_not_drawn_are_told_apart(chat: Any) -> None:
    async with chat(FakeEngine(STORY), max_tokens=12) as c:
        await told(c, "Tell")
        assert "12 tok ·" in c.screen()
        await told(c, "/continue")
        assert "24 tok (12 new) ·" in c.screen()


@pytest.mark.slow
async def test_a_chat_of_another_model_says_so_and_shows_no_speed_of_it(chat: Any, store: Store) -> None:
    async with chat(FakeEngine(STORY, rate=500), store=store) as c:
        await told(c, "Tell")
        assert "tok/s" in c.line("title")
    said = "The answers so far are by fake-1m; other-2m writes the next."
    async with chat(FakeEngine("Fine.", name="other-2m"), store=store, resume="") as c:
        await c.until(lambda: "Once upon" in c.screen() or said in c.screen())
        await c.until(lambda: said in c.screen())
        assert c.screen().count(said) == 1
        assert "tok/s" not in c.line("title")
        assert "ready" in c.line("title")
    async with chat(FakeEngine("Fine."), store=store, resume="") as c:
        await c.until(lambda: "tree" in c.screen() or "roof" in c.screen())
        assert "The answers so far" not in c.screen()
        assert "tok/s" not in c.line("title")  # nothing was written yet


# --- typed commands ---


async def test_find_looks_for_what_is_typed_behind_it(chat: Any) -> None:
    async with chat(FakeEngine("an apple, a pear, an apple")) as c:
        await told(c, "Fruit?")
        await told(c, "/find apple")
        assert c.app.transcript.finder.count == 2
        assert "2/2" in c.screen()
        assert c.app.find_bar.value == "apple"
        await c.pilot.press("n")
        assert "1/2" in c.screen()


async def test_a_find_bar_that_was_left_is_closed(chat: Any) -> None:
    async with chat(FakeEngine("an apple")) as c:
        await told(c, "Fruit?")
        await c.pilot.press("ctrl+f", *"apple", "enter")
        assert c.app.find.active
        c.app.composer.focus()
        await c.pilot.pause(0.05)
        assert not c.app.find.active
        assert not c.app.transcript.finder.active
        assert not c.app.find_bar.display or not c.app.query_one("#find").display
        await c.pilot.press(*"and")
        assert c.app.composer.text == "and"


async def test_stop_while_nothing_is_written_says_so_and_stays(chat: Any) -> None:
    engine = FakeEngine(STORY)
    async with chat(engine) as c:
        assert "no answer is being written" in await told(c, "/stop")
        assert c.app.composer.has_focus
        engine.gate.clear()
        await c.ask("Tell")
        await c.until(lambda: c.app.session.generating)
        await told_while(c, "/stop")
        await c.idle()
        assert last(c).answer.node.finish_reason == "cancelled"
        assert c.app.composer.has_focus


async def told_while(c: Any, line: str) -> None:
    c.app.composer.set_text(line)
    await c.pilot.press("enter")


@pytest.mark.parametrize("given", ["/overview", "ctrl+l"])
async def test_without_room_for_the_overview_each_press_says_so(chat: Any, given: str) -> None:
    async with chat(FakeEngine("ok"), size=(120, 24)) as c:
        for _ in range(2):
            if given.startswith("/"):
                await told(c, given)
            else:
                await c.pilot.press(given)
            assert "the overview needs 150 columns; this screen has 120" in c.line("footer")
            c.app.ui.disarm()
        await c.pilot.resize_terminal(160, 40)
        await c.pilot.pause(0.1)
        assert c.app.ui.overview.display
        await told(c, "/overview")
        assert not c.app.ui.overview.display


@pytest.mark.slow
async def test_no_system_text_is_said_and_no_notice_stays_that_is_untrue(chat: Any) -> None:
    async with chat(FakeEngine(["One.", "Two."])) as c:
        assert "no system text from the next question on" in await told(c, "/system -")
        await told(c, "Hi")
        await told(c, "/system Be long.")
        assert "starts a new branch, under “Be long.”" in c.screen()
        await told(c, "/system Be short.")
        assert "Be long." not in c.screen()
        assert "no system text from the next question on" in await told(c, "/system -")
        assert "begins a branch" not in c.screen()
        await told(c, "And?")
        assert [m.content for m in c.engine.asked[-1]] == ["Hi", "One.", "And?"]


async def test_an_unknown_persona_and_setting_name_what_was_meant(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        assert "nobody: unknown persona; none is saved yet" in await told(c, "/persona nobody")
        for name in ("pirate", "teacher"):
            personas.save(name, f"You are a {name}.")
        assert "nobody: unknown persona; saved: pirate, teacher" in await told(c, "/persona nobody")
        assert "pirat: unknown persona; did you mean pirate?" in await told(c, "/persona pirat")
        assert "tmp: unknown setting; did you mean temperature?" in await told(c, "/set tmp 1")
        usual = ", ".join(USUAL)
        await told(c, "/set qqq 1")
        assert f"qqq: unknown setting; there are {usual}" in " ".join(c.screen().split())


@pytest.mark.slow
async def test_what_regenerates_is_named_as_it_works_where_it_is_said(chat: Any) -> None:
    async with chat(FakeEngine(["One two."])) as c:
        await told(c, "Hi")
        assert "/regen writes another answer" in await told(c, "/ban One")
        await told(c, "/compare")
        assert "/regen writes one" in c.line("footer")
        await transcript(c, "equals_sign")
        assert "; r writes one" in c.line("footer")


# --- messages that are longer than the screen is wide ---


async def test_a_long_message_is_wrapped_and_the_footer_shrinks_again(chat: Any, store: Store) -> None:
    async with chat(FakeEngine("ok"), store=store) as c:
        for text in ("word " * 40 + "end", "/a/path" * 30 + "/end"):
            c.app.ui.hint(text)
            await c.pilot.pause(0.05)
            footer = c.app.ui.footer
            assert footer.size.height == 3
            assert "".join(text.split()) in "".join(c.screen().split())
            assert "…" not in c.line("footer")
            c.app.ui.disarm()
            await c.pilot.pause(0.05)
            assert footer.size.height == 1
            assert "send" in c.line("footer")
        c.app.ui.hint("word " * 60)
        await c.pilot.resize_terminal(160, 24)
        await c.pilot.pause(0.1)
        assert c.app.ui.footer.size.height == 2
        c.app.ui.hint("word " * 4000)
        await c.pilot.pause(0.05)
        assert c.app.ui.footer.size.height == 8
        assert c.line("footer").endswith("…")


async def test_a_standing_message_is_whole(chat: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "/a/folder/that/cannot/be/written: read-only file system; no conversation can be kept"
    async with chat(FakeEngine("ok"), store=store) as c:
        monkeypatch.setattr(store, "trouble_of", lambda chat: words)
        await told(c, "Hi")
        assert f"not on disk: {words}" in c.line("footer")
        rows = c.screen().splitlines()[-2:]
        assert f"not on disk: {words}" == " ".join(" ".join(rows).split())


async def test_the_gauge_says_slide_in_full(chat: Any) -> None:
    engine = FakeEngine("ok " * 30, rate=300, context=131_072)
    engine.reused = 12
    async with chat(engine) as c:
        assert "slide" in await told(c, "/context slide")
        await told(c, "word " * 200)
        assert "  slide" in c.line("gauge")
        assert "…" not in c.line("gauge")
        c.app.transcript.focus()
        await c.pilot.pause(0.05)
        assert "  slide" in c.line("gauge")


async def test_the_key_of_the_view_says_what_it_switches_to(chat: Any) -> None:
    async with chat(FakeEngine("ok"), size=(120, 24)) as c:
        for other in ("prose", "tokens", "prose"):
            assert f"F3 {other}" in c.line("footer")
            titles = [command.title for command in c.app.get_system_commands(c.app.screen)]
            assert other.capitalize() in titles
            await c.pilot.press("f3")
            c.app.ui.disarm()
