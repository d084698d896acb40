"""Kept chats in the app: all of it is on disk, and comes back."""

from __future__ import annotations

import dataclasses
import re
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from branches import answers, last, transcript
from chats import branched
from fakes import STORY, FakeEngine
from stores import done, put

import ropechat.tui
from ropechat.conversation import NodeState
from ropechat.sampling import Sampling
from ropechat.store.import_export import to_json
from ropechat.store.imports.read import read_file
from ropechat.store.store import Store
from ropechat.tui.screens.chats import ChatsScreen


@pytest.mark.slow
async def test_all_is_kept_and_comes_back(chat: Any, store: Store) -> None:
    engine = FakeEngine(["One answer.", "Another one.", "Third."])
    async with chat(engine, store=store, system="Be brief.") as c:
        await c.ask("Hi?")
        await c.idle()
        await transcript(c, "r")
        await c.ask("More?")
        await c.idle()
        id, tree = c.app.session.recorder.id, c.app.session.tree
    loaded = store.load(id).result(60)
    assert loaded.title == "Hi?"
    assert {node.id: node.text for node in loaded.tree.nodes.values()} == {
        node.id: node.text for node in tree.nodes.values()
    }
    for node in tree.nodes.values():
        assert dataclasses.replace(loaded.tree[node.id], final_text=node.final_text, steps=node.steps) == node
    async with chat(FakeEngine("Fourth."), store=store, resume=id[:5]) as c:
        await c.until(lambda: last(c) is not None)
        assert "More?" in c.screen()
        assert "Third." in c.screen()
        assert "‹ 2/2 ›" in c.screen()
        await c.ask("Again?")
        await c.idle()
        assert [m.content for m in c.engine.asked[-1]][-3:] == ["More?", "Third.", "Again?"]
    assert len(store.load(id).result(60).tree) == len(tree) + 2


async def test_the_question_is_on_disk_before_the_model_starts(chat: Any, store: Store) -> None:
    engine = FakeEngine("ok")
    seen = []
    plain = engine.reply

    def reply(*args: Any, **options: Any) -> Any:
        id = c.app.session.recorder.id
        seen.append([node.text for node in store.load(id).result(60).tree.nodes.values()])
        return plain(*args, **options)

    engine.reply = reply  # type: ignore[method-assign]
    async with chat(engine, store=store) as c:
        await c.ask("Kept?")
        await c.idle()
    assert seen == [["Kept?", ""]]


@pytest.mark.slow
async def test_a_question_typed_too_early_knows_its_model(chat: Any, store: Store) -> None:
    gate = threading.Event()

    def load() -> FakeEngine:
        gate.wait(60)
        return FakeEngine("x y z")

    async with chat(load, store=store, wait=False) as c:
        await c.pilot.pause(0.1)
        await c.ask("Hi")
        gate.set()
        await c.ready()
        await c.idle()
        node = c.app.session.tree[last(c).node]
        assert node.model == "fake-1m"
        assert store.load(c.app.session.recorder.id).result(60).tree[node.id].model == "fake-1m"


async def test_a_first_question_that_does_not_fit_leaves_no_chat(chat: Any, store: Store) -> None:
    async with chat(FakeEngine("ok", context=8), store=store) as c:
        await c.ask("far too many words for this little context of eight")
        await c.until(lambda: "Not sent" in c.screen())
        assert "far too many" in c.app.composer.text
        await c.until(lambda: not store.conversations().result(60))
        assert c.app.session.title == "new chat"
        await c.ask("short")
        await c.idle()
        assert [summary.title for summary in store.conversations().result(60)] == ["short"]


async def test_stopped_and_failed_answers_are_kept_as_such(chat: Any, store: Store) -> None:
    engine = FakeEngine(STORY, fail_after=5)
    async with chat(engine, store=store) as c:
        await c.ask("Tell")
        await c.idle()
        id = c.app.session.recorder.id
        failed = store.load(id).result(60).tree.path()[-1]
        assert (failed.state, len(failed.steps)) == (NodeState.FAILED, 5)
        assert "broken on purpose" in failed.error
        engine.fail_after, engine.rate = None, 10
        await c.ask("Again")
        await c.until(lambda: len(last(c).answer.node.steps) > 3)
        await c.pilot.press("escape")
        await c.idle()
        stopped = store.load(id).result(60).tree.path()[-1]
        assert (stopped.state, stopped.text) == (NodeState.STOPPED, last(c).answer.node.text)


@pytest.mark.slow
async def test_the_list_of_chats(chat: Any, store: Store) -> None:
    async with chat(FakeEngine(["About apples.", "About pears."]), store=store, size=(100, 30)) as c:
        await c.ask("Apples?")
        await c.idle()
        apples = c.app.session.recorder.id
        await c.pilot.press("ctrl+n")
        await c.pilot.pause(0.05)
        assert not c.app.session.turns
        await c.ask("Pears?")
        await c.idle()
        await c.pilot.press("f2")
        await c.until(lambda: isinstance(c.app.screen, ChatsScreen) and "Apples?" in c.screen())
        assert "Pears?" in c.screen()
        await c.pilot.press(*"about app")
        await c.until(lambda: "About apples." in c.screen() and "About pears." not in c.screen())
        await c.pilot.press("ctrl+r", "end", *"!!", "enter")
        await c.until(lambda: "Apples?!!" in c.screen())
        await c.pilot.press("down", "enter")
        await c.until(lambda: c.app.session.recorder.id == apples)
        assert "About apples." in c.screen()
        assert "Apples?!!" in c.line("title")
        await c.pilot.press("f2")
        await c.until(lambda: isinstance(c.app.screen, ChatsScreen) and "Pears?" in c.screen())
        await c.pilot.press("down", "ctrl+x")
        assert "again deletes" in c.screen()
        await c.pilot.press("ctrl+x")
        await c.until(lambda: "deleted; " in c.screen())
        assert not c.app.session.turns  # the open chat was the one that is gone
        await c.pilot.press("escape")
        await c.until(lambda: not isinstance(c.app.screen, ChatsScreen))
        assert [summary.title for summary in store.conversations().result(60)] == ["Pears?"]


@pytest.mark.slow
async def test_slash_commands(
    chat: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = FakeEngine(["One.", "Two.", "Three."])
    async with chat(engine, store=store, size=(100, 30)) as c:
        await c.ask("/regn")
        assert "/regen?" in c.line("footer")
        assert c.app.composer.text == "/regn"
        await c.ask("//literal slash")
        await c.idle()
        assert engine.asked[-1][-1].content == "/literal slash"
        await c.ask("/regen")
        await c.pilot.pause(0.1)
        await c.idle()
        assert answers(c) == ["One.", "Two."]
        await c.ask("/rename A better name")
        assert "A better name" in c.line("title")
        for form in ("md", "json", "html"):
            await c.ask(f"/export {form} out.{form}")
            assert "written: out" in c.line("footer")
            assert "Two." in (tmp_path / f"out.{form}").read_text()
        await c.ask("/export md out.md")
        assert "exists" in c.line("footer")
        await c.ask("/export doc")
        assert "/export md|json|html" in c.line("footer")
        await c.ask("/open")
        await c.until(lambda: isinstance(c.app.screen, ChatsScreen))


@pytest.mark.slow
async def test_a_title_is_changed_at_its_end_after_a_search(chat: Any, store: Store) -> None:
    async with chat(FakeEngine("Paris."), store=store) as c:
        await c.ask("What is the capital of France?")
        await c.idle()
        await c.pilot.press("f2")
        await c.until(lambda: isinstance(c.app.screen, ChatsScreen) and "1 " in c.screen())
        await c.pilot.press(*"france")
        await c.until(lambda: "with “france”" in c.screen())
        await c.pilot.press("ctrl+r", *" Capitals", "enter")
        await c.until(lambda: "What is the capital of France? Capitals" in c.screen())


async def test_nothing_is_kept_without_a_store(chat: Any) -> None:
    async with chat(FakeEngine("x")) as c:
        await c.pilot.press("f2")
        await c.pilot.pause(0.05)
        assert "this chat is not stored" in c.line("footer")


async def test_trouble_is_on_the_screen(chat: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with chat(FakeEngine("answer"), store=store) as c:
        monkeypatch.setattr(store, "trouble_of", lambda chat: "database or disk is full")
        await c.ask("Hi")
        await c.idle()
        assert "not on disk: database or disk is full" in c.line("footer")
        assert "answer" in c.screen()


async def test_a_database_that_cannot_be_opened_leaves_the_chat_usable(chat: Any, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    broken = Store(tmp_path / "data")
    async with chat(FakeEngine("answer"), store=broken, size=(80, 24)) as c:
        await c.until(lambda: "kept in memory only" in " ".join(c.screen().split()))
        await c.ask("Hi")
        await c.idle()
        assert "answer" in c.screen()
    assert not broken.close(0.5)


@pytest.mark.slow
async def test_a_chat_opened_before_its_model_is_shown_as_the_model_uses_it(chat: Any, store: Store) -> None:
    async with chat(FakeEngine(" upon a time", has_chat_template=False), store=store) as c:
        await c.ask("Once")
        await c.idle()
        id = c.app.session.recorder.id
    gate = threading.Event()
    engine = FakeEngine("x", has_chat_template=False)

    def load() -> FakeEngine:
        gate.wait(60)
        return engine

    async with chat(load, store=store, resume="", wait=False) as c:
        await c.until(lambda: last(c) is not None)
        assert c.app.session.recorder.id == id
        assert "▌ you" in c.screen()
        gate.set()
        await c.ready()
        await c.idle()
        assert "Once upon a time" in c.screen()
        assert "▌ you" not in c.screen()


async def test_what_was_left_out_of_a_full_context_stays_left_out(chat: Any, store: Store) -> None:
    script = ["alpha " * 5, "beta " * 5, "gamma", "delta"]
    async with chat(FakeEngine(script, context=48), store=store, size=(100, 40)) as c:
        await c.ask("/context slide")
        for text in ("one " * 4, "two " * 4, "three " * 6):
            await c.ask(text)
            await c.idle()
        assert "oldest question is no longer sent" in " ".join(c.screen().split())
    async with chat(FakeEngine("ok", context=48), store=store, resume="", size=(100, 40)) as c:
        await c.until(lambda: "three three" in c.screen())
        assert "oldest question is no longer sent" in " ".join(c.screen().split())
        await transcript(c, "r")
        assert [m.content for m in c.engine.asked[-1]] == ["two " * 4, "beta " * 5, "three " * 6]


@pytest.mark.slow
async def test_what_is_to_be_known_of_prompts_survives_what_is_shown_again(chat: Any, store: Store) -> None:
    async with chat(FakeEngine("ok"), store=store) as c:
        await c.ask("Hi")
        await c.idle()
    engine = FakeEngine("ok")
    engine.prompts.told_in_vain = ["enable_thinking"]
    async with chat(engine, store=store, resume="") as c:
        await c.until(lambda: "Hi" in c.screen() and "enable_thinking: " in c.screen())
        await transcript(c, "r")
        assert c.screen().count("enable_thinking: ") == 1


# ---- Work in the background


def test_only_one_helper_starts_work_in_the_background() -> None:
    """Work of Textual's default group is cancelled by any other; `begin` names a purpose."""
    folder = Path(ropechat.tui.__file__).parent
    found = {file.name for file in folder.rglob("*.py") if re.search(r"run_worker|@work\b", file.read_text())}
    assert found == {"workers.py"}


@pytest.mark.slow
async def test_an_import_goes_on_while_another_chat_is_opened(
    chat: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, branched(1), "first", "the first")
    put(store, branched(2), "second", "the second")
    (tmp_path / "chat.json").write_text(to_json(done(store.load("first"))))
    gate, read = threading.Event(), read_file
    monkeypatch.setattr("ropechat.store.imports.read.read_file", lambda file: gate.wait(60) and read(file))
    async with chat(FakeEngine("ok"), store=store, size=(100, 30)) as c:
        await c.ask(f"/import {tmp_path}/chat.json")
        await c.until(lambda: "importing chat.json: reading" in c.line("footer"))
        await c.ask(f"/import {tmp_path}/chat.json")
        assert "another file is being imported" in c.line("footer")
        c.app.history.open_chat("second")
        await c.until(lambda: c.app.session.recorder.id == "second")
        gate.set()
        await c.until(lambda: "1 chat from ropechat; F2 lists it" in c.screen())
        assert c.app.session.recorder.id == "second"  # what the user chose stays
        assert "importing" not in c.line("footer")
    assert len(done(store.conversations())) == 3


async def test_an_export_is_written_though_another_chat_is_opened(
    chat: Any, store: Store, tmp_path: Path
) -> None:
    put(store, branched(1), "other")
    async with chat(FakeEngine("An answer."), store=store) as c:
        await c.ask("Asked here")
        await c.idle()
        c.app.writing.run_line(f"export html {tmp_path}/x.html")
        c.app.history.open_chat("other")
        await c.until(lambda: "written: " in c.line("footer"))
        await c.until(lambda: c.app.session.recorder.id == "other")
        assert "Asked here" in (tmp_path / "x.html").read_text()


async def test_exports_are_written_though_the_chat_is_left_at_once(chat: Any, tmp_path: Path) -> None:
    async with chat(FakeEngine("An answer.")) as c:
        await c.ask("Asked here")
        await c.idle()
        for form in ("md", "json", "html"):
            c.app.writing.run_line(f"export {form} {tmp_path}/x.{form}")
        await c.app.action_quit()
        for form in ("md", "json", "html"):
            assert "Asked here" in (tmp_path / f"x.{form}").read_text()


async def test_a_new_chat_at_once_does_not_stop_the_start(chat: Any, store: Store) -> None:
    put(store, branched(1), "other")
    questions: Future[list[str]] = Future()
    store.questions = lambda limit: questions  # type: ignore[method-assign,assignment]
    async with chat(FakeEngine("ok"), store=store, resume="") as c:
        await c.pilot.press("ctrl+n")
        questions.set_result(["asked before"])
        await c.until(lambda: c.app.composer.sent == ["asked before"])
        await c.idle()
        assert not c.app.session.turns  # the new chat, not the one of the start


async def test_of_two_chats_the_one_that_was_chosen_last_is_shown(chat: Any, store: Store) -> None:
    put(store, branched(1), "slow")
    async with chat(FakeEngine("ok"), store=store) as c:
        loaded: Future[Any] = Future()
        found = done(store.load("slow"))
        store.load = lambda id: loaded  # type: ignore[method-assign,assignment]
        c.app.history.open_chat("slow")
        await c.pilot.press("ctrl+n")
        new = c.app.session.recorder.id
        loaded.set_result(found)
        await c.pilot.pause(0.05)
        assert c.app.session.recorder.id == new


async def test_what_is_asked_right_after_a_deletion_is_kept(chat: Any, store: Store) -> None:
    """^x ^x esc, before the deletion of the open chat is done."""
    async with chat(FakeEngine("ok"), store=store) as c:
        await c.ask("Old")
        await c.idle()
        await c.pilot.press("f2")
        await c.until(lambda: isinstance(c.app.screen, ChatsScreen) and bool(c.app.screen._found))
        go_on = threading.Event()
        store._writer.ask(lambda connection: go_on.wait(60))
        await c.pilot.press("ctrl+x", "ctrl+x", "escape")
        await c.until(lambda: not isinstance(c.app.screen, ChatsScreen))
        c.app.composer.set_text("New")
        await c.pilot.press("enter")
        go_on.set()
        await c.idle()
        await c.until(lambda: [one.title for one in done(store.conversations())] == ["New"])
        assert store.trouble is None
    assert [node.text for node in done(store.load(c.app.session.recorder.id)).tree.path()] == ["New", "ok"]


async def test_a_deleted_chat_can_be_brought_back(
    chat: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = branched(1)
    put(store, tree, "first", "the first")
    store.set_sampling("first", Sampling(temperature=0.25))
    store.keep_draft("first", "unsent")
    async with chat(FakeEngine("ok"), store=store) as c:
        await c.pilot.press("f2")
        await c.until(lambda: isinstance(c.app.screen, ChatsScreen) and "the first" in c.screen())
        await c.pilot.press("ctrl+x", "ctrl+x")
        await c.until(lambda: "deleted; ctrl+t brings it back" in c.screen().lower())
        assert done(store.conversations()) == []
        await c.pilot.press("ctrl+t")
        await c.until(lambda: "the first" in c.screen())
        found = done(store.load("first"))
        assert (found.title, found.sampling) == ("the first", Sampling(temperature=0.25))
        assert {node.id: node.text for node in found.tree.nodes.values()} == {
            node.id: node.text for node in tree.nodes.values()
        }
        assert done(store.draft("first")) == "unsent"
        monkeypatch.setattr("ropechat.tui.screens.chats.UNDO_S", 0.01)
        await c.pilot.press("ctrl+x", "ctrl+x")
        await c.until(lambda: "chats · 0" in c.screen() and c.app.screen._deleted is None)
        await c.pilot.press("ctrl+t")
        assert "can be brought back for" in c.screen()
        assert done(store.conversations()) == []


@pytest.mark.slow
async def test_a_chat_that_was_searched_for_opens_at_what_was_found(chat: Any, store: Store) -> None:
    said = "\n\n".join(["Long ago. " * 20] * 6)
    engine = FakeEngine([f"A Needle here.\n\n{said}", said, said, "Another version."])
    engine.context = 4000
    async with chat(engine, store=store) as c:
        for text in ("First", "Second", "Third"):
            await c.ask(text)
            await c.idle()
        await transcript(c, "r")  # the third answer has a second version, which is shown
        await c.pilot.press("ctrl+n")
        for words in ("needle", "here needle"):
            await c.pilot.press("f2")
            await c.until(lambda: isinstance(c.app.screen, ChatsScreen) and bool(c.app.screen._found))
            await c.pilot.press(*words)
            await c.until(lambda words=words: f"with “{words}”" in c.screen())
            await c.pilot.press("enter")
            await c.until(lambda: "A Needle here." in c.screen())
            assert "1/1" in c.screen()
            await c.pilot.press("escape", "ctrl+n")


async def test_what_was_found_in_another_branch_is_shown(chat: Any, store: Store) -> None:
    async with chat(FakeEngine(["The old one.", "The new one."]), store=store) as c:
        await c.ask("Hi")
        await c.idle()
        await transcript(c, "r")
        assert "new one" in c.screen()
        await c.ask("/open old")
        await c.until(lambda: isinstance(c.app.screen, ChatsScreen) and bool(c.app.screen._found))
        await c.pilot.press("enter")
        await c.until(lambda: "The old one." in c.screen() and "1/1" in c.screen())


async def test_sampling_bans_and_system_text_belong_to_their_chat(chat: Any, store: Store) -> None:
    async with chat(FakeEngine("ok"), store=store, system="Be brief.", temperature=0.5) as c:
        start = c.app.session.sampling
        await c.ask("Hi")
        await c.idle()
        first = c.app.session.recorder.id
        for words in ("/set max_tokens 7", "/set temp 0.25", "/ban #5", "/bias #6 2", "/system Be loud."):
            await c.ask(words)
        assert "the model will read nothing of the chat above" in " ".join(c.screen().split())
        assert "1 banned  1 biased" in c.line("title")
        changed = c.app.session.sampling
        await c.pilot.press("ctrl+n")
        assert c.app.session.sampling == start
        assert c.app.session.system == "Be brief."
        assert "banned" not in c.line("title")
        c.app.history.open_chat(first)
        await c.until(lambda: c.app.session.recorder.id == first)
        assert c.app.session.sampling == changed
        put(store, branched(1), "imported")  # without settings of its own
        c.app.history.open_chat("imported")
        await c.until(lambda: c.app.session.recorder.id == "imported")
        assert c.app.session.sampling == start
