"""Batches: every line is answered or says why not, in order, and nothing is lost or overwritten."""

import contextlib
import errno
import fcntl
import json
import os
import pty
import random
import signal
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door, command, environment
from model_folders import chat_folder

from ropechat.batch.hash_index import HashIndex, hash64
from ropechat.batch.journal import SCHEMA, Journal, differences, sealed
from ropechat.batch.seeds import row_seed, turn_seed
from ropechat.errors import BatchInputError, FileAccessError
from ropechat.util.text import format_duration

GREEDY = ["--temperature", 0, "--max-tokens", 3]


def slowed(arguments: list[str]) -> list[str]:
    """`command`, with a core that takes 20 ms for a sequence's step."""
    slow = "import time, fake_core; fake_core.Engine._advance_fast = fake_core.Engine._advance\n"
    slow += (
        "fake_core.Engine._advance = lambda *a: (time.sleep(0.02), fake_core.Engine._advance_fast(*a))[1]\n"
    )
    made = command(arguments)
    made[2] = made[2].replace("from ropechat.cli", slow + "from ropechat.cli")
    return made


# ---- The journal


HEADER = {"schema": SCHEMA, "run_seed": 1}


def entry(id: object, **more: object) -> dict[str, object]:
    return {"id": id, "index": 0, "sample": 0, "ok": True, "req": "0" * 16, **more}


def test_a_journal_is_locked_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "out.journal"
    with Journal.create(path, HEADER) as journal:
        offset = journal.append(entry("a", text="é\u2028\n"))
        with pytest.raises(BatchInputError, match="another run"):
            Journal.resume(path)
    written = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [record.pop("crc32").isalnum() for record in written] == [True, True]
    assert written == [HEADER, entry("a", text="é\u2028\n")]
    with Journal.resume(path) as journal:
        assert (journal.lines, journal.header) == (1, HEADER)
        assert journal.find("a", 0, "0" * 16) == offset
        assert [record["text"] for record in journal.records(iter([offset]))] == ["é\u2028\n"]
        assert journal.find("a", 1, "0" * 16) is journal.find("b", 0, "0" * 16) is None
        assert journal.find("a", 0, "1" * 16) is None  # another request


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with Journal.create(tmp_path / "j", HEADER) as journal:
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
        journal.append(entry("a", text="abcdefg"))
        monkeypatch.undo()
    assert json.loads((tmp_path / "j").read_text().splitlines()[1])["text"] == "abcdefg"


def test_a_full_disk_keeps_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, room = os.write, [10]

    def full(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    with Journal.create(tmp_path / "j", HEADER) as journal:
        journal.append(entry("a"))
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(FileAccessError, match="j: No space left on device") as caught:
            journal.append(entry("b"))
        assert journal.lines == 1
    assert caught.value.exit_code == 74
    assert (tmp_path / "j").read_bytes() == sealed(HEADER) + sealed(entry("a"))


@pytest.mark.parametrize("written", range(0, 102, 3))
def test_an_interrupted_line_is_whole_or_gone(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives right after the system call, before Python has its result."""
    write = os.write
    length = len(sealed(entry("b")))
    written = min(written, length)

    def interrupted(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:written])
        raise KeyboardInterrupt

    with Journal.create(tmp_path / "j", HEADER) as journal:
        journal.append(entry("a"))
        monkeypatch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.append(entry("b"))
        monkeypatch.undo()
        journal.settle()
        assert journal.lines == (2 if written == length else 1)
    lines = [sealed(entry(id)) for id in "ab"[: journal.lines]]
    assert (tmp_path / "j").read_bytes() == sealed(HEADER) + b"".join(lines)


def test_a_torn_line_is_cut_by_bytes(tmp_path: Path) -> None:
    """At every byte, in the middle of a character too, and NULs of a power loss."""
    head, last = sealed(HEADER) + sealed(entry("a")), sealed(entry("é"))
    path = tmp_path / "j"
    for cut in range(len(last)):
        path.write_bytes(head + last[:cut])
        with Journal.resume(path) as journal:
            whole = cut == len(last) - 1  # it lacks its newline only
            assert journal.lines == 1 + whole
        assert path.read_bytes() == (head + last if whole else head)
        if 0 < cut < len(last) - 1:
            assert (tmp_path / "j.torn").read_bytes() == last[:cut]
    path.write_bytes(head + b"\0" * 200_000)
    with Journal.resume(path) as journal:
        journal.append(entry("b"))
    assert path.read_bytes() == head + sealed(entry("b"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{{{\n", "line 2: damaged"),
        (b"\0\0\0\n", "line 2: damaged"),
        (b'{"id": 1}\n', "line 2: damaged"),
    ],
)
def test_damage_before_the_last_line_is_refused(data: bytes, words: str, tmp_path: Path) -> None:
    whole = sealed(HEADER) + data + sealed(entry("a"))
    (tmp_path / "j").write_bytes(whole)
    with pytest.raises(BatchInputError, match=words):
        Journal.resume(tmp_path / "j")
    (tmp_path / "k").write_bytes(sealed(entry("a")))
    with pytest.raises(BatchInputError, match="line 1: must be the header of a journal"):
        Journal.resume(tmp_path / "k")
    assert (tmp_path / "j").read_bytes() == whole  # nothing was changed


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    """In any place: in the header, in a result, in a checksum, in a newline."""
    path, rng = tmp_path / "j", random.Random(4)
    whole = sealed(HEADER) + sealed(entry("a", text="good")) + sealed(entry("b", text="bad"))
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(BatchInputError), Journal.resume(path) as journal:
            assert (journal.header, journal.lines) == (HEADER, 1)  # the last line is taken for a torn one


def test_damage_during_the_run_is_found(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "j", HEADER) as journal:
        offset = journal.append(entry("a", text="good"))
        (tmp_path / "j").write_bytes((tmp_path / "j").read_bytes().replace(b"good", b"god!"))
        with pytest.raises(FileAccessError, match=r"j: byte \d+: damaged while the batch ran"):
            journal.record(offset)


def test_a_journal_of_an_earlier_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "j").write_text('{"schema":"ropechat.batch/1","run_seed":1}\n')
    with pytest.raises(BatchInputError, match="an earlier version of ropechat wrote this one; replace"):
        Journal.resume(tmp_path / "j")


@pytest.mark.parametrize("seed", [None, "x", -1, 1 << 64, True])
def test_a_journal_without_a_seed_is_refused(seed: object, door: Door, tmp_path: Path, model: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt":"a"}\n')
    (tmp_path / "out.journal").write_bytes(sealed({"schema": SCHEMA, "run_seed": seed}))
    code, _, err = door("batch", "-m", model, tmp_path / "in.jsonl", "-o", tmp_path / "out", "--resume")
    assert (code, "out.journal: line 1: run_seed: must be a number of 64 bits" in err) == (2, True), err


def test_a_long_torn_line_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, torn, pread, looked_at = sealed(HEADER) + sealed(entry("a")), 3_000_000, os.pread, list[int]()
    (tmp_path / "j").write_bytes(head + b"x" * torn)
    find = bytes.rfind

    class Block(bytes):
        def rfind(self, *given: Any) -> int:
            looked_at.append(len(self))
            return find(self, *given)

    monkeypatch.setattr(os, "pread", lambda *given: Block(pread(*given)))
    with Journal.resume(tmp_path / "j") as journal:
        assert journal.lines == 1
    assert sum(looked_at) <= torn + (1 << 16)
    assert (tmp_path / "j").read_bytes() == head
    assert (tmp_path / "j.torn").stat().st_size == torn


def test_failed_records_are_forgotten_on_request(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "j", HEADER) as journal:
        journal.append(entry("a"))
        journal.append(entry("b", ok=False, error={"class": "RequestError", "message": "x"}))
    for retry, lines in ((False, 2), (True, 1)):
        with Journal.resume(tmp_path / "j", retry_failed=retry) as journal:
            assert journal.lines == lines
            assert (journal.find("b", 0, "0" * 16) is None) is retry


def test_differences_name_the_fields() -> None:
    before = {"dtype": "q8_0", "sampling": {"top_k": 1, "top_p": 0.5}, "old": 1}
    now = {"dtype": "f32", "sampling": {"top_k": 1, "top_p": 0.25}, "new": None}
    assert differences(before, now) == ["dtype: q8_0 there, f32 here", "sampling.top_p: 0.5 there, 0.25 here"]
    assert differences(before, before) == []


def test_a_hash_index_is_a_map() -> None:
    draw = random.Random(5)
    for wide in (False, True):
        index, twin = HashIndex(wide=wide), dict[int, int]()
        for number in range(5000):
            key = hash64(str(draw.randrange(3000)))
            assert index.get(key) == twin.get(key)
            index.put(key, number << 20 if wide else number)
            twin[key] = number << 20 if wide else number
        assert len(index) == len(twin)
        assert all(index.get(key) == value for key, value in twin.items())


def test_row_seeds() -> None:
    seeds = {row_seed(7, id, sample) for id in ("a", "b", 1, 1.5) for sample in range(4)}
    assert len(seeds) == 16
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert turn_seed(7, 0) == 7 != turn_seed(7, 1) != turn_seed(7, 2)
    assert row_seed(7, "a") != row_seed(8, "a")
    assert row_seed(7, "1") == row_seed(7, 1)  # CSV has texts only
    assert row_seed(42, "q1", 2) == 2337335416911908  # as written in results: it must never change


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
            "seed": row_seed(4, "p"),
        },
        {
            "id": 2,
            "index": 1,
            "ok": True,
            "text": "nop",
            "finish_reason": "length",
            "usage": {"prompt_tokens": 2, "completion_tokens": 3},
            "seed": row_seed(4, 2),
        },
    ]
    assert err.count("note: this model has no chat template") == 1
    assert err.count("dtype: f32, as stored (0 bytes)\n") == 1
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
    assert records[2]["error"]["message"].startswith("in.jsonl: line 3: 99 tokens")
    assert [records[0]["text"], records[3]["text"]] == ["bcd", "cde"]
    assert err.count("error: ") == 2


def test_many_errors_are_said_a_few_times(door: Door, tmp_path: Path, model: Path) -> None:
    code, records, err = batch(door, tmp_path, model, '{"prompt":"a"}\n' + "{\n" * 50)
    assert (code, len(records)) == (3, 51)
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
        options = ["--temperature", 2, "--seed", 9, "--parallel", window, "--overwrite"]
        assert batch(door, tmp_path, model, data, *options)[0] == 0
        runs.append((tmp_path / "out.jsonl").read_bytes())
    assert runs[0] == runs[1] == runs[2]
    assert len({json.loads(line)["text"] for line in runs[0].splitlines()}) > 10


def test_settings_of_a_line_go_before_the_options(door: Door, tmp_path: Path, model: Path) -> None:
    lines = [
        {"id": 1.5, "prompt": "a"},
        {"prompt": "a", "max_tokens": 1},
        {"prompt": "a", "stop": "d"},
        {"prompt": "a", "temperature": 2},
        {"prompt": "a", "top_k": -1},
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines)
    code, records, err = batch(door, tmp_path, model, data, "--seed", 4)
    assert code == 3
    assert [(r["id"], r["text"]) for r in records[:3]] == [(1.5, "bcd"), ("line-2", "b"), ("line-3", "bc")]
    assert [record["finish_reason"] for record in records[:3]] == ["length", "length", "stop"]
    assert records[4]["error"]["message"].startswith(
        "in.jsonl: line 5: top_k: must be an integer from 0 to 2147483647 (got -1)"
    )
    hot = batch(door, tmp_path, model, data, "--seed", 4, "--temperature", 2, "--overwrite")[1]
    assert records[3] == hot[3]  # a line's own temperature changes neither its seed nor its stream
    assert records[3]["text"] != hot[0]["text"]
    assert "ignored fields:" not in err


def test_a_seed_of_a_line_holds_wherever_it_stands(door: Door, tmp_path: Path, model: Path) -> None:
    line, other = '{"prompt":"a","seed":7,"temperature":3}\n', '{"prompt":"a","temperature":3}\n'
    records = batch(door, tmp_path, model, other + line + other + line, "--seed", 7)[1]
    alone = batch(door, tmp_path, model, line, "--seed", 8, "--overwrite")[1]
    assert records[1]["text"] == records[3]["text"] == alone[0]["text"]
    assert len({records[place]["text"] for place in (0, 1, 2)}) == 3
    seeds = [row_seed(7, "line-1"), 7, row_seed(7, "line-3"), 7, 7]
    assert [record["seed"] for record in [*records, *alone]] == seeds


def test_fields_that_are_ignored_are_noted_once(door: Door, tmp_path: Path, model: Path) -> None:
    extra = {f"field{i}\x1b[2J": i for i in range(9)}
    data = '{"prompt":"a"}\n' + (json.dumps({"prompt": "a", **extra}) + "\n") * 3
    data += json.dumps({"prompt": "a", "later": 1, **extra}) + "\n"
    code, records, err = batch(door, tmp_path, model, data)
    assert (code, [record["text"] for record in records]) == (0, ["bcd"] * 5)
    assert err.count("ignored fields:") == 2
    assert "note: in.jsonl: line 5 has ignored fields: later\n" in err
    assert "note: in.jsonl: line 2 has ignored fields: field0" in err
    assert "field4" in err
    assert "field5" not in err
    assert "and 4 more" in err
    assert "\x1b" not in err


def test_templates_system_and_raw(door: Door, tmp_path: Path) -> None:
    model = chat_folder(tmp_path / "chat")
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
    data, out, journal = '{"prompt":"a"}\n', tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    journal.write_text("old\n")
    code, _, err = batch(door, tmp_path, model, data)
    assert code == 2
    assert "add --resume to continue it, or --overwrite to discard it" in err
    assert journal.read_text() == "old\n"
    assert batch(door, tmp_path, model, data, "--overwrite")[0] == 0
    before = out.read_bytes()
    code, _, err = batch(door, tmp_path, model, data)
    assert (code, out.read_bytes()) == (2, before)
    assert "exists; choose another output or add --overwrite" in err
    source = tmp_path / "in.jsonl"
    assert door("batch", "-m", model, source, "-o", source, "--overwrite")[0] == 2
    assert source.read_text() == data
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert door("batch", "-m", model, source, "-o", tmp_path / "link", "--overwrite")[0] == 2
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_keeps_what_is_done(number: signal.Signals, code: int, tmp_path: Path, model: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt":"a"}\n' * 500)
    arguments = ["batch", "-m", str(model), str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out")]
    child = subprocess.Popen(
        slowed([*arguments, "--max-tokens", "2"]), stderr=subprocess.PIPE, env=environment()
    )
    journal = tmp_path / "out.journal"
    while child.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") >= 4):
        pass
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == code
    lines = journal.read_text().splitlines()[1:]
    assert 3 <= len(lines) < 500
    assert len({json.loads(line)["index"] for line in lines}) == len(lines)
    assert f"contains {len(lines)} results; continue: ropechat batch -m".encode() in err
    assert err.endswith(b" --max-tokens 2 --resume\n")
    assert b"Traceback" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_lost_terminal_keeps_what_is_done(tmp_path: Path, model: Path) -> None:
    """As when ssh ends: SIGHUP, and what is written to stderr from then on fails."""
    (tmp_path / "in.jsonl").write_text('{"prompt":"a"}\n' * 500)
    main, sub = pty.openpty()
    arguments = ["batch", "-m", str(model), str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out")]
    child = subprocess.Popen(
        slowed([*arguments, "--max-tokens", "2"]),
        stdin=sub,
        stdout=sub,
        stderr=sub,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env=environment(),
    )
    os.close(sub)
    journal = tmp_path / "out.journal"
    while child.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") >= 4):
        pass
    os.close(main)
    assert child.wait(60) == 129
    lines = journal.read_text().splitlines()[1:]
    assert 3 <= len({json.loads(line)["index"] for line in lines}) == len(lines)


@pytest.mark.slow
def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path, model: Path) -> None:
    """As by `nohup`."""
    (tmp_path / "in.jsonl").write_text('{"prompt":"a"}\n' * 50)
    arguments = ["batch", "-m", str(model), str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out")]
    child = subprocess.Popen(
        slowed([*arguments, "--max-tokens", "2"]),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        stderr=subprocess.PIPE,
        env=environment(),
    )
    while child.poll() is None and not (tmp_path / "out.journal").exists():
        pass
    child.send_signal(signal.SIGHUP)
    err = child.communicate(timeout=60)[1]
    assert child.returncode == 0, err
    assert (tmp_path / "out").read_text().count("\n") == 50


# ---- Pipes


def test_from_stdin_to_stdout(
    door: Door, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = b'{"id":1,"prompt":"a"}\nnonsense\n\n{"id":3,"prompt":"b"}\n'
    code, out, err = door("batch", "-m", model, "-", "-o", "-", *GREEDY, "--seed", 1, stdin=lines)
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 3
    assert [(record["id"], record.get("text")) for record in records] == [
        (1, "bcd"),
        ("line-2", None),
        (3, "cde"),
    ]
    assert records[1]["error"]["message"].startswith("stdin: line 2: ")
    assert "stdout: 3 rows, 2 ok, 1 failed; 2 + 6 tokens" in err
    assert {path.name for path in tmp_path.iterdir()} == {"model"}  # no file is called -
    (tmp_path / "in.jsonl").write_bytes(lines)
    again = door("batch", "-m", model, "in.jsonl", "-o", "-", *GREEDY, "--seed", 1)[1]
    assert again == out.replace("stdin:", "in.jsonl:")
    (tmp_path / "-").write_bytes(lines[:22])
    code, out, _ = door("batch", "-m", model, "./-", "-o", "./-.out", *GREEDY)
    assert (code, out) == (0, "")
    assert json.loads((tmp_path / "-.out").read_text())["text"] == "bcd"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["/dev/stdin", "fifo"])
def test_pipes_by_name(name: str, tmp_path: Path, model: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    child = subprocess.Popen(
        command(["batch", "-m", str(model), name, "-o", "-", "--temperature", "0", "--max-tokens", "3"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    )
    assert child.stdin is not None
    if name == "fifo":
        (tmp_path / name).write_bytes(b'{"prompt":"a"}\n')
        out, err = child.communicate(timeout=60)
    else:
        out, err = child.communicate(b'{"prompt":"a"}\n', timeout=60)
    assert child.returncode == 0, err
    assert json.loads(out)["text"] == "bcd"


def test_a_program_may_wait_for_each_answer(tmp_path: Path, model: Path) -> None:
    """Each result is flushed before the next line is read; an error record, too."""
    child = subprocess.Popen(
        command(["batch", "-m", str(model), "-", "-o", "-", "--parallel", "1", "--max-tokens", "1"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    assert child.stdin is not None
    assert child.stdout is not None
    for index, line in enumerate((b'{"prompt":"a"}\n', b"nonsense\n", b'{"prompt":"b"}\n')):
        child.stdin.write(line)
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["index"] == index
    assert child.communicate(timeout=60)[0] == b""
    assert child.returncode == 3


@pytest.mark.slow
def test_a_reader_that_has_seen_enough(tmp_path: Path, model: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt":"a"}\n' * 500)
    arguments = ["batch", "-m", str(model), str(tmp_path / "in.jsonl"), "-o", "-", "--max-tokens", "1"]
    child = subprocess.Popen(
        slowed(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert child.stdout is not None
    assert json.loads(child.stdout.readline())["index"] == 0
    child.stdout.close()
    err = child.communicate(timeout=60)[1]
    assert child.returncode == 0
    assert b"rror" not in err
    assert b"stopped" not in err


def test_a_full_disk_behind_stdout_is_said(tmp_path: Path, model: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt":"a"}\n')
    arguments = ["batch", "-m", str(model), str(tmp_path / "in.jsonl"), "-o", "-", "--max-tokens", "1"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command(arguments), stdout=full, stderr=subprocess.PIPE, env=environment())
    assert done.returncode == 74
    assert done.stderr.endswith(
        b"stopped: stdout contains the first 0 results\nerror: stdout: No space left on device\n"
    )


# ---- Before the model is loaded


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch, door: Door) -> None:
    """Whoever loads a model fails."""
    import fake_core

    monkeypatch.setattr(fake_core.Engine, "load", lambda *_, **__: pytest.fail("loads the model"))


@pytest.mark.usefixtures("unloaded")
def test_an_output_that_cannot_be_is_refused_first(
    door: Door, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt":"a"}\n')
    code, _, err = door("batch", "-m", model, source, "-o", tmp_path / "none" / "x.jsonl")
    assert (code, err.count("\n")) == (74, 1)
    assert f"folder {tmp_path / 'none'} not found; create it" in err
    assert door("batch", "-m", model, source, "-o", source / "x.jsonl")[0] == 74
    monkeypatch.setattr(os, "access", lambda _, mode: mode == os.R_OK)  # root may write anywhere
    code, _, err = door("batch", "-m", model, source, "-o", tmp_path / "x.jsonl")
    assert code == 74
    assert "is not writable" in err


@pytest.mark.usefixtures("unloaded")
def test_nothing_to_do_loads_no_model(door: Door, tmp_path: Path, model: Path) -> None:
    code, records, err = batch(door, tmp_path, model, "\n\n")
    assert (code, records, (tmp_path / "out.jsonl").read_bytes()) == (0, [], b"")
    assert "0 rows, 0 ok, 0 failed" in err
    code, out, err = door("batch", "-m", model, "-", "-o", "-")
    assert (code, out) == (0, "")
    assert err.startswith("stdout: 0 rows")


def test_the_input_is_not_overwritten_through_stdin(tmp_path: Path, model: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt":"a"}\n')
    with source.open("rb") as stdin:
        done = subprocess.run(
            command(["batch", "-m", str(model), "-", "-o", str(source), "--overwrite"]),
            stdin=stdin,
            capture_output=True,
            env=environment(),
        )
    assert done.returncode == 2
    assert b"is the input; choose another output" in done.stderr
    assert source.read_text() == '{"prompt":"a"}\n'


def test_clock() -> None:
    assert [format_duration(t) for t in (0, 59.6, 61, 3599, 3600, 90061)] == [
        "0 s",
        "1 min",
        "1 min 1 s",
        "59 min 59 s",
        "1 h",
        "25 h 1 min",
    ]
