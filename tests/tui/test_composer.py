"""The composer: completion, pastes, files, history, the user's editor."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine
from textual import events

from ropechat.chat import draft
from ropechat.chat.draft import keep_end
from ropechat.store.store import Store
from ropechat.tui.screens.context import ContextScreen

PASTE = "\n".join(f"line {number}" for number in range(120))


async def paste(c: Any, text: str) -> None:
    c.app.composer.post_message(events.Paste(text))
    await c.pilot.pause(0.05)


# --- pastes ---


async def test_a_long_paste_is_folded_and_sent_whole(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await c.pilot.press(*"see ")
        await paste(c, PASTE)
        await c.pilot.press(*" ok")
        assert c.app.composer.text == "see [pasted 120 lines] ok"
        await c.pilot.press("enter")
        await c.idle()
        assert c.engine.asked[-1][-1].content == f"see {PASTE} ok"
        await c.pilot.press("up")
        assert c.app.composer.text == "see [pasted 120 lines] ok"


async def test_backspace_takes_a_folded_paste_as_a_whole(chat: Any) -> None:
    async with chat(FakeEngine()) as c:
        await paste(c, PASTE)
        await paste(c, PASTE.replace("line", "row"))
        assert c.app.composer.text == "[pasted 120 lines][pasted 120 lines #2]"
        await c.pilot.press("backspace")
        assert c.app.composer.text == "[pasted 120 lines]"
        await c.pilot.press("left", "backspace")  # within the word: one character
        assert c.app.composer.text == "[pasted 120 line]"


def test_folds() -> None:
    pastes = draft.Pastes()
    assert pastes.fold("short\ntext") == "short\ntext"
    assert pastes.fold("x" * 2500) == "[pasted 2,500 characters]"
    assert pastes.fold(PASTE) == pastes.fold(PASTE)
    tricky = "[pasted 120 lines]\n" * 12
    label = pastes.fold(tricky)
    assert pastes.unfold(f"{label} and [pasted 120 lines]") == f"{tricky} and {PASTE}"
    assert pastes.unfold("[pasted 121 lines]") == "[pasted 121 lines]"


# --- files ---


async def test_files_are_put_before_the_text(
    chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_bytes("Ünï\r\n```\nx\n```\n".encode())
    (tmp_path / "a b.txt").write_text("blank")
    async with chat(FakeEngine("ok")) as c:
        await c.ask('Sum up @notes.md, and @"a b.txt" for @alice, a@notes.md')
        await c.idle()
        sent = c.engine.asked[-1][-1].content
        assert sent == (
            "notes.md:\n````\nÜnï\n```\nx\n```\n````\n\na b.txt:\n```\nblank\n```\n\n"
            'Sum up @notes.md, and @"a b.txt" for @alice, a@notes.md'
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "@folder: a folder; name a text file"),
        ("big", "@big: more than 256 KiB; attach a part of it"),
        ("binary", "@binary: not a text file; only text files can be attached"),
        ("nul", "@nul: not a text file; only text files can be attached"),
        ("dangling", "@dangling: No such file or directory"),
        ("/dev/zero", "@/dev/zero: must be a regular file; name a text file"),
    ],
)
async def test_files_that_cannot_be_attached(
    name: str, message: str, chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "big").write_text("x" * (draft.MAX_FILE + 1))
    (tmp_path / "binary").write_bytes(b"\x7fELF\2\1\0\0")
    (tmp_path / "nul").write_bytes(b"a\0b")
    (tmp_path / "dangling").symlink_to("nowhere")
    async with chat(FakeEngine("ok")) as c:
        await c.ask(f"Read @{name}")
        assert message in c.line("footer")
        assert c.app.composer.text == f"Read @{name}"
        assert not c.app.session.turns


@pytest.mark.slow
async def test_a_file_that_does_not_fit_stays_a_file(
    chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.txt").write_text("word " * 100)
    async with chat(FakeEngine("ok", context=60), size=(100, 40)) as c:
        for _ in range(3):
            await c.ask(c.app.composer.text or "@long.txt what")
            await c.until(lambda: isinstance(c.app.screen, ContextScreen))
            assert "characters of long.txt" in c.screen()
            await c.pilot.press("escape")
            await c.until(lambda: "Not sent" in c.screen() and bool(c.app.composer.text))
            assert c.app.composer.text == "@long.txt what"
        whole = f"@long.txt what\n\nlong.txt:\n```\n{'word ' * 100}\n```"
        tokens = len(c.engine.prompt_ids(c.app.session.messages(whole)))
        assert f"Not sent: {tokens} tokens" in c.screen()
        await c.until(lambda: f" {tokens} tokens do not fit" in c.line("gauge"))
        assert not c.engine.asked
        await c.pilot.press("ctrl+u", "up")
        assert c.app.composer.text == "@long.txt what"
        (tmp_path / "long.txt").write_text("short")
        await c.pilot.press("enter")
        await c.until(lambda: bool(c.engine.asked))
        assert c.engine.asked[-1][-1].content == "long.txt:\n```\nshort\n```\n\n@long.txt what"


async def test_a_paste_and_a_command_that_do_not_fit_come_back_as_typed(chat: Any) -> None:
    async with chat(FakeEngine("ok", context=60)) as c:
        await c.pilot.press(*"//look ")
        await paste(c, PASTE)
        await c.pilot.press("enter")
        await c.until(lambda: isinstance(c.app.screen, ContextScreen))
        await c.pilot.press("escape")
        await c.until(lambda: "Not sent" in c.screen())
        assert c.app.composer.text == "//look [pasted 120 lines]"


@pytest.mark.parametrize("turns", [0, 1])
async def test_the_end_of_a_file_is_sent_if_the_whole_does_not_fit(
    turns: int, chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.txt").write_text("\n".join(f"line {number}" for number in range(200)))
    async with chat(FakeEngine("ok", context=120), size=(100, 40)) as c:
        for _ in range(turns):
            await c.ask("before")
            await c.idle()
        await c.ask("@log.txt why?")
        await c.until(lambda: isinstance(c.app.screen, ContextScreen))
        await c.pilot.press("s")  # leaving out turns cannot help, so that key does nothing
        await c.pilot.press("e")
        await c.until(lambda: len(c.engine.asked) == turns + 1)
        await c.idle()
        sent = c.engine.asked[-1][-1].content
        assert sent.startswith("log.txt:\n```\n[the first ")
        assert "of 200 lines are left out]" in sent
        assert sent.endswith("line 198\nline 199\n```\n\n@log.txt why?")
        assert c.app.composer.text == ""
        assert c.app.session.title in ("before", "@log.txt why?")


def test_the_end_of_a_paste_or_of_one_long_line() -> None:
    paste = "\n".join(map(str, range(500)))
    found = keep_end(f"sum up: {paste}", [paste], 0.5)
    assert found is not None
    assert found.text.startswith("sum up: [the first ")
    assert found.text.endswith("\n499")
    assert (found.what, found.units) == ("the pasted text", "lines")
    assert len(found.text) <= len(f"sum up: {paste}") // 2
    line = "x" * 5000
    found = keep_end(f"? {line}", [line], 0.5)
    assert found is not None
    assert found.units == "characters"
    assert keep_end("typed " * 500, [], 0.5) is None
    assert keep_end(f"{'typed ' * 900} {paste}", [paste], 0.5) is None


async def test_an_attached_question_is_recalled_as_it_was_typed(
    chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("a\n```\nb\n```")
    store = Store(tmp_path / "data")
    async with chat(FakeEngine("ok"), store=store) as c:
        await c.ask("Sum up @notes.md, not @@notes.txt")
        await c.idle()
        sent = c.engine.asked[-1][-1].content
        assert sent == "notes.md:\n````\na\n```\nb\n```\n````\n\nSum up @notes.md, not @notes.txt"
        assert c.app.session.title == "Sum up @notes.md, not @notes.txt"
    async with chat(FakeEngine("ok"), store=store) as c:
        await c.until(lambda: bool(c.app.composer.sent))
        await c.pilot.press("up")
        assert c.app.composer.text == "Sum up @notes.md, not @@notes.txt"
    assert store.conversations(9).result(60)[0].title == "Sum up @notes.md, not @notes.txt"
    store.close()


async def test_an_edited_question_keeps_its_files(
    chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("notes", "more.md"):
        (tmp_path / name).write_text(f"text of {name}")
    async with chat(FakeEngine("see @app.txt")) as c:
        await c.ask("Sum up @notes and @more.md")
        await c.idle()
        (tmp_path / "notes").unlink()
        await c.ask("/edit")
        await c.until(lambda: c.app.composer.text == "Sum up @notes and @more.md")
        await c.pilot.press("!", "enter")
        await c.until(lambda: len(c.engine.asked) == 2)
        await c.idle()
        assert c.engine.asked[-1][-1].content == (
            "notes:\n```\ntext of notes\n```\n\nmore.md:\n```\ntext of more.md\n```\n\n"
            "Sum up @notes and @more.md!"
        )
        await c.ask("/rewrite")  # in an answer, an @path is a word
        await c.until(lambda: c.app.composer.text == "see @app.txt")
        await c.pilot.press("!", "enter")
        await c.until(lambda: c.app.session.last.answer.node.text == "see @app.txt!")


@pytest.mark.parametrize("name", ["@nofile.txt", "@no/file", "@nofile.txt).", '@"no file"', "@~/nofile"])
async def test_a_file_that_is_missing_is_said(
    name: str, chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"Read {name}"
    async with chat(FakeEngine("ok")) as c:
        await c.ask(text)
        shown = name.rstrip(").")
        assert f"{shown}: No such file or directory; @{shown} sends it as text" in c.line("footer")
        assert c.app.composer.text == text
        assert not c.app.session.turns
        await c.ask(text.replace("@", "@@"))
        await c.idle()
        assert c.engine.asked[-1][-1].content == text


@pytest.mark.parametrize(
    "text",
    [
        "Ask @alice, and @bob.",
        "Mail me@example.com or @me@example.com",
        '@app.route("/users") and @dataclass(frozen=True)',
        "@3.5 GHz, @v1.2, a @ b, @@ -1,3 +1,4 @@",
        "SELECT @@version",
    ],
)
async def test_words_that_name_no_file_are_sent_as_they_are(
    text: str, chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with chat(FakeEngine("ok")) as c:
        await c.ask(text)
        await c.idle()
        assert c.engine.asked[-1][-1].content == text


def test_what_was_attached_is_told_from_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    contents = {"a": "", "b.md": "```\nx\n```\n\na:\n```\nz\n```", "c c": "`" * 9 + "\n\nq:\n"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    written = 'see @a, (@b.md and @b.md! @"c c"\n\nmine:\n```\nown\n```'
    for text in (written, "@a", f"{written} @a"):
        blocks = draft.read_attachments(text)
        assert blocks
        for sent in (draft.attach(text, blocks), text + blocks):  # the second as older versions sent it
            said, files = draft.split_attachments(sent)
            assert said == text
            assert "".join(files.values()) == blocks
            assert draft.read_attachments(text, files) == blocks
            assert draft.to_draft(sent) == text
    own = "mine:\n\nx:\n```\nown\n```"  # looks like a file, and names none
    assert draft.split_attachments(own) == (own, {})
    assert draft.to_draft("/x @y.txt @a.b@c.d") == "//x @@y.txt @a.b@c.d"


def test_a_file_is_read_again_when_it_changed_or_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    decoded: list[bytes] = []
    plain = draft.decode
    monkeypatch.setattr(draft, "decode", lambda data: (decoded.append(data), plain(data))[1])
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.bin").write_bytes(b"\0" * 9)
    for _ in range(3):  # as after each pause in typing
        assert "one" in draft.read_attachments("@a.txt", cached=True)
        with pytest.raises(draft.AttachError, match=r"@b\.bin: not a text file"):
            draft.read_attachments("@b.bin", cached=True)
    assert len(decoded) == 2
    (tmp_path / "a.txt").write_text("three")
    assert "three" in draft.read_attachments("@a.txt", cached=True)
    times = (tmp_path / "a.txt").stat()
    draft.read_attachments("@a.txt")
    assert len(decoded) == 4
    (tmp_path / "a.txt").write_text("seven")  # of the same size, and perhaps at the same time
    os.utime(tmp_path / "a.txt", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "seven" in draft.read_attachments("@a.txt")  # what is sent is what is there


async def test_the_gauge_counts_what_will_be_sent(
    chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("many words " * 30)
    async with chat(FakeEngine("ok", context=10_000)) as c:
        await paste(c, PASTE)
        c.app.composer.insert(" @notes")
        whole = f"{PASTE} @notes\n\nnotes:\n```\n{'many words ' * 30}\n```"
        used = len(c.engine.prompt_ids(c.app.session.messages(whole)))
        await c.until(lambda: c.app.session.draft_tokens == used)


# --- completion ---


@pytest.mark.slow
async def test_commands_are_completed(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await c.pilot.press(*"/re")
        await c.until(lambda: "Regenerate the answer (keeps the old one)" in c.screen())
        assert "/regen" in c.screen()
        found = []
        for _ in range(4):
            await c.pilot.press("tab")
            found.append(c.app.composer.text)
        assert found == ["/regen", "/rename", "/rewrite", "/regen"]
        c.app.composer.set_text("")
        await c.pilot.press(*"/ren", "tab")
        assert c.app.composer.text == "/rename "
        await c.pilot.press(*"New name", "enter")
        assert "New name" in c.line("title")
        assert not c.app.ui.completions.display


async def test_paths_are_completed(chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    for name in ("main.py", "my file.md", ".hidden", "bad\x1b[31m"):
        (tmp_path / "src" / name).write_text("x")
    async with chat(FakeEngine("ok")) as c:
        await c.pilot.press(*"read @s", "tab")
        assert c.app.composer.text == "read @src/"
        await c.until(lambda: "@src/main.py" in c.screen())
        assert "hidden" not in c.screen()
        assert "bad" not in c.screen()
        await c.pilot.press(*"my", "tab")
        assert c.app.composer.text == 'read @"src/my file.md" '


async def test_tab_with_nothing_to_complete_says_what_it_is_for(chat: Any) -> None:
    async with chat(FakeEngine()) as c:
        await c.pilot.press(*"word", "tab")
        assert c.app.composer.text == "word"
        assert c.app.composer.has_focus
        assert "tab completes a /command or an @file" in c.line("footer")


# --- history ---


@pytest.mark.slow
async def test_questions_of_earlier_chats_are_recalled(chat: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    async with chat(FakeEngine("ok"), store=store) as c:
        for text in ("one", "two", "two"):
            await c.ask(text)
            await c.idle()
    async with chat(FakeEngine("ok"), store=store) as c:
        await c.until(lambda: bool(c.app.composer.sent))
        await c.pilot.press("up")
        assert c.app.composer.text == "two"
        await c.pilot.press("up")
        assert c.app.composer.text == "one"
    store.close()
    async with chat(FakeEngine("ok")) as c:  # nothing is kept, nothing is recalled
        await c.pilot.press("up")
        assert c.app.composer.text == ""


# --- the editor ---


def editor(tmp_path: Path, code: str) -> str:
    script = tmp_path / "edit.py"
    script.write_text(f"import sys, pathlib\nfile = pathlib.Path(sys.argv[-1])\n{code}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return f"{sys.executable} {script} --flag"


@pytest.fixture
def suspendable(monkeypatch: pytest.MonkeyPatch) -> None:
    from textual.drivers.headless_driver import HeadlessDriver

    monkeypatch.setattr(HeadlessDriver, "can_suspend", property(lambda self: True))


@pytest.mark.usefixtures("suspendable")
async def test_the_editor_gets_and_gives_the_text(
    chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", editor(tmp_path, "file.write_text(file.read_text().upper() + '\\x1b!\\n')"))
    async with chat(FakeEngine()) as c:
        await c.pilot.press(*"draft", "ctrl+g")
        assert c.app.composer.text == "DRAFT␛!"
        assert not c.app.session.turns
        monkeypatch.setenv("VISUAL", editor(tmp_path, "sys.exit(3)"))
        await c.pilot.press("ctrl+g")
        assert c.app.composer.text == "DRAFT␛!"
        assert "ended with exit code 3" in c.line("footer")


@pytest.mark.usefixtures("suspendable")
@pytest.mark.parametrize(
    ("command", "message"),
    [("", "no editor"), ("/nowhere/ed", "/nowhere/ed: No such file"), ("ed 'x", "$VISUAL or $EDITOR")],
)
async def test_editors_that_cannot_be(
    command: str, message: str, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", command)
    async with chat(FakeEngine()) as c:
        c.app.composer.set_text("kept")
        await c.ask("/editor")
        await c.until(lambda: message in c.line("footer"))


# --- search in what was sent ---


async def test_search_in_what_was_sent(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        c.app.composer.sent[:] = ["Why is rust red?", "What is rope?", "Why ROPE?", "What is rope?"]
        text = lambda: c.app.composer.text  # noqa: E731
        await c.pilot.press(*"rope", "ctrl+r")
        assert text() == "What is rope?"
        assert "2 older" in c.line("footer")
        await c.pilot.press("ctrl+r")
        assert text() == "Why ROPE?"
        await c.pilot.press("ctrl+r", "ctrl+r")  # the last one that holds it stays
        assert text() == "What is rope?"
        assert "no older match" in c.line("footer")
        await c.pilot.press("escape")
        assert text() == "rope"
        assert c.app.composer.has_focus
        await c.pilot.press("ctrl+r", "!")  # another key keeps what was found
        assert text() == "What is rope?!"
        await c.pilot.press("escape")
        assert text() == "What is rope?!"


async def test_search_that_finds_nothing_keeps_the_draft(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        c.app.composer.sent[:] = ["Why is rust red?"]
        await c.pilot.press(*"rope", "ctrl+r")
        assert c.app.composer.text == "rope"
        assert "no match in your messages" in c.line("footer")
        await c.pilot.press("escape")
        assert c.app.composer.text == "rope"
        await c.pilot.press("ctrl+u", "ctrl+r")  # an empty draft is in everything
        assert c.app.composer.text == "Why is rust red?"
        await c.pilot.press("enter")
        await c.idle()
        assert c.engine.asked[-1][-1].content == "Why is rust red?"
