"""Tokens that are banned or weighed by typing, and the other commands that take words."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from branches import last, told
from fakes import STORY, FakeEngine

from ropechat.store.store import Store
from ropechat.tui.screens.chats import ChatsScreen
from ropechat.tui.screens.tokens import TokensScreen

FACTS = {"dtype": "f32", "vocab_size": 6000}


def biases(c: Any) -> dict[int, float]:
    return dict(c.app.session.sampling.logit_bias)


async def test_a_text_that_is_one_token_is_banned(chat: Any) -> None:
    async with chat(FakeEngine(STORY), size=(100, 30)) as c:
        assert "Once: banned from the next answer on; /regen writes another answer" in await told(
            c, "/ban Once"
        )
        assert biases(c) == {0: -100.0}
        assert "banned" in await told(c, "/ban Once")  # not allowed again: that is what the list is for
        assert biases(c) == {0: -100.0}
        await c.ask("/ban")
        await c.until(lambda: isinstance(c.app.screen, TokensScreen))
        assert "Once" in c.screen()
        await c.pilot.press("enter")
        await c.until(lambda: not biases(c))
        assert "no token is banned" in await told(c, "/ban")


async def test_a_word_is_banned_with_and_without_a_blank_before_it(chat: Any) -> None:
    engine = FakeEngine(STORY)
    ids = {"upon": [3], " upon": [4]}
    engine.reply_ids = lambda messages, text: ids.get(text, [1, 2])  # type: ignore[method-assign]
    async with chat(engine, size=(100, 30)) as c:
        await told(c, "/ban upon")
        assert biases(c) == {3: -100.0, 4: -100.0}
        await told(c, "/bias off")
        await told(c, '/ban " upon"')
        assert biases(c) == {4: -100.0}


async def test_a_text_of_several_tokens_asks_which_one(chat: Any) -> None:
    async with chat(FakeEngine(STORY), size=(100, 30)) as c:
        await c.ask("/bias xyz 2.5")
        await c.until(lambda: isinstance(c.app.screen, TokensScreen))
        assert "“xyz” is 4 tokens: choose one" in c.screen()
        assert "Add +2.5 to the logit" in c.screen()
        assert f"#{5000 + ord('y')}" in c.screen()
        await c.pilot.press("down", "down", "enter")
        await c.until(lambda: biases(c) == {5000 + ord("y"): 2.5})
        assert "y: +2.5 from the next answer on" in c.line("footer")
        await c.ask("/ban xyz")
        await c.until(lambda: isinstance(c.app.screen, TokensScreen))
        assert "Never draw the chosen one" in c.screen()
        await c.pilot.press("escape")
        assert biases(c) == {5000 + ord("y"): 2.5}


@pytest.mark.slow
async def test_ids_and_numbers_are_checked(chat: Any) -> None:
    async with chat(FakeEngine(STORY, facts=FACTS), size=(100, 30)) as c:
        await told(c, "/ban #12")
        await told(c, "/bias #13 -3")
        assert biases(c) == {12: -100.0, 13: -3.0}
        assert "#ID: must be from #0 to #5999 (got #6000)" in await told(c, "/ban #6000")
        assert "#ID: must be from #0 to #5999" in await told(c, "/ban #" + "9" * 400)
        for line in ("/bias #13", "/bias Once 101", "/bias Once nan", "/bias 5", "/bias Once x"):
            assert "/bias TEXT or #ID" in await told(c, line)
        await told(c, "/bias #13 0")
        assert biases(c) == {12: -100.0}
        await c.ask("/bias")
        await c.until(lambda: isinstance(c.app.screen, TokensScreen))
        assert "#12 " in c.screen()
        await c.pilot.press("escape")
        assert "no token is banned or favoured" in await told(c, "/bias off")


async def test_an_encoding_that_fails_says_so(chat: Any) -> None:
    engine = FakeEngine(STORY)
    engine.reply_ids = None  # type: ignore[assignment, method-assign]
    async with chat(engine) as c:
        assert "cannot tokenize this text" in await told(c, "/ban x")
        assert not biases(c)


async def test_nothing_is_weighed_before_there_are_tokens(chat: Any) -> None:
    async with chat(RuntimeError("no such model")) as c:
        assert "no model is loaded" in await told(c, "/ban x")


@pytest.mark.slow
async def test_the_seed_of_an_answer_is_locked_and_freed(chat: Any) -> None:
    async with chat(FakeEngine("one two"), size=(100, 30)) as c:
        assert "no answer has a seed" in await told(c, "/seed lock")
        assert "each answer gets a new seed" in await told(c, "/seed")
        await c.ask("Hi")
        await c.idle()
        drawn = c.app.session.tree[last(c).node].sampling.seed
        assert f"seed {drawn}" in await told(c, "/seed lock")
        assert c.app.session.sampling.seed == drawn
        await told(c, "/seed free")
        assert c.app.session.sampling.seed is None
        assert "seed 5; the newest" in await told(c, "/seed 5")
        assert "must be a number" in await told(c, "/seed five")


async def test_chats_are_searched_from_the_line(chat: Any, store: Store) -> None:
    async with chat(FakeEngine("A ball."), store=store) as c:
        await c.ask("Hi")
        await c.idle()
        await c.ask("/open ball")
        await c.until(lambda: isinstance(c.app.screen, ChatsScreen) and bool(c.app.screen._found))
        assert "1 with “ball”" in c.screen()


async def test_a_chat_comes_back_from_its_file(chat: Any, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    async with chat(FakeEngine("An answer."), store=store) as c:
        await c.ask("Hi there")
        await c.idle()
        await told(c, f"/export json {file}")
        await c.pilot.press("ctrl+n")
        assert last(c) is None
        await c.ask(f"/import {file}")
        await c.until(lambda: last(c) is not None)
        assert "An answer." in c.screen()
        assert len(store.conversations().result(60)) == 2
        await c.ask(f"/import {tmp_path}/none.json")
        await c.until(lambda: "none.json" in c.screen().replace("\n  ", ""))  # it may be wrapped
        assert "/import FILE" in await told(c, "/import")


async def test_an_export_has_a_name_of_its_own(
    chat: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with chat(FakeEngine("An answer."), store=store) as c:
        await c.ask("Hi there?")
        await c.idle()
        for number in (1, 2):
            await c.ask("/export html")
            await c.until(lambda count=number: len(list(tmp_path.glob("Hi-there-*.html"))) == count)
        assert "written: Hi-there-" in c.line("footer")


async def test_the_chats_of_another_program_come_in(chat: Any, store: Store, tmp_path: Path) -> None:
    rows = [
        {"id": f"{at}", "conversation_id": f"c{at}", "conversation_name": f"name {at}", "model": "m"}
        | {"prompt": f"question {at}", "response": f"answer {at}", "datetime_utc": f"2026-11-2{at}"}
        for at in range(3)
    ]
    (tmp_path / "logs.json").write_text(json.dumps([*rows, {**rows[0], "conversation_id": 5}]))
    async with chat(FakeEngine("x"), store=store, size=(100, 30)) as c:
        await c.ask(f"/import {tmp_path}/logs.json")
        await c.until(lambda: "[3].conversation_id" in c.screen().replace("\n  ", ""))
        (tmp_path / "logs.json").write_text(json.dumps(rows))
        await c.ask(f"/import {tmp_path}/logs.json")
        await c.until(lambda: "3 chats from llm; f2 lists them" in c.screen().lower())
        assert "answer 2" in c.screen()  # the newest
        assert len(store.conversations().result(60)) == 3


async def test_code_and_the_whole_branch_are_copied(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from textual.drivers.headless_driver import HeadlessDriver

    written: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "write", lambda self, data: written.append(data))

    def copied() -> str:
        found = [data for data in written if "]52;c;" in data][-1]
        return base64.b64decode(found.split("]52;c;")[1].split("\a")[0]).decode()

    said = "So:\n```\nx = 1\n```\nor\n~~~python\ny = 2\n~~~\n"
    async with chat(FakeEngine(said)) as c:
        await c.ask("How?")
        await c.idle()
        for words, wanted in (("code", "y = 2"), ("code 1", "x = 1"), ("code 2", "y = 2")):
            await told(c, f"/copy {words}")
            assert copied() == wanted
        assert "2 code blocks in this answer" in await told(c, "/copy code 3")
        await c.pilot.press("f3")
        for wanted, label in (("x = 1", " ⧉ copy"), ("y = 2", "python ⧉ copy")):
            lines = c.screen().splitlines()
            row = next(at for at, line in enumerate(lines) if wanted in line) - 1
            assert lines[row].rstrip().endswith(label)
            written.clear()
            await c.pilot.click(offset=(lines[row].index("⧉"), row))
            await c.pilot.pause(0.1)
            assert copied() == wanted
        await told(c, "/copy all")
        assert copied().startswith("# How?")
        assert "/copy [code [N]|thought|all]" in await told(c, "/copy all of it")


@pytest.mark.parametrize("line", ["/", "/ "])
async def test_a_slash_alone_is_no_command(chat: Any, line: str) -> None:
    async with chat(FakeEngine("ok"), size=(100, 30)) as c:
        assert "/: unknown command" in await told(c, line)
        c.app.composer.set_text("")


@pytest.mark.parametrize(("said", "known"), [("stats", "facts"), ("search", "open"), ("regin", "regen")])
async def test_other_names_lead_to_ours(chat: Any, said: str, known: str) -> None:
    async with chat(FakeEngine("ok"), size=(100, 30)) as c:
        assert f"/{said}: unknown command; did you mean /{known}?" in await told(c, f"/{said}")
        c.app.composer.set_text("")


def test_other_names_name_commands() -> None:
    from ropechat.tui.commands.registry import SYNONYMS, names

    assert set(SYNONYMS.values()) <= set(names())
    assert not set(SYNONYMS) & set(names())
