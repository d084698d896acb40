"""`ropechat "question"`, `-c`, and what is stored of questions on the command line."""

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door, command, environment, on_terminal
from model_folders import CHATML, byte_folder

from ropechat.cli.route import with_command
from ropechat.store.store import Store


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return byte_folder(tmp_path / "model")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROPECHAT_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def chats(data: Path) -> list[Any]:
    """The stored chats, newest first."""
    store = Store(data / "conversations")
    try:
        return [store.load(one.id).result(60) for one in store.conversations().result(60)]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ([], "chat"),
        (["-m", "org/name"], "chat"),
        (["-m", "my models/x.gguf"], "chat"),
        (["--system", "Be brief."], "chat"),
        (["--continue"], "chat"),
        (["-c"], "chat"),
        (["Why is it?"], "run"),
        (["Why?"], "run"),
        (["Привет"], "run"),
        (["法国的首都是哪里"], "run"),
        (["-m", "org/name", "Why is it?"], "run"),
        (["-c", "more"], "run"),
        (["-m", "x", "--temperature", "0", "--json", "Tell me more"], "run"),
        (["--theme", "dark", "Tell me more"], "chat"),  # no option of run; chat refuses the words
        (["hello"], "hello"),
        (["models", "list"], "models"),
        (["--help"], "--help"),
        (["model.gguf"], "model.gguf"),
    ],
)
def test_a_question_needs_no_command(given: list[str], command: str) -> None:
    assert with_command(given)[0] == command


def test_a_path_with_a_space_is_no_question(door: Door, tmp_path: Path) -> None:
    path = tmp_path / "my model"
    path.mkdir()
    code, _, err = door(str(path))
    assert code == 2
    assert f"did you mean `ropechat chat -m '{path}'`?" in err


def test_a_question_is_answered_as_by_run(door: Door, model: Path) -> None:
    options = ["-m", model, "--temperature", 0, "--max-tokens", 3, "--quiet"]
    assert door(*options, "x a") == door("run", *options, "x a") == (0, "bcd\n", "")


def test_words_and_stdin_are_one_prompt(door: Door, model: Path) -> None:
    options = ["run", "-m", model, "--max-tokens", 1, "--json", "--raw"]

    def tokens(*words: str, stdin: bytes = b"") -> int:
        code, out, _ = door(*options, *words, stdin=stdin)
        assert code == 0
        return int(json.loads(out)["usage"]["prompt_tokens"])

    assert tokens("ab", "cd") == len("ab cd")
    assert tokens("ab", "-", stdin=b"text") == len("ab\n\ntext")
    assert tokens("ab", "-", "cd", stdin=b"text") == len("ab\n\ntext\n\ncd")
    code, _, err = door(*options, "-", "-")
    assert (code, "at most once" in err) == (2, True)


def test_nothing_is_stored_in_a_pipe(door: Door, model: Path, data: Path) -> None:
    assert door("run", "-m", model, "--max-tokens", 2, "a")[0] == 0
    assert not (data / "conversations").exists()


@pytest.mark.slow
def test_a_question_at_a_terminal_is_stored(model: Path, data: Path) -> None:
    for flag, count in (("--quiet", 1), ("--incognito", 1), ("--raw", 1)):
        code, out = on_terminal(
            ["run", "-m", str(model), "--max-tokens", "2", flag, "a b"], ROPECHAT_DATA=str(data)
        )
        assert code == 0, out
        assert len(chats(data)) == count


def test_c_continues_the_newest_chat(door: Door, model: Path, data: Path) -> None:
    options = ["-m", model, "--max-tokens", 3, "--quiet"]
    assert door("run", *options, "--store", "--temperature", 0, "--system", "s", "x a")[:2] == (0, "bcd\n")
    code, out, err = door("-c", *options, "--json", "more")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["usage"]["prompt_tokens"] > len("x a") + len("bcd")
    [chat] = chats(data)
    assert [node.text for node in chat.tree.path()] == ["s", "x a", "bcd", "more", found["text"]]
    last = chat.tree.path()[-1]
    assert (last.sampling.temperature, last.sampling.max_tokens) == (0, 3)  # of the chat
    assert (last.finish_reason, last.prompt_tokens) == ("length", found["usage"]["prompt_tokens"])
    assert [step.id for step in last.steps] == found["ids"]
    assert all(len(step.top) == 20 for step in last.steps)  # as in the chat, for its inspector
    assert door("run", *options, "--store", "other")[0] == 0
    assert door("run", *options, "--resume", chat.id, "--temperature", 1, "again")[0] == 0
    newest = chats(data)[0]
    assert (newest.id, newest.tree.path()[-1].sampling.temperature) == (chat.id, 1)


def test_a_grammar_is_of_one_answer_only(data: Path) -> None:
    source = "import sys; from ropechat.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["--store", "--choices", "yes,no", "Is it so?"]
    done = subprocess.run([sys.executable, "-c", source, *words], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip() in ("yes", "no")) == (0, True), done.stderr
    [chat] = chats(data)
    assert chat.tree.path()[-1].sampling.grammar is not None
    assert chat.sampling.grammar is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-c", "--incognito", "x y"], "--incognito: not possible with -c"),
        (["-c", "--raw", "x y"], "--raw: not possible with -c"),
        (["run", "--resume", "abc", "--system", "s", "x"], "--system: not possible with --resume"),
        (["run", "--store", "--raw", "x"], "--store: not possible with --raw"),
        (["-c", "x y"], "-c: there is no stored chat"),
        (["run", "--resume", "abc", "x"], "conversation 'abc': not found"),
    ],
)
def test_what_cannot_be_continued(door: Door, model: Path, arguments: list[str], words: str) -> None:
    code, out, err = door(*arguments, "-m", model)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_chat_that_is_full(door: Door, tmp_path: Path, data: Path) -> None:
    model = byte_folder(tmp_path / "chat", tokenizer_config={"chat_template": CHATML})
    options = ["-m", model, "--max-tokens", 2, "--quiet", "--store"]
    assert door("run", *options, "a")[0] == 0
    code, out, err = door("run", *options, "-c", "b" * 40)
    assert (code, out) == (2, "")
    assert "--when-full slide leaves the oldest questions out" in err
    assert len(chats(data)[0].tree) == 2  # the question was taken back
    assert door("run", *options, "-c", "--when-full", "slide", "b")[0] == 0
    assert len(chats(data)[0].tree) == 4
    options.remove("--quiet")
    code, _, err = door("run", *options, "-c", "--when-full", "slide", "b" * 20)
    assert (code, err.count("its oldest 2 questions are no longer sent to the model")) == (0, 1)
    path = chats(data)[0].tree.path()
    assert path[4].context_start == path[4].id  # the next start of the program reads the same
    code, _, err = door("run", *options, "b" * 80)
    assert (code, "--when-full" in err) == (2, False)
    assert len(chats(data)) == 1


@pytest.mark.slow
def test_the_model_of_the_chat_answers(door: Door, model: Path, data: Path) -> None:
    assert door("run", "-m", model, "--max-tokens", 2, "--quiet", "--store", "a")[0] == 0
    code, _, err = door("run", "-c", "--max-tokens", 2, "b")
    assert code == 0
    assert "model, the model of this chat, was not found; choose one with -m" in err
    code, out, err = door("run", "-c", "--max-tokens", 2, "--json", "c")
    assert (code, json.loads(out)["model"], "note:" in err) == (0, "builtin", False)


def test_a_setting_that_stores_nothing_is_about_new_chats(
    door: Door, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["run", "-m", model, "--max-tokens", 2]
    assert door(*options, "--store", "a")[0] == 0
    (tmp_path / "config.toml").write_text("store = false\n")
    monkeypatch.setenv("ROPECHAT_CONFIG", str(tmp_path / "config.toml"))
    assert door(*options, "-c", "b")[0] == 0
    monkeypatch.setenv("ROPECHAT_STORE", "off")
    assert door(*options, "-c", "c")[0] == 0
    assert [node.text for node in chats(data)[0].tree.path()][::2] == ["a", "b", "c"]
    code, _, err = door(*options, "-c", "--incognito", "d")
    assert (code, "--incognito: not possible with -c" in err) == (2, True)


def test_an_answer_that_the_disk_refuses_is_printed_and_is_no_success(
    door: Door, model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(connection: sqlite3.Connection) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    options = ["-m", model, "--max-tokens", 2, "--quiet", "--store"]
    assert door("run", *options, "a")[0] == 0
    monkeypatch.setattr("ropechat.store.writer.transaction", full)
    monkeypatch.setattr("ropechat.cli.run_stored.CLOSE_S", 0.2)
    code, out, err = door("run", *options, "--json", "b")
    assert (code, json.loads(out)["finish_reason"]) == (74, "length")
    assert (
        err == f"error: {data / 'conversations' / 'conversations.db'}: not stored: database or disk is full\n"
    )


@pytest.mark.slow
def test_what_was_said_before_a_stop_is_stored(model: Path, data: Path) -> None:
    slow = "import time, fake_core; fake_core.Engine._advance_fast = fake_core.Engine._advance\n"
    slow += (
        "fake_core.Engine._advance = lambda *a: (time.sleep(0.2), fake_core.Engine._advance_fast(*a))[1]\n"
    )
    words = ["run", "-m", str(model), "--store", "--max-tokens", "60", "--temperature", "0", "!"]
    arguments = command(words)
    arguments[2] = arguments[2].replace("from ropechat.cli", slow + "from ropechat.cli")
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        child = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(ROPECHAT_DATA=str(data)),
        )
        assert child.stdout is not None
        said = child.stdout.read(2)
        child.send_signal(number)
        said += child.communicate(timeout=60)[0]
        assert child.returncode == code
        last = chats(data)[0].tree.path()[-1]
        assert (str(last.state), last.finish_reason) == ("stopped", "cancelled")
        assert last.model.endswith("/model")
        assert last.text == said.decode().rstrip("\n")
