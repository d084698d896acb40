"""Keys and behaviour of the chat, driven as a user would."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from fakes import STORY, FakeEngine
from textual import events
from textual.css.query import NoMatches
from textual.widgets import Input, OptionList
from textual.worker import WorkerFailed

from ropechat import builtin
from ropechat.conversation import NodeState, Role
from ropechat.errors import ModelNotFoundError
from ropechat.sampling import Sampling
from ropechat.sampling.sources import SourcedSampling
from ropechat.util.markdown.spans import Mark


def answer(c: Any) -> Any:
    return c.app.session.last.answer


@pytest.mark.slow
async def test_first_frame_before_the_model(chat: Any) -> None:
    gate = threading.Event()
    engine = FakeEngine()
    engine.own_sampling = {"temperature": 0.3, "top_k": 7}

    def load() -> FakeEngine:
        gate.wait(60)
        return engine

    async with chat(load, wait=False) as c:
        await c.pilot.pause(0.1)
        assert "loading" in c.line("title")
        assert "send" in c.line("footer")
        c.app.session.restore_sampling(SourcedSampling(Sampling(max_tokens=1000), {}))
        await c.ask("typed too early")  # waits for the model instead of getting lost
        assert answer(c).live
        assert not answer(c).started
        gate.set()
        await c.ready()
        await c.idle()
        assert "fake-1m·f32" in c.line("title")
        assert answer(c).node.text == STORY
        assert (engine.settings[0].temperature, engine.settings[0].top_k) == (0.3, 7)  # of this model
        assert answer(c).node.sampling == engine.settings[0]


async def test_ask_and_answer(chat: Any) -> None:
    engine = FakeEngine(["Hello there.", "And again."])
    async with chat(engine, system="Be brief.") as c:
        await c.ask("Hi!")
        await c.idle()
        assert c.app.composer.text == ""
        assert "Hello there." in c.screen()
        assert "▌ Hi!" in c.screen()
        await c.ask("More?")
        await c.idle()
        assert [(m.role, m.content) for m in engine.asked[-1]] == [
            (Role.SYSTEM, "Be brief."),
            (Role.USER, "Hi!"),
            (Role.ASSISTANT, "Hello there."),
            (Role.USER, "More?"),
        ]
        assert all(step.row is not None and len(step.top) == 20 for step in answer(c).node.steps)
        assert "tok/s" in c.line("title")
        assert "bits/token" in c.line("gauge")


@pytest.mark.slow
@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_stop_keeps_the_text(chat: Any, key: str) -> None:
    engine = FakeEngine(STORY, rate=10)  # far from its end when it is stopped, however slow the machine
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.until(lambda: len(answer(c).node.steps) > 5)
        await c.pilot.press(key)
        assert answer(c).stopping
        await c.idle()
        kept = answer(c).node.text
        assert kept
        assert STORY.startswith(kept)
        assert kept.split()[0] in c.screen()
        assert "stopped" in c.screen()
        await c.ask("Go on")
        await c.until(lambda: len(engine.asked) == 2)
        assert engine.asked[-1][1].content == kept


@pytest.mark.slow
async def test_stop_during_prefill_says_so_and_leaves_the_turn_out(chat: Any) -> None:
    engine = FakeEngine("ok", prefill=20.0)
    async with chat(engine) as c:
        await c.ask("Long one")
        await c.until(lambda: answer(c).prefilled > 0)
        assert "reading" in c.line("title")
        await c.pilot.press("escape")
        await c.idle()
        assert answer(c).node.state is NodeState.STOPPED
        assert "not sent to the model again" in c.screen()
        engine.prefill = 0.0
        await c.ask("Short one")
        await c.idle()
        assert [m.content for m in engine.asked[-1]] == ["Short one"]


class HalfEmoji(FakeEngine):
    """Breaks off after the first of an emoji's two tokens: a token, and no text yet."""

    _script = (b"\xf0\x9f", b"\x99\x82")


async def test_an_answer_of_tokens_without_text_is_read_and_called_so(chat: Any) -> None:
    engine = HalfEmoji(fail_after=1)
    async with chat(engine) as c:
        await c.ask("Smile")
        await c.idle()
        assert (len(answer(c).node.steps), answer(c).node.text) == (1, "")
        assert "The answer failed" in c.screen()
        told = "not sent to the model again" not in c.screen()
        await c.ask("Go on")
        await c.idle()
        assert ("Smile" in [message.content for message in engine.asked[-1]]) == told


@pytest.mark.slow
@pytest.mark.parametrize("key", ["ctrl+q", "ctrl+d"])
async def test_quit_at_once_while_generating(chat: Any, key: str) -> None:
    engine = FakeEngine(STORY * 50, rate=50, context=10**6)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.until(lambda: len(answer(c).node.steps) > 2)
        begun = time.monotonic()
        await c.pilot.press(key)
        await c.until(lambda: not c.app.is_running)
        assert c.app.inference.shutdown(30)
        assert time.monotonic() - begun < 30  # the answer takes longer
        assert c.app.outcome == 0


async def test_ctrl_d_deletes_when_there_is_text(chat: Any) -> None:
    async with chat(FakeEngine()) as c:
        c.app.composer.set_text("abc")
        await c.pilot.press("home", "ctrl+d")
        assert c.app.composer.text == "bc"
        assert c.app.is_running


async def test_ctrl_c_twice_quits_when_idle(chat: Any) -> None:
    async with chat(FakeEngine()) as c:
        await c.pilot.press("ctrl+c")
        assert "again quits" in c.line("footer")
        assert c.app.is_running
        await c.pilot.press("ctrl+c")
        await c.until(lambda: not c.app.is_running)
        assert c.app.outcome == 0


async def test_ctrl_c_copies_a_selection(chat: Any) -> None:
    async with chat(FakeEngine()) as c:
        c.app.composer.set_text("take this")
        c.app.composer.select_all()
        await c.pilot.press("ctrl+c")
        assert c.app.clipboard == "take this"
        assert "copied" in c.line("footer")


@pytest.mark.slow
@pytest.mark.parametrize("key", ["ctrl+j", "alt+enter", "shift+enter"])
async def test_newline_keys(chat: Any, key: str) -> None:
    async with chat(FakeEngine()) as c:
        await c.pilot.press("a", key, "b")
        assert c.app.composer.text == "a\nb"
        assert not c.app.session.turns


async def test_backslash_enter_is_a_newline(chat: Any) -> None:
    async with chat(FakeEngine()) as c:
        await c.pilot.press("a", "backslash", "enter", "b")
        assert c.app.composer.text == "a\nb"


async def test_keys_typed_right_after_enter_stay(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await c.pilot.press("h", "i", "enter", "y", "o")
        await c.idle()
        assert c.app.session.turns[0].question == "hi"
        assert c.app.composer.text == "yo"


async def test_enter_on_nothing_and_while_writing(chat: Any) -> None:
    engine = FakeEngine(STORY, rate=30)
    async with chat(engine) as c:
        await c.pilot.press("enter", "space", "enter")
        assert not c.app.session.turns
        await c.ask("Tell")
        await c.until(lambda: len(answer(c).node.steps) > 2)
        await c.ask("too early")
        assert c.app.composer.text == "too early"
        assert "queued: sent when the answer ends" in c.line("footer")


@pytest.mark.slow
async def test_history(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        for text in ("first", "second\nline"):
            await c.ask(text)
            await c.idle()
        c.app.composer.set_text("draft")
        await c.pilot.press("up")
        assert c.app.composer.text == "second\nline"
        await c.pilot.press("up")  # inside the text first
        assert c.app.composer.text == "second\nline"
        await c.pilot.press("up")
        assert c.app.composer.text == "first"
        await c.pilot.press("up")
        assert c.app.composer.text == "first"
        await c.pilot.press("down")
        assert c.app.composer.text == "second\nline"
        await c.pilot.press("down")
        assert c.app.composer.text == "draft"


async def test_paste_is_cleaned_and_not_sent(chat: Any) -> None:
    from textual import events

    async with chat(FakeEngine()) as c:
        c.app.composer.post_message(events.Paste("one\r\ntwo\x1b[31m\rthree\n"))
        await c.pilot.pause(0.1)
        assert c.app.composer.text == "one\ntwo␛[31m\nthree\n"
        assert not c.app.session.turns


async def test_context_gauge_is_exact_and_counts_the_draft(chat: Any) -> None:
    engine = FakeEngine("Fine.", context=100)
    async with chat(engine) as c:
        assert "100 tokens" in c.line("gauge")
        await c.ask("How are you?")
        used = len(engine.prompt_ids(c.app.session.messages()))
        await c.until(lambda: not c.app.session.generating and c.app.session.draft_tokens == used)
        assert f" {used}/100" in c.line("gauge")
        c.app.composer.set_text("and you?")
        await c.until(lambda: c.app.session.draft_tokens != used)
        used = len(engine.prompt_ids(c.app.session.messages("and you?")))
        assert f" {used}/100" in c.line("gauge")


async def test_context_full_ends_the_answer_and_says_so(chat: Any) -> None:
    async with chat(FakeEngine(STORY, context=40)) as c:
        await c.ask("Tell")
        await c.idle()
        assert answer(c).node.finish_reason == "context"
        assert "Context full (40 tokens)" in c.screen()
        await c.ask("More")
        await c.until(lambda: "leave out the oldest" in c.screen())
        await c.pilot.press("escape")
        await c.idle()
        assert "Not sent" in c.screen()
        assert c.app.composer.text == "More"  # nothing is lost
        assert len(c.app.session.turns) == 1
        assert len(c.app.transcript.blocks) == len(c.app.transcript.page.tops)


@pytest.mark.slow
async def test_a_draft_that_does_not_fit_shows_before_it_is_sent(chat: Any) -> None:
    async with chat(FakeEngine(context=20)) as c:
        c.app.composer.set_text("word " * 50)
        await c.until(lambda: "do not fit in 20" in c.line("gauge"))


async def test_token_limit_is_said(chat: Any) -> None:
    async with chat(FakeEngine(STORY), max_tokens=5) as c:
        await c.ask("Tell")
        await c.idle()
        assert len(answer(c).node.steps) == 5
        assert "token limit" in c.screen()


async def test_error_while_writing_keeps_the_text(chat: Any) -> None:
    engine = FakeEngine(STORY, fail_after=6, error=RuntimeError("[/bad] \x1b[2J"))
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.idle()
        assert answer(c).node.state is NodeState.FAILED
        assert "The answer failed" in c.screen()
        assert "[/bad] ␛[2J" in c.screen()
        assert answer(c).node.text.split()[0] in c.screen()
        engine.fail_after = None
        await c.ask("Again")
        await c.idle()
        assert answer(c).node.state is NodeState.DONE


async def test_load_error_is_shown_and_is_the_exit_code(chat: Any) -> None:
    async with chat(ModelNotFoundError("nowhere: no such directory; give one")) as c:
        assert "nowhere: no such directory" in c.screen()
        assert "not loaded" in c.line("title")
        await c.ask("anyone?")
        assert c.app.composer.text == "anyone?"
        await c.pilot.press("ctrl+q")
        await c.until(lambda: not c.app.is_running)
        assert c.app.outcome == 4


@pytest.mark.slow
async def test_completion_mode_says_so_once(chat: Any) -> None:
    async with chat(FakeEngine(" there was a king.", has_chat_template=False)) as c:
        assert c.screen().count("has no chat template") == 1
        assert "Text to continue" in c.screen()
        await c.ask("Once")
        await c.idle()
        assert "▌ Once there was a king." in c.screen()  # one text, the user's part marked
        block = c.app.transcript.blocks[-1]
        assert block.marks(0, "off") == [Mark(0, 4, "asked")]
        assert [block.token_at(offset) for offset in (0, 3, 4)] == [None, None, 0]
        assert c.screen().count("has no chat template") == 1


async def test_the_builtin_model_says_what_it_is(chat: Any) -> None:
    async with chat(FakeEngine(name=builtin.NAME)) as c:
        screen = " ".join(c.screen().split())
        assert builtin.NOTE in screen


async def test_new_chat_asks_first(chat: Any) -> None:
    async with chat(FakeEngine(STORY, rate=30)) as c:
        await c.ask("Tell")
        await c.until(lambda: len(answer(c).node.steps) > 2)
        await c.pilot.press("ctrl+n")
        assert c.app.session.turns
        assert "ctrl+n again" in c.line("footer")
        await c.pilot.press("ctrl+n")
        await c.idle()
        assert not c.app.session.turns
        assert not any(block.node for block in c.app.transcript.blocks)
        assert "new chat" in c.line("title")
        await c.ask("Again")  # the old answer's last tokens must not land here
        await c.until(lambda: len(answer(c).node.steps) > 2)
        assert STORY.startswith(answer(c).node.text)


@pytest.mark.slow
async def test_help_lists_every_command(chat: Any) -> None:
    from ropechat.tui.commands.registry import ALL, CONTEXTS

    async with chat(FakeEngine(), size=(100, 190)) as c:
        await c.pilot.press("f1")
        await c.pilot.pause(0.1)
        screen = c.screen()
        assert screen.index(CONTEXTS["composer"]) < screen.index(CONTEXTS["everywhere"])
        for command in ALL:
            assert f"/{command.slash}" in screen
            if command.context == "everywhere" and command.keys:
                assert command.shown in screen
                assert command.help in screen
        for command in [one for one in ALL if one.keys][::4]:
            c.app.screen.query_one("#filter").value = command.help
            await c.pilot.pause(0.02)
            assert command.help in c.screen(), command.id
            assert command.shown in c.screen() or "…" in c.screen(), command.id
        await c.pilot.press("escape")
        await c.pilot.pause(0.1)
        assert c.app.composer.has_focus


@pytest.mark.slow
async def test_the_answer_goes_on_under_help_and_palette(chat: Any) -> None:
    async with chat(FakeEngine(STORY, rate=300)) as c:
        await c.ask("Tell")
        await c.until(lambda: len(answer(c).node.steps) > 2)
        await c.pilot.press("f1")
        await c.pilot.resize_terminal(100, 30)
        await c.pilot.press("escape", "ctrl+p")
        await c.idle()
        await c.pilot.press("escape")
        assert answer(c).node.text == STORY
        assert "acorn caps" in c.screen()


@pytest.mark.slow
async def test_palette_runs_commands(chat: Any) -> None:
    async with chat(FakeEngine()) as c:
        await c.pilot.press("ctrl+p")
        await c.pilot.pause(0.2)
        await c.pilot.press(*"tintonoroff")
        await c.pilot.pause(0.5)
        await c.pilot.press("enter")
        await c.until(lambda: c.app.transcript.tint == "off")


@pytest.mark.slow
@pytest.mark.parametrize("opener", ["f1", "f6", "f9", "ctrl+p"])
async def test_a_dialog_that_opens_while_the_chat_ends(chat: Any, opener: str) -> None:
    for turns in range(6):  # of the event loop between the keys
        async with chat(FakeEngine()) as c:
            c.app.post_message(events.Key(opener, None))
            for _ in range(turns):
                await asyncio.sleep(0)
            c.app.post_message(events.Key("ctrl+q", None))
            async with asyncio.timeout(60):
                while c.app.is_running:
                    await asyncio.sleep(0.02)
            assert c.app.outcome == 0


@pytest.mark.slow
async def test_a_fault_while_the_chat_ends_is_its_outcome(chat: Any) -> None:
    async with chat(FakeEngine()) as c:
        c.app.leave(0)
        c.app._handle_exception(NoMatches("a part of a dialog"))
        c.app._handle_exception(WorkerFailed(NoMatches("the list of a palette that searches")))
        assert c.app.outcome == 0
        c.app._handle_exception(ValueError("late"))
        try:
            assert c.app.outcome == 70
        finally:
            c.app._exception = None


@pytest.mark.slow
@pytest.mark.parametrize("opener", ["action_command_palette", "search_themes"])
async def test_a_palette_runs_one_command_however_fast_the_keys_come(chat: Any, opener: str) -> None:
    async with chat(FakeEngine()) as c:
        ran: list[Any] = []
        c.app._run_chosen, theme = ran.append, c.app.theme
        getattr(c.app, opener)()
        await c.until(lambda: c.app.screen.query(OptionList) and c.app.screen.query_one(OptionList).options)
        await c.pilot.press("down")
        field = c.app.screen.query_one(Input)
        for _ in range(3):
            await field.action_submit()  # Enter
        await c.until(lambda: not c.app.ui.covered)
        await c.pilot.pause(0.2)
        assert c.app._exception is None
        assert len(ran) + (c.app.theme != theme) == 1


@pytest.mark.slow
async def test_escape_moves_between_composer_and_transcript(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 5, context=10**5)) as c:
        await c.ask("Tell")
        await c.idle()
        await c.pilot.press("escape")
        assert c.app.transcript.has_focus
        assert "↑ ↓ scroll" in c.line("footer")
        await c.pilot.press("home")
        await c.until(lambda: c.app.transcript.scroll_y == 0)
        await c.pilot.press("end")
        await c.until(lambda: c.app.transcript.scroll_y == c.app.transcript.max_scroll_y)
        await c.pilot.press("escape")
        assert c.app.composer.has_focus


@pytest.mark.slow
async def test_nothing_runs_when_idle(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await c.ask("Hi")
        await c.idle()
        await asyncio.sleep(0.6)
        ticks: list[int] = []
        original = c.app.frames.tick
        c.app.frames.tick = lambda: (ticks.append(1), original())
        await asyncio.sleep(0.5)
        assert not ticks
        assert not c.app.frames.ticker._active.is_set()


def test_no_default_key_is_another_key_in_disguise() -> None:
    from ropechat.tui.commands.registry import ALL

    taken = {"ctrl+i", "ctrl+m", "ctrl+h", "ctrl+[", "ctrl+b", "ctrl+a", "ctrl+s", "ctrl+z"}
    for command in ALL:
        assert not taken & set(command.keys.split(","))
    assert len({command.id for command in ALL}) == len(ALL)


@pytest.mark.slow
@pytest.mark.parametrize("width", [118, 120, 125, 130, 140, 150, 160])
async def test_figures_give_way_to_the_count_of_the_context(chat: Any, width: int) -> None:
    async with chat(FakeEngine(STORY, context=512), size=(width, 24)) as c:
        await c.ask("Tell me")
        await c.idle()
        assert f"{c.app.session.used}/512" in c.line("gauge")
        assert "…" not in c.line("gauge")
        assert "bits/token" in c.line("gauge")
