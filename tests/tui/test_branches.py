"""The tree of the chat, driven as a user would: nothing is overwritten, and all of it is kept."""

from __future__ import annotations

from typing import Any

import pytest
from branches import answers, last, transcript
from fakes import STOP, STORY, FakeEngine, pieces

from ropechat.conversation import NodeState, Role
from ropechat.tui.format.lists import describe_node, format_time, snippet, tree_rows
from ropechat.tui.render.sparkline import sparkline
from ropechat.tui.screens.branches import BranchesScreen
from ropechat.tui.screens.compare import CompareScreen, describe_comparison
from ropechat.tui.screens.fork import ForkScreen


async def test_regenerate_and_siblings(chat: Any) -> None:
    engine = FakeEngine(["One answer.", "Another one.", "More."])
    async with chat(engine) as c:
        await c.ask("Hi?")
        await c.idle()
        await transcript(c, "r")
        assert answers(c) == ["One answer.", "Another one."]
        assert engine.settings[0].seed != engine.settings[1].seed
        assert engine.asked[0] == engine.asked[1]
        assert "‹ 2/2 ›" in c.screen()
        assert "One answer." not in c.screen()
        await transcript(c, "left_square_bracket")
        assert "‹ 1/2 ›" in c.screen()
        assert "One answer." in c.screen()
        await c.ask("And?")
        await c.idle()
        assert [m.content for m in engine.asked[-1]] == ["Hi?", "One answer.", "And?"]
        c.app.transcript.focus()
        await transcript(c, "right_square_bracket")
        assert "no other answer" in c.line("footer")


async def test_the_heading_of_a_version_that_was_stopped(chat: Any) -> None:
    """All that differs between two versions is drawn: the place in the heading too, and the line below."""
    engine = FakeEngine(STORY, rate=200)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.until(lambda: len(last(c).answer.node.steps) > 5)
        await c.pilot.press("escape")
        await c.idle()
        engine.rate = 0
        await transcript(c, "r")
        await transcript(c, "left_square_bracket")
        assert "‹ 1/2 ›" in c.screen()
        assert "stopped" in c.screen()
        await transcript(c, "right_square_bracket")
        assert "‹ 2/2 ›" in c.screen()
        assert "stopped" not in c.screen()


async def test_a_locked_seed_gives_each_answer_its_own(chat: Any) -> None:
    engine = FakeEngine(["a b", "c d"])
    async with chat(engine, seed=7) as c:
        await c.ask("Hi?")
        await c.idle()
        await transcript(c, "r")
        assert [settings.seed for settings in engine.settings] == [7, 8]


async def test_edit_a_question(chat: Any) -> None:
    engine = FakeEngine(["One.", "Two."])
    async with chat(engine) as c:
        await c.ask("Frist?")
        await c.idle()
        await transcript(c, "e")
        assert c.app.composer.text == "Frist?"
        await c.ask("First?")
        await c.idle()
        assert [m.content for m in engine.asked[-1]] == ["First?"]
        assert "you  ‹ 2/2 ›" in c.screen()
        assert "Frist?" not in c.screen()
        await transcript(c, "left_square_bracket")
        assert "Frist?" in c.screen()
        assert "One." in c.screen()


async def test_an_edit_is_one_until_esc(chat: Any) -> None:
    engine = FakeEngine(["One.", "Two."])
    async with chat(engine) as c:
        await c.ask("Hi?")
        await c.idle()
        await transcript(c, "e")
        assert "editing: ⏎ saves a new version of this question" in c.line("footer")
        c.app.composer.set_text("")
        await c.pilot.pause(0.05)
        assert "editing: ⏎ saves a new version of this question" in c.line("footer")
        await c.ask("Next?")
        await c.idle()
        assert [turn.question for turn in c.app.session.turns] == ["Next?"]
        assert "‹ 2/2 ›" in c.screen()
        await transcript(c, "E")
        assert "editing: ⏎ saves a new version of this answer" in c.line("footer")
        await c.pilot.press("escape")
        assert c.app.composer.text == ""
        assert "editing" not in c.line("footer")


async def test_edit_an_answer_and_go_on(chat: Any) -> None:
    engine = FakeEngine(STORY)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.idle()
        tokens = pieces(STORY)
        kept = b"".join(tokens[:10]).decode()
        await transcript(c, "E")
        await c.ask(kept + "!!")
        await c.idle()
        node = c.app.session.tree[last(c).node]
        assert node.text == kept + "!!"
        assert node.state is NodeState.DONE
        assert len(engine.asked) == 1  # the model was not asked
        old = c.app.session.tree.siblings(node.id)[0]
        assert node.steps[:10] == old.steps[:10]  # their records stay
        assert node.scored == 10
        assert node.prefix_length == 12
        await transcript(c, "c")
        new = c.app.session.tree[last(c).node]
        assert new.text.startswith(kept + "!!")
        assert len(new.steps) > 12
        assert engine.prefixes[-1] == [step.id for step in node.steps]
        assert len(answers(c)) == 3


async def test_continue_a_stopped_answer(chat: Any) -> None:
    engine = FakeEngine(STORY, rate=200)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.until(lambda: len(last(c).answer.node.steps) > 5)
        await c.pilot.press("escape")
        await c.idle()
        stopped = last(c).answer.node.text
        engine.rate = 0
        await transcript(c, "c")
        assert last(c).answer.node.text == STORY
        assert answers(c) == [stopped, STORY]
        assert last(c).answer.node.state is NodeState.DONE


async def test_fork_at_a_token(chat: Any) -> None:
    engine = FakeEngine(STORY)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.idle()
        first = c.app.session.tree[last(c).node]
        c.app.answers.fork(first.id, 20, first.steps[20].top[3][0])
        await c.pilot.pause(0.1)
        await c.idle()
        node = c.app.session.tree[last(c).node]
        assert [step.id for step in node.steps[:20]] == [step.id for step in first.steps[:20]]
        other = node.steps[20]
        assert (other.id, other.rank) == (first.steps[20].top[3][0], 4)
        assert other.text == engine.token_bytes(other.id).decode()
        assert engine.prefixes[-1] == [step.id for step in node.steps[:21]]
        assert engine.settings[-1] == engine.settings[0]  # the seed too
        c.app.answers.fork(first.id, 20, first.steps[20].id)  # the same token: the same rest
        await c.pilot.pause(0.1)
        await c.idle()
        assert engine.settings[-1].max_tokens == engine.settings[0].max_tokens - 21
        assert [step.id for step in c.app.session.tree[last(c).node].steps] == [s.id for s in first.steps]
        assert (node.prefix_length, node.origin.index) == (21, 20)
        assert first.text == STORY
        c.app.answers.fork(first.id, 3, STOP)  # an end that was chosen is one
        await c.pilot.pause(0.1)
        await c.idle()
        assert last(c).answer.node.text == b"".join(pieces(STORY)[:3]).decode()
        assert last(c).answer.node.state is NodeState.DONE


async def test_a_fork_while_it_writes_stops_first(chat: Any) -> None:
    engine = FakeEngine(STORY * 50, rate=100, context=10**6)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.until(lambda: len(last(c).answer.node.steps) > 5)
        first = last(c).node
        c.app.answers.fork(first, 2, 77)
        await c.until(lambda: last(c).node != first)
        engine.rate = 0
        await c.idle()
        assert c.app.session.tree[first].state is NodeState.STOPPED
        assert last(c).answer.node.state is NodeState.DONE


async def test_the_fork_screen_offers_previews_and_forks(chat: Any) -> None:
    engine = FakeEngine(STORY)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.idle()
        await c.ask("/fork 999")
        assert "the last answer has" in c.line("footer")
        await c.ask("/fork 5")
        await c.until(lambda: isinstance(c.app.screen, ForkScreen))
        assert "token 5 of" in c.screen()
        before = len(c.app.session.tree)
        await c.pilot.press("p")
        await c.until(lambda: "greedy:" in c.screen())
        assert len(c.app.session.tree) == before
        assert engine.settings[-1].temperature == 0
        engine.fail_after = 6
        await c.pilot.press("p")
        await c.until(lambda: str(engine.error) in c.screen())
        engine.fail_after = None
        await c.pilot.press("down", "enter")
        await c.until(lambda: len(c.app.session.tree) == before + 1)
        await c.idle()
        assert c.app.session.tree[last(c).node].origin.index == 4


async def test_fork_under_the_cursor(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await c.ask("Hi")
        await c.idle()
        await c.ask("/fork")
        await c.until(lambda: "put the cursor on a token" in c.line("footer"))
        await transcript(c, "h", "h", "f")  # the third of the last tokens
        await c.until(lambda: isinstance(c.app.screen, ForkScreen))
        node, index = c.app.transcript.cursor_token()
        assert node == last(c).node
        await c.pilot.press("enter")
        await c.until(lambda: len(answers(c)) == 2)
        await c.idle()
        assert c.app.session.tree[last(c).node].origin.index == index


async def test_fork_from_the_inspector(chat: Any) -> None:
    engine = FakeEngine(STORY)
    async with chat(engine, size=(140, 40)) as c:
        await c.ask("Hi")
        await c.idle()
        c.app.transcript.focus()
        await c.pilot.press("left", "h", "enter", "j")
        await c.pilot.pause(0.1)
        await c.pilot.press("p")
        await c.until(lambda: "greedy" in c.screen())
        engine.fail_after = len(pieces(STORY)) - 1
        await c.pilot.press("p")
        await c.until(lambda: "no preview: a bug in ropechat: RuntimeError" in c.screen())
        engine.fail_after = None
        assert len(answers(c)) == 1
        before = c.app.reading._alternative()
        assert before is not None
        await c.pilot.press("enter")
        await c.until(lambda: len(answers(c)) == 2)
        await c.idle()
        node = c.app.session.tree[last(c).node]
        assert (node.origin.node, node.origin.index, node.steps[node.origin.index].id) == before


async def test_a_fork_that_leaves_no_room_is_taken_back(chat: Any) -> None:
    engine = FakeEngine("a b c d e f g h", context=14)
    async with chat(engine) as c:
        await c.ask("Hi")
        await c.idle()
        node = c.app.session.tree[last(c).node]
        assert node.finish_reason == "stop"
        engine.context = 6
        c.app.answers.fork(node.id, 5, 9)
        await c.until(lambda: "Not sent" in c.screen())
        assert answers(c) == [node.text]
        assert last(c).node == node.id
        assert c.app.composer.text == ""


async def test_another_models_answer_is_not_forked(chat: Any) -> None:
    async with chat(FakeEngine("x y")) as c:
        await c.ask("Hi")
        await c.idle()
        node = c.app.session.tree[last(c).node]
        node.model = "other-7b"
        c.app.answers.fork(node.id, 0, 5)
        await c.pilot.pause(0.05)
        assert "written by other-7b" in c.line("footer")
        await transcript(c, "r")
        assert len(answers(c)) == 2


@pytest.mark.slow
async def test_branches_and_compare(chat: Any) -> None:
    engine = FakeEngine(STORY)
    async with chat(engine, size=(120, 40)) as c:
        await c.ask("Tell")
        await c.idle()
        first = c.app.session.tree[last(c).node]
        c.app.answers.fork(first.id, 10, 77)
        await c.pilot.pause(0.1)
        await c.idle()
        second = c.app.session.tree[last(c).node]
        await c.pilot.press("f5")
        await c.until(lambda: isinstance(c.app.screen, BranchesScreen))
        await c.pilot.pause(0.1)
        assert "2 branches, 2 answers" in c.screen()
        assert "@11 →" in c.screen()
        await c.pilot.press("equals_sign")
        await c.until(lambda: isinstance(c.app.screen, CompareScreen))
        await c.pilot.pause(0.1)
        assert "10 tokens shared" in c.screen()
        assert "likeliest: " in c.screen()
        assert f"{first.bits:.1f} bits" in c.screen()
        await c.pilot.press("j", "escape")
        await c.pilot.press("up", "enter")
        await c.until(lambda: last(c).node == first.id)
        await c.pilot.press("f5")
        await c.until(lambda: isinstance(c.app.screen, BranchesScreen))
        await c.pilot.press("down", "d")
        assert second.id in c.app.session.tree.nodes
        await c.pilot.press("d", "escape")
        await c.pilot.pause(0.1)
        assert second.id not in c.app.session.tree.nodes
        assert last(c).node == first.id


def test_what_the_screens_say() -> None:
    from chats import branched

    tree = branched()
    lines = [(stem, describe_node(tree, node)) for stem, node in tree_rows(tree)]
    assert lines == [
        ("", "system"),
        ("", "you"),
        ("├─ ", "answer 1/2"),
        ("└─ ", "answer 2/2 @2 → ·mostly."),
        ("   ", "you"),
        ("   ", "answer"),
    ]
    first, second = tree.siblings(tree.path()[2].id)
    assert (snippet(first), snippet(second)) == ("Rayleigh scattering of light", "")
    assert (
        describe_comparison([first, first], [1, 2])
        == f"{len(first.steps)} tokens shared · 0 and 0 follow · equally likely per token"
    )
    assert "likeliest: " in describe_comparison([first, second], [1, 2])
    assert len(sparkline(first.steps)) == len(first.steps)
    assert sparkline([]) == ""
    assert len(sparkline(first.steps * 100)) == 60
    assert format_time(86400 * 365, 86400 * 365 + 60).count(":") == 1
    assert format_time(86400 * 365, 86400 * 400).count("-") == 2


async def test_turns_before_another_answer_stay_as_they_are(chat: Any) -> None:
    engine = FakeEngine(["One.", STORY, "Three.", STORY])
    async with chat(engine, size=(80, 60)) as c:
        for question in ("First?", "Second?"):
            await c.ask(question)
            await c.idle()
        c.app.turns.notice("notice", "said meanwhile")
        before = list(c.app.transcript.blocks)
        await transcript(c, "r")
        assert c.app.transcript.blocks[:-2] == before[: before.index(c.app.transcript.blocks[-3]) + 1]
        assert c.app.transcript.blocks[-3].text == "One."
        assert "said meanwhile" not in c.screen()
        c.app.session.go(next(node.id for node in c.app.session.tree.nodes.values() if node.text == STORY))
        c.app.turns.show()
        engine.gate.clear()
        c.app.answers.fork(last(c).node, 30, 77)
        known = b"".join(pieces(STORY)[:30]).decode()
        await c.until(lambda: c.app.transcript.blocks[-1].text.startswith(known))
        assert last(c).answer.first_at is None  # the model has said nothing yet
        engine.gate.set()
        await c.idle()
        assert last(c).answer.node.text.startswith(f"{known} word77")
        assert c.app.transcript.blocks[-1].text == last(c).answer.node.text


async def test_a_fork_that_never_begins_shows_nothing_of_it(chat: Any) -> None:
    engine = FakeEngine(STORY)
    async with chat(engine) as c:
        await c.ask("Tell")
        await c.idle()
        first = last(c).node

        def spell(*arguments: Any) -> Any:
            raise RuntimeError("broken on purpose")

        engine.spell = spell  # type: ignore[method-assign]
        c.app.answers.fork(first, 5, 77)
        await c.until(lambda: "The answer failed" in c.screen())
        assert [block.text for block in c.app.transcript.blocks if block.kind == "answer"] == [""]
        assert last(c).answer.node.text == ""


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 45)])
async def test_no_frame_of_many_branches_is_wrapped(
    size: tuple[int, int], chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heights: set[int] = set()
    drawn = BranchesScreen._compositor_refresh

    def refresh(self: BranchesScreen) -> None:
        drawn(self)
        heights.add(self.query_one("#nodes").virtual_size.height)

    monkeypatch.setattr(BranchesScreen, "_compositor_refresh", refresh)
    async with chat(FakeEngine(STORY), size=size) as c:
        await c.ask("Tell")
        await c.idle()
        tree = c.app.session.tree
        for number in range(60):
            tree.write(Role.USER, f"question number {number} " + "words " * 40)
        await c.pilot.press("f5")
        await c.until(lambda: isinstance(c.app.screen, BranchesScreen))
        await c.pilot.pause(0.3)
    assert max(heights) <= len(tree)
