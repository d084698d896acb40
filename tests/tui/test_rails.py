"""What stands beside the transcript on a wide screen, and keys on numbered alternatives."""

from __future__ import annotations

from typing import Any

import pytest
from branches import last
from fakes import STORY, FakeEngine
from reading import answered

from ropechat.tui.options import ChatOptions
from ropechat.tui.render.sparkline import cumulative_curve
from ropechat.tui.screens.facts import FactsScreen
from ropechat.tui.screens.sampling import SamplingScreen
from ropechat.tui.screens.tokens import TokensScreen

WIDE = (160, 45)


async def test_sampling_is_a_rail_where_there_is_room(chat: Any) -> None:
    async with chat(FakeEngine(STORY), size=WIDE) as c:
        await c.ask("Tell")
        await c.idle()
        await c.pilot.press("f7", "down")
        assert len(c.app.screen_stack) == 1
        assert c.app.ui.sampling_panel.has_focus
        assert "tokens possible" in c.screen()
        assert "1-5 preset" in c.line("footer")
        assert c.app.transcript.size.width == 160 - 48 - 30
        await c.pilot.press("left")
        assert c.app.session.sampling.top_k == 39
        await c.pilot.press("2")
        assert "sampling precise" in c.line("title")
        await c.pilot.press("enter", *["backspace"] * 2, "x", "enter")
        await c.until(lambda: "must be a number" in c.screen())
        await c.pilot.press("escape")  # out of typing
        assert c.app.ui.sampling_panel.display
        await c.pilot.press("escape")
        assert not c.app.ui.side_panel.display
        assert c.app.composer.has_focus
        await c.until(lambda: c.app.transcript.size.width == 160 - 30)


async def test_the_sampling_key_goes_to_the_rail_then_closes_it(chat: Any) -> None:
    async with chat(FakeEngine(STORY), size=WIDE) as c:
        await c.pilot.press("f7")
        c.app.composer.focus()
        await c.pilot.press("f7")
        assert c.app.ui.sampling_panel.has_focus
        await c.pilot.press("f7")
        assert not c.app.ui.sampling_panel.display


async def test_the_rail_tries_settings_on_the_token_under_the_cursor(chat: Any) -> None:
    async with chat(FakeEngine(STORY), size=WIDE) as c:
        await c.ask("Tell")
        await c.idle()
        await c.pilot.press("f7")
        c.app.transcript.focus()
        await c.pilot.press("home", "right")
        await c.pilot.pause(0.1)
        first = c.app.transcript.cursor.index + 1
        assert f"token {first} " in c.screen()
        await c.pilot.press("l")
        await c.pilot.pause(0.1)
        assert f"token {first + 1} " in c.screen()


async def test_facts_stay_beside_the_chat_and_are_kept_up_to_date(chat: Any) -> None:
    async with chat(FakeEngine(["one two three", "four five six seven eight nine"]), size=WIDE) as c:
        await c.pilot.press("f9")
        assert len(c.app.screen_stack) == 1
        assert "Newest answer" not in c.screen()
        for _ in range(2):
            await c.ask("Hi")
            await c.idle()
            assert f"{len(last(c).answer.node.steps)} drawn" in c.screen()
        await c.pilot.press("f4")  # the inspector above them
        assert "Newest answer" in c.screen()
        assert c.app.inspector.size.height > 10
        await c.pilot.press("f9")
        assert "Newest answer" not in c.screen()
        assert c.app.inspector.display


async def test_rails_close_where_there_is_no_room(chat: Any) -> None:
    async with chat(FakeEngine("ok"), size=WIDE) as c:
        await c.pilot.press("f9", "f7")
        await c.pilot.resize_terminal(80, 24)
        await c.pilot.pause(0.1)
        assert not c.app.ui.side_panel.display
        await c.pilot.press("f7")
        await c.until(lambda: isinstance(c.app.screen, SamplingScreen))
        await c.pilot.press("escape", "f9")
        await c.until(lambda: isinstance(c.app.screen, FactsScreen))


# --- numbered alternatives ---


async def opened(c: Any) -> None:
    """The inspector on a token of an answer."""
    await answered(c)
    await c.pilot.press("left", "h", "enter")
    await c.pilot.pause(0.1)


@pytest.mark.parametrize("size", [(80, 24), WIDE])
async def test_a_digit_forks_at_the_alternative_of_that_rank(chat: Any, size: tuple[int, int]) -> None:
    engine = FakeEngine("a b c d")
    async with chat(engine, size=size) as c:
        await opened(c)
        token = c.app.transcript.cursor_token()
        wanted = next(one for one in c.app.inspector._explanation.candidates if one.rank == 3)
        assert "1-9 fork" in c.line("footer")
        await c.pilot.press("3")
        await c.idle()
        steps = c.app.session.tree[last(c).node].steps
        assert steps[token[1]].id == wanted.id
        assert c.app.session.tree[last(c).node].origin.node == token[0]


async def test_a_digit_without_such_an_alternative_does_nothing(chat: Any) -> None:
    async with chat(FakeEngine("a b c d")) as c:
        await c.ask("Hi")
        await c.idle()
        await c.pilot.press("escape", "left", "2")
        assert "no alternative 2 here: F4 lists them" in c.line("footer")
        assert len(c.app.session.tree) == 2


async def test_digits_can_be_other_keys(chat: Any) -> None:
    async with chat(FakeEngine("a b c d"), look=ChatOptions(keys={"alternative.2": ("q",)})) as c:
        await opened(c)
        before = len(c.app.session.tree)
        await c.pilot.press("q")
        await c.idle()
        assert len(c.app.session.tree) == before + 1


@pytest.mark.slow
async def test_not_this_token_draws_another_until_all_were_tried(chat: Any) -> None:
    async with chat(FakeEngine("a b c d"), top_k=2, top_p=1.0) as c:
        await opened(c)
        node, index = c.app.transcript.cursor_token()
        listed = [one.id for one in c.app.inspector._explanation.candidates]
        seen = [c.app.session.tree[node].steps[index].id]
        while len(seen) < len(listed):
            await c.pilot.press("o")
            await c.idle()
            steps = c.app.session.tree[last(c).node].steps
            assert steps[index].id not in seen
            seen.append(steps[index].id)
            assert c.app.transcript.cursor_token() == (last(c).node, index)
        await c.pilot.press("o")
        assert "every recorded token was tried here" in c.line("footer")
        assert set(seen) == set(listed)


def test_another_token_is_drawn_from_those_that_survived() -> None:
    from reading import telling_step

    from ropechat.inspector.explain import explain
    from ropechat.sampling import Sampling
    from ropechat.tui.widgets.inspector import Inspector

    inspector = Inspector(lambda model, id: f"#{id}")
    inspector._explanation = explain(telling_step(0, b" x", 8), Sampling(temperature=1.0, top_k=3, top_p=0.8))
    assert {inspector.another({8}) for _ in range(20)} == {7}  # the only other one that was not cut
    assert inspector.another({8, 7}) == 9
    assert inspector.another({8, 7, 9, 3}) is None


async def test_not_this_needs_the_inspector(chat: Any) -> None:
    async with chat(FakeEngine("a b c d")) as c:
        await answered(c)
        await c.pilot.press("left", "o")
        assert "press F4 first" in c.line("footer")


@pytest.mark.slow
async def test_ban_and_favour_an_alternative(chat: Any) -> None:
    engine = FakeEngine("a b c d")
    async with chat(engine, size=(100, 30)) as c:
        await opened(c)
        await c.pilot.press("j")
        id = c.app.inspector.chosen.id
        await c.pilot.press("x")
        assert c.app.session.sampling.logit_bias == ((id, -100.0),)
        assert "banned from the next answer on; r writes another answer" in c.line("footer")
        await c.pilot.press("r")
        await c.idle()
        assert engine.settings[-1].logit_bias == ((id, -100.0),)
        await c.ask("/bias")
        await c.until(lambda: isinstance(c.app.screen, TokensScreen))
        assert f"#{id} " in c.screen()
        await c.pilot.press("escape")
        await c.pilot.press("f7")
        await c.until(lambda: "bias: " in c.screen())
        await c.pilot.press("escape")
        await c.pilot.press("f4", "j")
        for key, wanted in (("plus", 1.0), ("plus", 2.0), ("minus", 1.0), ("x", -100.0), ("minus", -1.0)):
            await c.pilot.press(key)
            biases = dict(c.app.session.sampling.logit_bias)
            assert biases[c.app.inspector.chosen.id] == wanted
        await c.ask("/bias off")
        assert c.app.session.sampling.logit_bias == ()
        assert "no token is banned" in c.line("footer")
        await c.ask("/bias more")
        assert "/bias TEXT or #ID" in c.line("footer")


async def test_a_ban_needs_an_alternative(chat: Any) -> None:
    async with chat(FakeEngine("a b c d")) as c:
        await answered(c)
        await c.pilot.press("left", "x")
        assert "no alternative is selected; F4 lists them" in c.line("footer")


def test_the_curve_of_the_sum() -> None:
    from fakes import fake_step

    steps = [fake_step(1, b"a", "a")] * 8
    total = sum(-step.logprob for step in steps) / 0.6931471805599453
    upper, lower = cumulative_curve(steps, 8, total, 8)
    assert (lower, upper) == ("⠠⠔⠊⠁", "   ⢀⣀⡠⠔⠊")  # a straight line
    short = cumulative_curve(steps, 16, 3 * total, 8)
    assert [len(row) for row in short] == [0, 4]  # half the length, a third of the height
