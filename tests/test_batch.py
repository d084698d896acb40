"""Batches: every line is answered or says why not, in order, and nothing is lost or overwritten."""

import errno
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door, command, environment
from model_folders import CHATML, byte_folder

from ropechat.batch.output import Output
from ropechat.batch.rows import BatchReader, BatchRow
from ropechat.cli.batch import clock
from ropechat.conversation import Message, Role
from ropechat.errors import BatchInputError, FileAccessError

GREEDY = ["--temperature", 0, "--max-tokens", 3]


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Door:
    return Door(monkeypatch, capfd)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return byte_folder(tmp_path / "model")


def rows_of(tmp_path: Path, data: bytes, **options: Any) -> list[BatchRow]:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    reader = BatchReader(path, **options)
    rows = list(reader)
    assert reader.check() == len(rows)
    return rows


# ---- Rows


def test_rows_of_both_forms(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        b'\xef\xbb\xbf{"id": "a", "prompt": "x"}\r\n'
        b"\n   \t\n"
        b'{"custom_id": "b", "messages": [{"role": "system", "content": ""}, '
        b'{"role": "user", "content": "y"}]}\n'
        b'{"id": 7, "prompt": "\xe2\x80\xa8 \xc2\x85 \\u2028\\u0000"}\n'
        b'{"prompt": "z"}',
    )
    assert [(row.index, row.line, row.id, row.error) for row in rows] == [
        (0, 1, "a", None),
        (1, 4, "b", None),
        (2, 5, 7, None),
        (3, 6, "line-6", None),
    ]
    assert rows[0].content == "x"
    assert rows[1].content == [Message(Role.SYSTEM, ""), Message(Role.USER, "y")]
    assert rows[2].content == "\u2028 \x85 \u2028\0"


BAD_LINES: list[tuple[bytes, str]] = [
    (b"{", "JSON: "),
    (b"[1]", "JSON: a list"),
    (b"null", "JSON: a NoneType"),
    (b'{"prompt":"a"}{"prompt":"b"}', "JSON: Extra data"),
    (b'{"id":"b"}', "prompt: missing"),
    (b'{"id":"b","prompt":"a","messages":[]}', "messages: stands beside prompt"),
    (b'{"id":"b","prompt":5}', "prompt: 5"),
    (b'{"id":"b","prompt":null}', "prompt: None"),
    (b'{"id":"b","prompt":""}', "prompt: empty"),
    (b'{"id":"b","messages":[]}', "messages: []"),
    (b'{"id":"b","messages":"x"}', "messages: 'x'"),
    (b'{"id":"b","messages":["x"]}', "messages[0]: 'x'"),
    (b'{"id":"b","messages":[{"content":"x"}]}', "messages[0].role: None"),
    (b'{"id":"b","messages":[{"role":"x","content":"x"}]}', "messages[0].role: 'x'"),
    (b'{"id":"b","messages":[{"role":"user"}]}', "messages[0].content: missing"),
    (b'{"id":"b","messages":[{"role":"user","content":[]}]}', "messages[0].content: []"),
    (b'{"id":"b","messages":[{"role":"user","content":"a","x":1}]}', "messages[0].x: not known"),
    (b'{"id":"b","prompt":"a","tempreature":0}', "tempreature: not known"),
    (b'{"id":"b","prompt":"a","prompt":"c"}', "prompt: the key stands twice"),
    (b'{"id":"b","prompt":"a","x":NaN}', "JSON: NaN"),
    (b'{"id":"b","prompt":"a","x":-Infinity}', "JSON: -Infinity"),
    (b'{"id":"b","prompt":"\\ud800"}', "prompt: a lone surrogate"),
    (b'{"id":"\\ud800","prompt":"a"}', "id: a lone surrogate"),
    (b'{"id":"b","prompt":"\xff"}', "line: byte 20 is not UTF-8"),
    (b'{"id":"b","prompt":"a\x00"}', "JSON: Invalid control character"),
    (b"[" * 100_000, "JSON: nested too deep"),
    (b'{"id":' + b"9" * 5000 + b"}", "JSON: Exceeds the limit"),
    (b'{"id":true,"prompt":"a"}', "id: True"),
    (b'{"id":null,"prompt":"a"}', "id: None"),
    (b'{"id":"","prompt":"a"}', "id: ''"),
    (b'{"id":18446744073709551616,"prompt":"a"}', "id: an integer beyond"),
    (b'{"custom_id":7,"prompt":"a"}', "custom_id: 7"),
    (b'{"custom_id":"' + b"x" * 600 + b'","prompt":"a"}', "custom_id: "),
    (b'{"id":"b","custom_id":"c","prompt":"a"}', "custom_id: stands beside id"),
    (b'{"id":"first","prompt":"a"}', "id: 'first' stands on an earlier line"),
]


@pytest.mark.parametrize(("line", "words"), BAD_LINES, ids=[str(i) for i in range(len(BAD_LINES))])
def test_bad_lines(line: bytes, words: str, tmp_path: Path) -> None:
    first, bad, last = rows_of(
        tmp_path, b'{"id":"first","prompt":"a"}\n' + line + b'\n{"id":"last","prompt":"c"}\n'
    )
    assert first.error is last.error is None
    assert bad.content is None
    assert str(bad.error).startswith(f"in.jsonl: line 2: {words}")
    assert len(str(bad.error)) < 400


def test_a_line_above_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropechat.batch.rows.MAX_LINE_BYTES", 40)
    rows = rows_of(tmp_path, b'{"prompt":"a"}\n' + b'{"prompt":"' + b"x" * 300 + b'"}\n{"prompt":"b"}\n')
    assert [row.error is None for row in rows] == [True, False, True]
    assert [row.line for row in rows] == [1, 2, 3]
    assert "more than 40 bytes" in str(rows[1].error)


def test_another_field_may_hold_the_prompt(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'{"id":1,"prefix":"a","gold":"x"}\n{"id":2}\n', prompt_field="prefix")
    assert rows[0].content == "a"
    assert "prefix: missing" in str(rows[1].error)


@pytest.mark.parametrize(
    "data",
    [
        b'{"prompt":"a"}\r{"prompt":"b"}\r',
        '{"prompt":"a"}\n'.encode("utf-16"),
        b"\x1f\x8b\x08\x00",
        b'[\n {"prompt": "a"}\n]\n',
        b'[{"prompt": "a"}]\n',
        b"id,prompt\n1,hi\n",
    ],
)
def test_files_that_are_no_json_lines(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    with pytest.raises(BatchInputError, match=r"in\.jsonl"):
        BatchReader(path).check()


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("missing", "fifo", "."):
        with pytest.raises(BatchInputError):
            BatchReader(tmp_path / name).check()


def test_an_empty_file(tmp_path: Path) -> None:
    assert rows_of(tmp_path, b"") == rows_of(tmp_path, b"\n\n") == []


# ---- The file of results


def test_output_gets_its_name_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Output(path) as output:
        output.write({"text": "é\u2028\n"})
        assert not path.exists()
        assert output.partial.read_bytes() == '{"text": "é\u2028\\n"}\n'.encode()
        with pytest.raises(BatchInputError, match="another run"):
            Output(path)
        output.complete()
    assert path.read_bytes() == '{"text": "é\u2028\\n"}\n'.encode()
    assert not output.partial.exists()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with Output(tmp_path / "out") as output:
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
        output.write({"text": "abcdefg"})
        monkeypatch.undo()
        output.complete()
    assert json.loads((tmp_path / "out").read_text()) == {"text": "abcdefg"}


def test_a_full_disk_keeps_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Output(tmp_path / "out") as output:
        output.write({"a": 1})
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(
            FileAccessError, match="No space left on device; it holds the first 1 results"
        ) as caught:
            output.write({"a": 2})
    assert caught.value.exit_code == 74
    assert output.partial.read_text() == '{"a": 1}\n'


@pytest.mark.parametrize("written", range(10))
def test_an_interrupted_line_is_whole_or_gone(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives right after the system call, before Python has its result."""
    write = os.write

    def interrupted(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:written])
        raise KeyboardInterrupt

    with Output(tmp_path / "out") as output:
        output.write({"a": 1})
        monkeypatch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            output.write({"a": 2})
        monkeypatch.undo()
        output.settle()
        assert output.lines == (2 if written == 9 else 1)
    assert output.partial.read_text() == '{"a": 1}\n{"a": 2}\n'[: 9 * output.lines]


# ---- The command


def batch(door: Door, tmp_path: Path, model: Path, data: str, *options: object) -> tuple[int, list[Any], str]:
    (tmp_path / "in.jsonl").write_text(data)
    out = tmp_path / "out.jsonl"
    code, text, err = door("batch", "-m", model, tmp_path / "in.jsonl", "-o", out, *GREEDY, *options)
    assert text == ""
    records = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return code, records, err


def test_all_good(door: Door, tmp_path: Path, model: Path) -> None:
    data = '{"id":"p","prompt":"a"}\n{"id":2,"messages":[{"role":"user","content":"xm"}]}\n'
    code, records, err = batch(door, tmp_path, model, data, "--seed", 4)
    assert code == 0
    assert records == [
        {
            "id": "p",
            "index": 0,
            "ok": True,
            "text": "bcd",
            "finish_reason": "length",
            "usage": {"prompt_tokens": 1, "completion_tokens": 3},
            "seed": 4,
        },
        {
            "id": 2,
            "index": 1,
            "ok": True,
            "text": "nop",
            "finish_reason": "length",
            "usage": {"prompt_tokens": 2, "completion_tokens": 3},
            "seed": 4,
        },
    ]
    assert err.count("note: this model has no chat template") == 1
    assert "2 rows, 2 ok, 0 failed; 3 + 6 tokens" in err


def test_some_bad(door: Door, tmp_path: Path, model: Path) -> None:
    data = (
        '{"id":"a","prompt":"a"}\nnonsense\n{"id":"long","prompt":"'
        + "x" * 99
        + '"}\n{"id":"b","prompt":"b"}\n'
    )
    code, records, err = batch(door, tmp_path, model, data)
    assert code == 3
    assert [(r["id"], r["index"], r["ok"]) for r in records] == [
        ("a", 0, True),
        ("line-2", 1, False),
        ("long", 2, False),
        ("b", 3, True),
    ]
    assert records[1]["error"]["class"] == "RequestError"
    assert records[2]["error"]["class"] == "ContextFullError"
    assert records[2]["error"]["message"].startswith("line 3: 99 tokens")
    assert [records[0]["text"], records[3]["text"]] == ["bcd", "cde"]
    assert err.count("error: ") == 2


def test_many_errors_are_said_a_few_times(door: Door, tmp_path: Path, model: Path) -> None:
    code, records, err = batch(door, tmp_path, model, "{\n" * 50)
    assert (code, len(records)) == (3, 50)
    assert err.count("error: ") == 5
    assert err.count("more errors") == 1


def test_nothing_to_do(door: Door, tmp_path: Path, model: Path) -> None:
    code, records, _ = batch(door, tmp_path, model, "")
    assert (code, records) == (0, [])
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_the_window_changes_nothing(door: Door, tmp_path: Path, model: Path) -> None:
    data = "".join(json.dumps({"id": i, "prompt": chr(97 + i) * (i + 1)}) + "\n" for i in range(20))
    runs = []
    for window in (1, 3, 20):
        options = ["--temperature", 2, "--seed", 9, "--window", window, "--overwrite"]
        assert batch(door, tmp_path, model, data, *options)[0] == 0
        runs.append((tmp_path / "out.jsonl").read_bytes())
    assert runs[0] == runs[1] == runs[2]
    assert len({json.loads(line)["text"] for line in runs[0].splitlines()}) > 10


def test_templates_system_and_raw(door: Door, tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHATML}
    model = byte_folder(tmp_path / "chat", tokenizer_config=config)
    data = '{"prompt":"a"}\n{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}]}\n'

    def lengths(*options: str) -> list[int]:
        code, records, err = batch(door, tmp_path, model, data, "--overwrite", *options)
        assert code == 0
        assert "note:" not in err
        return [record["usage"]["prompt_tokens"] for record in records]

    user, system = len("|user\na|\n|assistant\n"), len("|system\ns|\n")
    assert lengths() == [user, user + system]
    assert lengths("--system", "s") == [user + system, user + system]
    assert lengths("--raw") == [1, 2]
    assert lengths("--raw", "--system", "sys") == [4, 2]


def test_nothing_is_overwritten(door: Door, tmp_path: Path, model: Path) -> None:
    data, out, partial = '{"prompt":"a"}\n', tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    partial.write_text("old\n")
    assert batch(door, tmp_path, model, data)[0] == 2
    assert partial.read_text() == "old\n"
    assert batch(door, tmp_path, model, data, "--overwrite")[0] == 0
    before = out.read_bytes()
    code, _, err = batch(door, tmp_path, model, data)
    assert (code, out.read_bytes()) == (2, before)
    assert "exists; name another output or give --overwrite" in err
    source = tmp_path / "in.jsonl"
    assert door("batch", "-m", model, source, "-o", source, "--overwrite")[0] == 2
    assert source.read_text() == data
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert door("batch", "-m", model, source, "-o", tmp_path / "link", "--overwrite")[0] == 2
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_is_done(number: signal.Signals, code: int, tmp_path: Path, model: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt":"a"}\n' * 500)
    slow = "import time, fake_core; fake_core.Engine._advance_fast = fake_core.Engine._advance\n"
    slow += (
        "fake_core.Engine._advance = lambda *a: (time.sleep(0.02), fake_core.Engine._advance_fast(*a))[1]\n"
    )
    arguments = command(
        [
            "batch",
            "-m",
            str(model),
            str(tmp_path / "in.jsonl"),
            "-o",
            str(tmp_path / "out"),
            "--max-tokens",
            "2",
        ]
    )
    arguments[2] = arguments[2].replace("from ropechat.cli", slow + "from ropechat.cli")
    child = subprocess.Popen(arguments, stderr=subprocess.PIPE, env=environment())
    partial = tmp_path / "out.partial"
    while child.poll() is None and not (partial.exists() and partial.read_bytes().count(b"\n") >= 3):
        pass
    child.send_signal(number)
    _, err = child.communicate(timeout=20)
    assert child.returncode == code
    lines = partial.read_text().splitlines()
    assert 3 <= len(lines) < 500
    assert [json.loads(line)["index"] for line in lines] == [*range(len(lines))]
    assert f"holds the first {len(lines)} results".encode() in err
    assert b"Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_clock() -> None:
    assert [clock(t) for t in (0, 59.6, 61, 3599, 3600, 90061)] == [
        "0:00",
        "1:00",
        "1:01",
        "59:59",
        "1:00:00",
        "25:01:01",
    ]
