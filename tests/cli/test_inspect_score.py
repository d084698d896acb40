"""`ropechat inspect` on long texts, conversations and answers."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door
from model_folders import byte_folder, chat_folder

from ropechat.cli.status import ProgressLine
from ropechat.util.progress import Progress

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return chat_folder(tmp_path / "chat")


@pytest.fixture
def short(tmp_path: Path) -> Path:
    return byte_folder(tmp_path / "short", max_position_embeddings=8)


def records(out: str) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    meta, *tokens, following, _ = [json.loads(line) for line in out.splitlines()]
    return meta, tokens, following


def test_a_long_text_is_scored_in_windows(door: Door, short: Path) -> None:
    code, out, err = door("inspect", "-m", short, "--format", "jsonl", "abcdefghijklmnopqrst")
    meta, tokens, _ = records(out)
    assert (code, err) == (0, "note: 20 tokens in windows of 8, stride 4; the model was trained for 8\n")
    assert (meta["window"], meta["stride"], meta["tokens"], meta["beyond_trained_length"]) == (8, 4, 20, 0)
    assert [token["ctx"] for token in tokens][:14] == [*range(9), 5, 6, 7, 8, 5]
    code, out, err = door(
        "inspect", "-m", short, "--window", 6, "--stride", 2, "--format", "jsonl", "abcdefghijklmnopqrst"
    )
    assert err == "note: 20 tokens in windows of 6, stride 2; the model was trained for 8\n"
    assert [token["logprob"] for token in records(out)[1]] == [token["logprob"] for token in tokens]
    assert door("inspect", "-m", short, "abcdefgh")[2] == ""


def test_the_table_of_a_long_text(door: Door, short: Path) -> None:
    _, out, _ = door("inspect", "-m", short, "--candidates", 0, "abcdefghijklmnopqrst")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:21]] == [str(i) for i in range(20)]
    assert lines[-1].startswith("20 tokens, 19 scored: ")
    assert " bits, perplexity " in lines[-1]


def test_a_conversation_has_roles(door: Door, model: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text(json.dumps(CHAT))
    inspect = ["inspect", "-m", model, "--context", 200, "--format", "jsonl"]
    code, out, err = door(*inspect, "--messages", tmp_path / "chat.json")
    meta, tokens, _ = records(out)
    assert (code, err) == (0, "")
    assert [token["token"] for token in tokens if token["role"] == "assistant"] == ["y", "o"]
    assert [token["token"] for token in tokens if token["role"] == "user"] == ["h", "i"]
    assert (meta["roles"], meta["messages"][1]["role"]) == (["assistant"], "assistant")
    assert meta["text"][slice(*meta["messages"][0]["span"])] == "hi"
    code, out, _ = door(
        *inspect, "--messages", "-", "--roles", "user,system", stdin=json.dumps(CHAT).encode()
    )
    assert records(out)[0]["roles"] == ["user", "system"]


def test_an_answer_and_a_continuation(door: Door, model: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text(json.dumps(CHAT[:1]))
    inspect = ["inspect", "-m", model, "--context", 200, "--format", "jsonl"]
    messages = ["--messages", tmp_path / "chat.json"]
    _, out, _ = door(*inspect, *messages, "--answer", "yo")
    tokens = records(out)[1]
    assert [token["token"] for token in tokens[-2:]] == ["y", "o"]
    assert {token["role"] for token in tokens[-2:]} == {"assistant"}
    assert door(*inspect, *messages, "--answer", "-", stdin=b"yo")[1] == out
    lines = door("inspect", "-m", model, "--context", 200, *messages, "--answer", "yo", "--candidates", 0)[1]
    shown = [line.split()[:2] for line in lines.splitlines() if line.split()[0].isdecimal()]
    assert shown[:2] == [[str(token["i"]), token["token"]] for token in tokens[-2:]]
    assert "2 scored" in lines.splitlines()[-1]
    (tmp_path / "prompt.txt").write_text("abc ")
    code, out, _ = door(*inspect, "--given-file", tmp_path / "prompt.txt", "de")
    meta, tokens, _ = records(out)
    assert code == 0
    assert meta["text"] == "abc de"
    assert [(token["i"], token["token"], token["ctx"]) for token in tokens] == [
        (3, " ", 3),
        (4, "d", 4),
        (5, "e", 5),
    ]
    table = door("inspect", "-m", model, "--given-file", tmp_path / "prompt.txt", "--candidates", 0, "de")[1]
    assert table.splitlines()[-1].startswith("3 tokens, 3 scored: ")


def test_the_name_of_a_file_as_text_has_a_note(
    door: Door, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "para.txt").write_text("abc")
    code, _, err = door("inspect", "-m", model, "para.txt")
    assert (code, err) == (
        0,
        "note: text: the name of a file was given, and the name is scored; its text: -f para.txt\n",
    )
    assert door("inspect", "-m", model, "para")[2] == ""
    assert door("inspect", "-m", model, ".")[2] == ""


def test_progress_is_shown_on_a_terminal_beside_a_file(
    door: Door, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[Progress | None] = []

    class Line(ProgressLine):
        @contextlib.contextmanager
        def watch(self, read: Callable[[], Progress | None]) -> Iterator[None]:
            waits.append(read())
            yield
            waits.append(read())

    monkeypatch.setattr("ropechat.cli.inspect.ProgressLine", Line)
    assert door("inspect", "-m", short, "--format", "jsonl", "abcdefghijklmnopqrst")[0] == 0
    loading, _, begun, ended = waits
    assert loading is None
    assert begun == Progress("scoring", 0, 20)
    assert ended == Progress("scoring", 20, 20)


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--one-sequence", "--window", "4", "a"], 2, "--one-sequence: not possible with --window"),
        (["--stride", "9", "--window", "4", "a"], 2, "stride: must be an integer from 1 to 4"),
        (["--answer", "x", "a"], 2, "--answer: requires --messages"),
        (["--messages", "{chat}", "a"], 2, "--messages: not possible with TEXT"),
        (["--messages", "{chat}", "--answer", ""], 2, "answer: must have at least one token"),
        (["--messages", "-", "--answer", "-"], 2, "stdin is read by --messages"),
        (["--given-file", "none.txt", "a"], 2, "none.txt: file not found"),
        (["--given-file", "-"], 2, "stdin is read by --given-file already"),
        (["--given-file", "{bad}", "a"], 2, "must be UTF-8 (byte 0 is not)"),
        (["--given-file", "{chat}", ""], 2, "continuation: must have at least one token"),
        ([""], 2, "text: must have at least one character (got none)"),
        (["-"], 2, "text: must have at least one character (stdin is empty)"),
        (["--messages", "none.json"], 2, "none.json: file not found"),
        (["--messages", "-"], 2, "stdin: not valid JSON"),
        (["--roles", "user,none", "a"], 2, "--roles: must be some of"),
    ],
)
def test_what_does_not_fit_together(
    arguments: list[str], code: int, what: str, door: Door, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "chat.json").write_text(json.dumps(CHAT))
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    names = {"chat": tmp_path / "chat.json", "bad": tmp_path / "bad.txt"}
    found, out, err = door("inspect", "-m", model, *[text.format(**names) for text in arguments])
    assert (found, out) == (code, "")
    assert err.count("\n") == 1
    assert what in err
