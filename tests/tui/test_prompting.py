"""System text, personas, a full context, and the engine's facts, driven as a user would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from branches import last, transcript
from fakes import STORY, FakeEngine

from ropechat.chat.context import OverflowPolicy
from ropechat.conversation import Message, Role
from ropechat.tui.screens.context import ContextScreen
from ropechat.tui.screens.facts import FactsScreen
from ropechat.tui.screens.personas import PersonasScreen
from ropechat.util.paths import personas_folder


def said(engine: FakeEngine) -> list[str]:
    return [message.content for message in engine.asked[-1]]


async def command(c: Any, line: str) -> None:
    await c.ask(line)
    await c.pilot.pause(0.05)
    await c.idle()


# --- system text ---


async def test_another_system_text_begins_a_branch_and_changes_nothing(chat: Any) -> None:
    engine = FakeEngine(["One.", "Two.", "Three."])
    async with chat(engine, system="Be brief.") as c:
        assert "system  “Be brief.”" in c.screen()
        await c.ask("Hi?")
        await c.idle()
        old = {id: node.text for id, node in c.app.session.tree.nodes.items()}
        await command(c, "/system Be long.")
        assert "starts a new branch, under “Be long.”" in c.screen()
        await c.ask("And?")
        await c.idle()
        assert [(m.role, m.content) for m in engine.asked[-1]] == [
            (Role.SYSTEM, "Be long."),
            (Role.USER, "And?"),
        ]
        assert "One." not in c.screen()
        assert "system  “Be long.”" in c.screen()
        tree = c.app.session.tree
        assert {id: tree[id].text for id in old} == old
        await c.ask("More?")
        await c.idle()
        assert said(engine) == ["Be long.", "And?", "Two.", "More?"]
        c.app.session.go(next(id for id, text in old.items() if text == "Hi?"))
        c.app.turns.show()
        await c.ask("Again?")  # the old branch goes on under its own text
        await c.idle()
        assert said(engine) == ["Be brief.", "Hi?", "One.", "Again?"]


async def test_a_system_text_that_was_used_goes_on_at_its_branch(chat: Any) -> None:
    engine = FakeEngine("ok")
    async with chat(engine, system="A") as c:
        for line in ("one", "/system -", "two", "/system A", "three"):
            await command(c, line)
        roots = c.app.session.tree.children(None)
        assert [(node.role, node.text) for node in roots] == [(Role.SYSTEM, "A"), (Role.USER, "two")]
        assert said(engine) == ["A", "three"]


async def test_the_same_system_text_changes_nothing(chat: Any) -> None:
    engine = FakeEngine("ok")
    async with chat(engine, system="A") as c:
        for line in ("one", "/system B", "/system A", "two"):
            await command(c, line)
        assert said(engine) == ["A", "one", "ok", "two"]


@pytest.mark.slow
async def test_personas_are_kept_chosen_and_deleted(chat: Any) -> None:
    engine = FakeEngine("ok")
    async with chat(engine, size=(120, 30)) as c:
        await command(c, "/persona save teacher")
        assert "no system text to save" in c.line("footer")
        await command(c, "/system You are a patient teacher.")
        await command(c, "/persona save teacher")
        assert (personas_folder() / "teacher.txt").read_text() == "You are a patient teacher.\n"
        assert "persona teacher" in c.line("title")
        await command(c, "/system -")
        await command(c, "/persona")
        await c.until(lambda: isinstance(c.app.screen, PersonasScreen))
        assert "teacher" in c.screen()
        await c.pilot.press("j", "enter")
        await c.until(lambda: "system  teacher: “You are" in c.screen())
        await c.ask("Hi?")
        await c.idle()
        assert said(engine) == ["You are a patient teacher.", "Hi?"]
        await command(c, "/persona")
        await c.until(lambda: isinstance(c.app.screen, PersonasScreen))
        await c.pilot.press("n", *"two", "enter")
        await c.until(lambda: (personas_folder() / "two.txt").exists())
        await c.pilot.press("ctrl+x")
        assert (personas_folder() / "teacher.txt").exists()
        await c.pilot.press("ctrl+x")
        await c.until(lambda: not (personas_folder() / "teacher.txt").exists())
        await c.pilot.press("escape")
        assert c.app.session.system == "You are a patient teacher."


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../x", "", "a" * 41, "a/b", ".hidden"])
async def test_names_of_personas_stay_in_their_folder(chat: Any, name: str) -> None:
    async with chat(FakeEngine("ok"), system="A") as c:
        await command(c, f"/persona save {name}")
        assert not list(Path(personas_folder()).glob("**/*"))
        assert "must be 1 to 40 letters" in c.line("footer") or "unknown persona" in c.line("footer")


async def test_what_no_persona_can_be_is_left_out(chat: Any) -> None:
    folder = personas_folder()
    folder.mkdir(parents=True)
    (folder / "good.txt").write_bytes(b"\x1b[31mred \xff")
    (folder / "large.txt").write_text("x" * 300_000)
    (folder / "empty.txt").write_text("\n")
    async with chat(FakeEngine("ok")) as c:
        await command(c, "/persona large")
        assert "large: unknown persona; saved: good" in c.line("footer")
        await command(c, "/persona good")
        assert "good: “␛[31mred \ufffd”" in c.screen()


# --- a full context ---


def filled(**options: Any) -> FakeEngine:
    return FakeEngine(["alpha " * 5, "beta " * 5, "gamma", "delta"], context=48, **options)


async def fill(c: Any) -> None:
    for text in ("one " * 4, "two " * 4):
        await c.ask(text)
        await c.idle()


async def test_the_gauge_says_before_what_will_happen(chat: Any) -> None:
    async with chat(filled()) as c:
        await fill(c)
        c.app.composer.set_text("three " * 6)
        await c.until(lambda: "do not fit in 48: ⏎ asks what to leave out" in c.line("gauge"))


async def overflow(c: Any) -> None:
    await fill(c)
    await c.ask("three " * 6)
    await c.until(lambda: isinstance(c.app.screen, ContextScreen))


class Roomy:
    """Loads the model of these tests with any context."""

    def __init__(self) -> None:
        self.loaded: list[FakeEngine] = []

    def check(self, model: str) -> object:
        return None

    def load(self, model: str, context: int | None = None) -> FakeEngine:
        self.loaded.append(FakeEngine(["so be it"], context=context or 48, facts=ROOM))
        return self.loaded[-1]


ROOM = {"usable_length": 1000, "kv_token_bytes": 100_000}


@pytest.mark.parametrize("free", [None, 8_000_000, 4_000_000])
async def test_the_sheet_offers_a_larger_context_where_memory_permits(
    chat: Any, monkeypatch: pytest.MonkeyPatch, free: int | None
) -> None:
    monkeypatch.setattr("ropechat.chat.context.free_memory", lambda: free)
    models = Roomy()
    async with chat(filled(facts=ROOM), models=models) as c:
        c.app.sampling.bias("#5 2")
        await overflow(c)
        if free == 4_000_000:  # 48 tokens more take 4.8 MB
            assert "use a context of" not in c.screen()
            return
        assert "l  use a context of 96" in c.screen()
        assert "+ 4.8 MB" in c.screen()
        await c.pilot.press("l")
        await c.idle()
        assert "so be it" in c.screen()
        assert [engine.context for engine in models.loaded] == [96]
        assert [len(engine.asked) for engine in models.loaded] == [1]
        assert "three three" in models.loaded[0].asked[0][-1].content
        assert len(models.loaded[0].asked[0]) == 5  # nothing is left out
        assert c.app.session.sampling.logit_bias == ((5, 2.0),)


async def test_a_chat_near_its_limit_tells_of_a_larger_context_once(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropechat.chat.context.free_memory", lambda: None)
    async with chat(filled(facts=ROOM), models=Roomy(), size=(100, 40)) as c:
        await c.ask("one " * 26)
        await c.idle()
        told = "of its context of 48 tokens. /context 96 makes room for 96 (+ 4.8 MB)."
        assert " ".join(c.screen().split()).count(told) == 1
        await c.ask("/regen")
        await c.idle()
        await command(c, "/context 2000")
        assert "/context N: 64 to 1,000 tokens with this model" in c.line("footer")
        await command(c, "/context 48")
        await command(c, "/context 500")
        await c.until(lambda: c.app.session.context == 500)
        await command(c, "/context 500")
        assert "the context is 500 tokens already" in c.line("footer")
        await command(c, "/context")
        assert "/context 1000 makes room for 1,000" in c.line("footer")


async def test_a_question_that_does_not_fit_asks(chat: Any) -> None:
    engine = filled()
    async with chat(engine) as c:
        await overflow(c)
        asked = len(engine.asked)
        await c.pilot.press("escape")
        await c.until(lambda: "Not sent" in c.screen())
        assert len(engine.asked) == asked
        assert c.app.composer.text == "three " * 6
        assert len(c.app.session.turns) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("key", "later"), [("s", OverflowPolicy.ASK), ("a", OverflowPolicy.SLIDE)])
async def test_slide_leaves_out_as_few_as_needed_and_says_so(
    chat: Any, key: str, later: OverflowPolicy
) -> None:
    engine = filled()
    async with chat(engine, size=(100, 40)) as c:
        await overflow(c)
        await c.pilot.press(key)
        await c.until(lambda: len(engine.asked) == 3)
        await c.idle()
        assert said(engine) == ["two " * 4, "beta " * 5, "three " * 6]
        assert "oldest question is no longer sent" in " ".join(c.screen().split())
        assert "which reads from “two two" in " ".join(c.screen().split())
        assert c.app.session.when_full is later
        used = len(engine.prompt_ids(c.app.session.messages()))
        await c.until(lambda: f" {used}/48" in c.line("gauge"))
        assert c.app.session.turns[0].answer.node.text == "alpha " * 5  # nothing is gone
        await transcript(c, "r")  # the same is read for another answer
        assert said(engine) == ["two " * 4, "beta " * 5, "three " * 6]


async def test_begin_fresh_reads_the_question_only(chat: Any) -> None:
    engine = filled()
    async with chat(engine, system="S", size=(100, 40)) as c:
        await overflow(c)
        await c.pilot.press("f")
        await c.until(lambda: len(engine.asked) == 3)
        await c.idle()
        assert said(engine) == ["S", "three " * 6]
        assert "which reads from this one on" in " ".join(c.screen().split())
        await c.ask("four")
        await c.idle()
        assert said(engine) == ["S", "three " * 6, "gamma", "four"]
        earlier = c.app.session.turns[1]
        assert [m.content for m in c.app.session._messages(earlier.asked)][1:] == [
            "one " * 4,
            "alpha " * 5,
            "two " * 4,
        ]


@pytest.mark.slow
async def test_slide_and_stop_are_remembered(chat: Any) -> None:
    engine = filled()
    async with chat(engine) as c:
        await command(c, "/context slide")
        assert "the oldest turns are left out" in c.line("footer")
        await fill(c)
        await c.ask("three " * 6)
        await c.until(lambda: len(engine.asked) == 3)
        await c.idle()
        assert said(engine)[-1] == "three " * 6
        assert len(said(engine)) == 3
        await command(c, "/context stop")
        await c.ask("four " * 20)
        await c.until(lambda: "Not sent" in c.screen())
        assert len(engine.asked) == 3
        await command(c, "/context")
        assert c.line("footer").strip().startswith("stop: ")
        await command(c, "/context never")
        assert "/context ask|slide|stop" in c.line("footer")


@pytest.mark.slow
async def test_a_question_too_long_by_itself_is_not_sent_whatever_is_set(chat: Any) -> None:
    for setting in OverflowPolicy:
        engine = FakeEngine(["ok"], context=30)
        async with chat(engine) as c:
            await command(c, f"/context {setting}")
            await c.ask("word " * 60)
            await c.until(lambda: "Not sent" in c.screen())
            assert not engine.asked
            await c.ask("short")
            await c.idle()
            await c.ask("word " * 60)
            await c.until(lambda: isinstance(c.app.screen, ContextScreen) or c.screen().count("Not sent") > 0)


@pytest.mark.slow
@pytest.mark.parametrize("setting", OverflowPolicy)
async def test_a_question_too_long_by_itself_is_told_what_helps(chat: Any, setting: OverflowPolicy) -> None:
    """With turns before it: no sheet whose ways cannot work, one number on all places, no new chat."""
    engine = FakeEngine(["ok", "fine"], context=48, facts={"max_position_embeddings": 1000})
    async with chat(engine, system="S", size=(100, 40)) as c:
        await command(c, f"/context {setting}")
        await c.ask("one " * 4)
        await c.idle()
        long = "word " * 60
        alone = len(engine.prompt_ids([Message(Role.SYSTEM, "S"), Message(Role.USER, long)]))
        assert alone < len(engine.prompt_ids(c.app.session.messages(long)))
        c.app.composer.set_text(long)
        await c.until(lambda: f" {alone} tokens do not fit in 48: too long by itself" in c.line("gauge"))
        await c.ask(long)
        await c.until(lambda: "Not sent" in c.screen())
        assert not isinstance(c.app.screen, ContextScreen)
        screen = " ".join(c.screen().split())
        assert f"Not sent: {alone} tokens do not fit in the context of 48. The question alone" in screen
        assert "shorten the text, or load a model with a larger context (F6)" in screen
        assert "new chat with" not in screen
        assert len(engine.asked) == 1
        assert c.app.composer.text == long
        assert not c.app.session.tree[c.app.session.turns[-1].asked].context_start


@pytest.mark.slow
async def test_the_sheet_the_gauge_and_the_refusal_have_one_number(chat: Any) -> None:
    engine = filled()
    async with chat(engine, size=(100, 40)) as c:
        await fill(c)
        c.app.composer.set_text("three " * 6)
        tokens = len(engine.prompt_ids(c.app.session.messages("three " * 6)))
        await c.until(lambda: f" {tokens} tokens do not fit in 48" in c.line("gauge"))
        await c.pilot.press("enter")
        await c.until(lambda: isinstance(c.app.screen, ContextScreen))
        assert f"{tokens} tokens do not fit" in c.screen()
        await c.pilot.press("escape")
        await c.until(lambda: f"Not sent: {tokens} tokens do not fit" in c.screen())
        assert "begin a new chat with ctrl+n" in " ".join(c.screen().split())


@pytest.mark.slow
@pytest.mark.parametrize("setting", [OverflowPolicy.ASK, OverflowPolicy.SLIDE])
async def test_an_answer_that_the_context_ended_goes_on_without_the_oldest_turns(
    chat: Any, setting: OverflowPolicy
) -> None:
    """What the answer begins with counts as well: sliding makes room for it, instead of asking again."""
    engine = FakeEngine(["alpha " * 5, "beta " * 40, "beta " * 40], context=48)
    async with chat(engine, size=(100, 40)) as c:
        await command(c, f"/context {setting}")
        await c.ask("one " * 4)
        await c.idle()
        await c.ask("two")
        await c.idle()
        assert last(c).answer.node.finish_reason == "context"
        await c.ask("/continue")
        if setting is OverflowPolicy.ASK:
            await c.until(lambda: isinstance(c.app.screen, ContextScreen))
            await c.pilot.press("s")
        await c.until(lambda: len(engine.asked) == 3)
        await c.idle()
        assert not isinstance(c.app.screen, ContextScreen)
        assert said(engine) == ["two"]
        assert last(c).answer.node.text.startswith("beta " * 30)


async def test_an_answer_that_alone_fills_the_context_cannot_go_on(chat: Any) -> None:
    async with chat(FakeEngine(STORY, context=40), size=(100, 40)) as c:
        await c.ask("Tell")
        await c.idle()
        await transcript(c, "c")
        await c.until(lambda: "Not sent" in c.screen())
        screen = " ".join(c.screen().split())
        assert "The question and this answer are too long: load a model with a larger context (F6)." in screen
        assert len(c.engine.asked) == 1


# --- facts ---


async def test_the_line_after_an_answer_and_the_sheet(chat: Any) -> None:
    facts = {
        **{"dtype": "q8_0", "isa": "avx2", "threads": 3, "weight_bytes": 1_500_000},
        **{"num_parameters": 1_000_000, "notes": ["dtype: as stored\x1b[2J"]},
    }
    engine = FakeEngine("a b c d e f", facts=facts, prefill=0.05, rate=200)
    engine.reused, engine.kv_bytes = 3, 123_000
    async with chat(engine, size=(160, 45)) as c:
        await c.ask("How are you today?")
        await c.idle()
        answer = last(c).answer
        assert answer.reused == 3
        assert answer.prefill_rate == pytest.approx(
            (answer.node.prompt_tokens - 3) / (answer.first_at - answer.read_from)
        )
        for words in ("prefill", "decode", "from cache 3", "first token", "bits/token"):
            assert words in c.line("gauge")
        await c.pilot.resize_terminal(100, 60)
        await c.pilot.press("f9")
        await c.until(lambda: isinstance(c.app.screen, FactsScreen))
        for words in (
            *("3 tokens, ", "q8_0", "avx2", "threads", "1.5 MB", "123 kB", "first token"),
            *("as stored␛[2J", "parameters"),
        ):
            assert words in c.screen()
        await c.pilot.press("f9")
        await c.until(lambda: not isinstance(c.app.screen, FactsScreen))
        await command(c, "/facts")
        await c.until(lambda: isinstance(c.app.screen, FactsScreen))


async def test_facts_of_a_kept_answer_are_not_made_up(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await c.pilot.press("f9")
        await c.until(lambda: "Memory" in c.screen())
        assert "prefill" not in c.screen()


async def test_what_there_is_to_know_of_prompts_is_said_once_above_the_question(chat: Any) -> None:
    class Folding(FakeEngine):
        told = False

        def prompt_ids(self, messages: Any, *args: Any, **options: Any) -> list[int]:
            if messages[0].role is Role.SYSTEM and not self.told:
                self.told = True
                self.prompts.on_note("the system message is [folded]")
            return super().prompt_ids(messages, *args, **options)

    engine = Folding("Fine.")
    engine.prompts.told_in_vain = ["enable_thinkin"]
    async with chat(engine, size=(100, 30), system="Be short.") as c:
        assert "enable_thinkin: this model's chat template does not use this variable" in c.screen()
        await c.ask("Hello?")
        await c.until(lambda: not c.app.session.generating)
        await c.ask("Again?")
        await c.idle()
        rows = c.screen()
        assert rows.count("the system message is [folded]") == 1
        assert rows.index("[folded]") < rows.index("▌ Hello?") < rows.index("▌ Again?")
