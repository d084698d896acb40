"""The options of `ropechat batch`: forms of results, samples, resuming, stopping early."""

import csv
import errno
import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door, command, environment
from model_folders import byte_folder, chat_folder

from ropechat.batch import journal as journals
from ropechat.batch.seeds import row_seed, turn_seed
from ropechat.cli.interrupt import cancel_on_signal
from ropechat.engine.loading import display_name

HOT = ["--temperature", 1, "--max-tokens", 4, "--seed", 7]

COOL = ["--temperature", 0.1, "--max-tokens", 4, "--seed", 7]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return byte_folder(tmp_path / "model")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    lines = [{"id": f"r{i}", "prompt": chr(97 + i), "note": i} for i in range(12)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def records(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


# ---- Seeds


def test_a_row_draws_the_same_anywhere(door: Door, tmp_path: Path, model: Path, source: Path) -> None:
    """In a part of the file, in another order, alone with its seed, and by `run --seed`."""
    whole = {one["id"]: one for one in records(door("batch", "-m", model, source, *HOT)[1])}
    assert len({one["text"] for one in whole.values()}) > 8
    lines = source.read_text().splitlines()
    some = "\n".join([lines[9], lines[2], lines[5]]).encode()
    for one in records(door("batch", "-m", model, "-", *HOT, stdin=some)[1]):
        assert {**one, "index": 0} == {**whole[one["id"]], "index": 0}
    one = whole["r5"]
    alone = json.dumps({"prompt": "f", "seed": one["seed"]}).encode()
    assert records(door("batch", "-m", model, "-", *HOT[:4], stdin=alone)[1])[0]["text"] == one["text"]
    assert door("run", "-m", model, *HOT[:4], "--seed", one["seed"], "f")[1] == one["text"] + "\n"


def test_samples_have_seeds_of_their_own(door: Door, model: Path) -> None:
    lines = b'{"id":"a","prompt":"a"}\n{"id":"b","prompt":"a","n":2,"seed":9}\n'
    code, out, err = door("batch", "-m", model, "-", "--n", 3, *HOT, stdin=lines)
    made = records(out)
    assert code == 0
    assert [(one["id"], one["sample"]) for one in made] == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    seeds = [*(row_seed(7, "a", sample) for sample in range(3)), 9, row_seed(9, "b", 1)]
    assert [one["seed"] for one in made] == seeds
    assert "5 rows, 5 ok" in err


# ---- What is recorded


def test_logprobs_and_candidates(door: Door, model: Path) -> None:
    out = door("batch", "-m", model, "-", "--logprobs", 2, *HOT, stdin=b'{"prompt":"a"}\n')[1]
    (one,) = records(out)
    tokens = one["logprobs"]
    assert "".join(token["token"] for token in tokens) == one["text"]
    assert all(token["token"] == bytes(token["bytes"]).decode("utf-8", "replace") for token in tokens)
    for token in tokens:
        assert len(token["top"]) == 2
        assert token["top"][0][1] >= max(token["logprob"], token["top"][1][1])
        assert {id: value for id, value, _ in token["top"]}.get(token["id"], token["logprob"]) == token[
            "logprob"
        ]
    assert tokens[0]["top"][0] == [98, tokens[0]["top"][0][1], "b"]
    bare = records(door("batch", "-m", model, "-", *HOT, stdin=b'{"prompt":"a","logprobs":true}\n')[1])[0]
    assert [set(token) for token in bare["logprobs"]] == [{"id", "token", "bytes", "logprob"}] * 4
    assert "logprobs" not in records(door("batch", "-m", model, "-", *HOT, stdin=b'{"prompt":"a"}\n')[1])[0]


def test_turns_are_answered_one_after_another(door: Door, tmp_path: Path) -> None:
    chat = chat_folder(tmp_path / "chat")
    out = door("batch", "-m", chat, "-", *COOL, "--context", 200, stdin=b'{"id":"q","turns":["a","b"]}\n')[1]
    (one,) = records(out)
    first, second = one["turns"]
    assert (one["text"], one["seed"]) == (second["text"], first["seed"])
    line = json.dumps({"turns": ["a", "b"], "seed": one["seed"]}).encode()
    assert (
        records(door("batch", "-m", chat, "-", *COOL, "--context", 200, stdin=line)[1])[0]["turns"]
        == one["turns"]
    )
    assert [first["seed"], second["seed"]] == [row_seed(7, "q"), turn_seed(row_seed(7, "q"), 1)]
    asked = [
        len("|user\na|\n|assistant\n"),
        len(f"|user\na|\n|assistant\n{first['text']}|\n|user\nb|\n|assistant\n"),
    ]
    assert [turn["usage"]["prompt_tokens"] for turn in one["turns"]] == asked
    assert one["usage"]["prompt_tokens"] == sum(asked)
    alone = {
        "messages": [
            *(
                {"role": role, "content": text}
                for role, text in (("user", "a"), ("assistant", first["text"]), ("user", "b"))
            ),
        ],
        "seed": second["seed"],
    }
    again = door("batch", "-m", chat, "-", *COOL, "--context", 200, stdin=json.dumps(alone).encode())[1]
    assert records(again)[0]["text"] == second["text"]


def test_an_answer_that_has_begun_is_continued(door: Door, tmp_path: Path) -> None:
    chat = chat_folder(tmp_path / "chat")
    line: dict[str, Any] = {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "mno"}]
    }
    greedy = ["--temperature", 0, "--max-tokens", 2]

    def one(**more: Any) -> Any:
        return records(
            door("batch", "-m", chat, "-", *greedy, stdin=json.dumps({**line, **more}).encode())[1]
        )[0]

    assert one()["text"] == "pq"
    assert one()["usage"]["prompt_tokens"] == len("|user\na|\n|assistant\nmno")
    for off in ({"continue_final_message": False}, {"add_generation_prompt": True}):
        assert one(**off)["usage"]["prompt_tokens"] == len("|user\na|\n|assistant\nmno|\n|assistant\n")


def test_a_table_of_results(door: Door, tmp_path: Path, model: Path) -> None:
    (tmp_path / "in.csv").write_text('id,text,lang\n1,a,"e,n"\n2,,\n3,b,x\n')
    out = tmp_path / "out.csv"
    options = ["--prompt", "{{ text }}", "--keep", "all", "--temperature", 0, "--max-tokens", 2]
    assert door("batch", "-m", model, tmp_path / "in.csv", "-o", out, *options)[0] == 3
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [(row["id"], row["input_text"], row["lang"], row["text"]) for row in rows] == [
        ("1", "a", "e,n", "bc"),
        ("2", "", "", ""),
        ("3", "b", "x", "cd"),
    ]
    assert "--prompt: must render a text" in rows[1]["error"]
    assert door("batch", "-m", model, tmp_path / "in.csv", "--format", "parquet", *options)[0] == 2


def test_an_array_of_results(door: Door, tmp_path: Path, model: Path, source: Path) -> None:
    out = tmp_path / "out.json"
    assert door("batch", "-m", model, source, "-o", out, "--limit", 2, "--keep", "note", *HOT)[0] == 0
    made = json.loads(out.read_text())
    assert [(one["id"], one["input"]) for one in made] == [("r0", {"note": 0}), ("r1", {"note": 1})]


OPENAI = [
    {
        "custom_id": "c1",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "a"}]},
    },
    {"custom_id": "c2", "url": "/v1/completions", "body": {"prompt": "a", "logprobs": 1, "n": 2}},
    {
        "custom_id": "c3",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "x" * 99}]},
    },
    {"custom_id": "c4", "url": "/v1/embeddings", "body": {}},
]


def test_openai_results_and_errors(door: Door, tmp_path: Path, model: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in OPENAI))
    out = tmp_path / "out.jsonl"
    code, _, err = door("batch", "-m", model, tmp_path / "in.jsonl", "-o", out, "--format", "openai", *HOT)
    assert code == 3, err
    chat, text = records(out.read_text())
    assert (chat["custom_id"], chat["error"], chat["response"]["status_code"]) == ("c1", None, 200)
    body = chat["response"]["body"]
    assert (body["object"], body["model"], body["created"]) == ("chat.completion", display_name(model), 0)
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(body["choices"][0]["message"]["content"]) == 4
    assert body["usage"] == {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}
    choices = text["response"]["body"]["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert "".join(choices[1]["logprobs"]["tokens"]) == choices[1]["text"]
    assert choices[1]["logprobs"]["text_offset"] == [0, 1, 2, 3]
    full, wrong = records((tmp_path / "out.errors.jsonl").read_text())
    assert full["response"]["status_code"] == wrong["response"]["status_code"] == 400
    assert full["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert wrong["response"]["body"]["error"]["message"].startswith("in.jsonl: line 4: url: must be")
    (tmp_path / "out.jsonl").unlink()
    (tmp_path / "out.jsonl.journal").unlink()
    again = door("batch", "-m", model, tmp_path / "in.jsonl", "-o", out, "--format", "openai")
    assert (again[0], "out.errors.jsonl: exists" in again[2]) == (2, True)


# ---- The run's record


def test_a_record_of_the_run(door: Door, tmp_path: Path, model: Path, source: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert door("batch", "-m", model, source, "-o", out, *HOT)[0] == 0
    run = json.loads((tmp_path / "out.jsonl.run.json").read_text())
    assert (run["schema"], run["run_seed"], run["dtype"], run["isa"]) == (
        "ropechat.run/1",
        7,
        "f32",
        "scalar",
    )
    assert (run["ok"], run["failed"], run["prompt_tokens"], run["completion_tokens"]) == (12, 0, 12, 48)
    assert run["model"]["name"] == display_name(model)
    assert {file[0] for file in run["model"]["files"]} == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert run["sampling"]["temperature"] == 1
    assert run["cached_tokens"] == 0
    assert not (tmp_path / "out.jsonl.journal").exists()


# ---- Resuming


def stopped(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the disk be full after some records."""
    append, count = journals.Journal.append, [0]

    def limited(self: Any, record: Any) -> int:
        count[0] += 1
        if count[0] > after:
            raise journals.FileAccessError(f"{self.path}: {os.strerror(errno.ENOSPC)}")
        return append(self, record)

    monkeypatch.setattr(journals.Journal, "append", limited)


def test_a_stopped_run_is_continued(
    door: Door, tmp_path: Path, model: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, plain = tmp_path / "out.jsonl", tmp_path / "plain.jsonl"
    assert door("batch", "-m", model, source, "-o", plain, *HOT, "--n", 2)[0] == 0
    options = ["-m", model, source, "-o", out, *HOT[:4], "--n", 2, "--seed", 7]
    with monkeypatch.context() as patched:
        stopped(patched, 5)
        code, _, err = door("batch", *options)
    assert code == 74
    assert f"stopped: {out}.journal contains 5 results; continue: ropechat batch -m" in err
    assert err.splitlines()[-2].endswith("--seed 7 --resume")
    assert err.splitlines()[-1].endswith("No space left on device")
    assert not out.exists()
    code, _, err = door("batch", *options)
    assert (code, "add --resume to continue it" in err) == (2, True)
    with (tmp_path / "out.jsonl.journal").open("ab") as file:
        file.write(b'{"id": "r9", "ind')  # as a kill leaves it
    code, _, err = door("batch", *options[:-2], "--resume")  # the seed is in the journal
    assert code == 0
    assert "24 rows, 24 ok, 0 failed; 5 of an earlier run" in err
    assert out.read_bytes() == plain.read_bytes()
    assert (tmp_path / "out.jsonl.journal.torn").read_bytes() == b'{"id": "r9", "ind'


def test_a_finished_run_has_nothing_to_continue(
    door: Door, tmp_path: Path, model: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fake_core

    out = tmp_path / "out.jsonl"
    options = ["-m", model, source, "-o", out, *HOT, "--resume"]
    assert door("batch", *options)[0] == 0
    before = out.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(fake_core.Engine, "load", lambda *_, **__: pytest.fail("loads the model"))
        code, _, err = door("batch", *options)
        assert (code, out.read_bytes()) == (0, before), err
        assert ("12 of an earlier run" in err, "tok/s" in err) == (True, False)  # nothing was computed
    # Rows that are new or changed run; others stay, in the order of the input.
    lines = source.read_text().splitlines(keepends=True)
    source.write_text(
        '{"id":"new","prompt":"z"}\n' + "".join(lines[::-1]).replace('"prompt": "c"', '"prompt": "y"')
    )
    code, _, err = door("batch", *options)
    assert (code, "11 of an earlier run" in err) == (0, True), err
    made = records(out.read_text())
    assert [one["index"] for one in made] == [*range(13)]
    old = {one["id"]: one for one in records(before.decode())}
    assert "note: 1 result of out.jsonl.journal is not in out.jsonl: its row is changed or removed" in err
    same = [one["id"] for one in made if one["id"] in old and one["text"] == old[one["id"]]["text"]]
    assert same == [f"r{i}" for i in range(11, -1, -1) if i != 2]


def test_failed_rows_are_computed_again_on_request(door: Door, tmp_path: Path, model: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"id":1,"prompt":"a"}\n{"id":2,"prompt":"' + "x" * 99 + '"}\n')
    options = ["-m", model, source, "-o", out, *HOT]
    assert door("batch", *options)[0] == 3
    assert (tmp_path / "out.jsonl.journal").exists()  # for --retry-failed
    before = out.read_bytes()
    assert door("batch", *options)[0] == 2
    assert door("batch", *options, "--resume")[0] == 3
    assert out.read_bytes() == before
    code, _, err = door("batch", *options, "--resume", "--retry-failed")
    assert (code, "1 of an earlier run" in err) == (3, True)
    assert out.read_bytes() == before
    code, _, err = door("batch", *options, "--resume", "--retry-failed", "--context", 200)
    assert (code, "context: 64 there, 200 here" in err) == (2, True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--temperature", "2"], "sampling.temperature: 1.0 there, 2.0 here"),
        (["--seed", "8"], "run_seed: 7 there, 8 here"),
        (["--system", "x"], "system: null there, x here"),
        (["--n", "2"], "n: 1 there, 2 here"),
        (["--prompt", "{{ prompt }}"], "prompt_template: null there, "),
        (["--dtype", "q8_0"], "dtype: f32 there, q8_0 here"),
    ],
)
def test_other_settings_are_named(
    changed: list[str], words: str, door: Door, tmp_path: Path, model: Path, source: Path
) -> None:
    out = tmp_path / "out.jsonl"
    assert door("batch", "-m", model, source, "-o", out, *HOT, "--resume", "--limit", 3)[0] == 0
    journal = (tmp_path / "out.jsonl.journal").read_bytes()
    code, _, err = door("batch", "-m", model, source, "-o", out, *HOT, "--resume", *changed)
    assert code == 2
    assert f"made with other settings: {words}" in err
    assert err.splitlines()[-1].startswith("error: ")
    assert (tmp_path / "out.jsonl.journal").read_bytes() == journal


def test_another_model_is_named(door: Door, tmp_path: Path, model: Path, source: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert door("batch", "-m", model, source, "-o", out, *HOT, "--resume", "--limit", 3)[0] == 0
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "x": 1}))
    code, _, err = door("batch", "-m", model, source, "-o", out, *HOT, "--resume")
    assert (code, "model.files: " in err) == (2, True)


def test_a_journal_cannot_be_continued_without_its_file(
    door: Door, tmp_path: Path, model: Path, source: Path
) -> None:
    out = tmp_path / "out.jsonl"
    assert door("batch", "-m", model, source, "-o", out, *HOT)[0] == 0
    code, _, err = door("batch", "-m", model, source, "-o", out, *HOT, "--resume")
    assert code == 2
    whole = "complete (12 records, by out.jsonl.run.json), but without out.jsonl.journal, by which --resume"
    assert err.startswith(f"error: {out}: {whole} knows which rows have changed; choose")
    for record in ('{"ok": 5, "failed": 0}', "[", '{"schema": "ropechat.run/1", "ok": "x", "failed": 0}'):
        out.with_name("out.jsonl.run.json").write_text(record)
        err = door("batch", "-m", model, source, "-o", out, *HOT, "--resume")[2]
        assert f"{out}: exists, but not out.jsonl.journal, which --resume continues; choose" in err
    for wrong in (["--retry-failed"], ["--resume", "--overwrite"]):
        assert door("batch", "-m", model, source, "-o", out, *HOT, *wrong)[0] == 2
    assert door("batch", "-m", model, source, "-o", "-", "--resume")[0] == 2


def test_links_are_not_followed(door: Door, tmp_path: Path, model: Path, source: Path) -> None:
    for name in ("out.jsonl.journal", "out.jsonl.partial", "out.jsonl.run.json"):
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
        code, _, err = door("batch", "-m", model, source, "-o", tmp_path / "out.jsonl", *HOT, "--overwrite")
        assert (code, "must not be a symbolic link" in err) == (2, True)
        (tmp_path / name).unlink()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 900, 2500])
def test_a_full_disk_anywhere(size: int, door: Door, tmp_path: Path, model: Path, source: Path) -> None:
    """In the header, in the records, in the output: RLIMIT_FSIZE stands for the disk."""
    out = tmp_path / "out.jsonl"
    arguments = [str(word) for word in ("batch", "-m", model, source, "-o", out, *HOT, "--resume")]
    done = subprocess.run(
        command(arguments),
        capture_output=True,
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )
    assert done.returncode == 74, done.stderr
    assert b"Traceback" not in done.stderr
    assert not out.exists()
    assert not (tmp_path / "out.jsonl.partial").exists()
    code, _, err = door(*arguments)
    assert code == 0, err
    assert [one["id"] for one in records(out.read_text())] == [f"r{i}" for i in range(12)]


@pytest.mark.slow
def test_a_killed_run_is_continued(door: Door, tmp_path: Path, model: Path, source: Path) -> None:
    """kill -9, as soon as there are some records."""
    out, plain = tmp_path / "out.jsonl", tmp_path / "plain.jsonl"
    slow = "import time, fake_core; f = fake_core.Engine._advance\n"
    slow += "fake_core.Engine._advance = lambda *a: (time.sleep(0.01), f(*a))[1]\n"

    def words(to: Path) -> list[str]:
        return [str(w) for w in ("batch", "-m", model, source, "-o", to, *HOT, "--resume", "--parallel", 2)]

    assert door(*words(plain))[0] == 0
    slowed = command(words(out))
    slowed[2] = slowed[2].replace("from ropechat.cli", slow + "from ropechat.cli")
    child, journal = (
        subprocess.Popen(slowed, stderr=subprocess.PIPE, env=environment()),
        Path(f"{out}.journal"),
    )
    while child.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") >= 4):
        pass
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    kept = journal.read_bytes().count(b"\n")
    assert kept < 12
    code, _, err = door(*words(out))
    assert code == 0, err
    assert f"{kept - 1} of an earlier run" in err
    assert out.read_bytes() == plain.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("options", [[*map(str, COOL)], ["--score"]])
def test_a_pipe_that_stays_open_gets_its_answers(model: Path, options: list[str]) -> None:
    """A program that writes one row and waits for its answer; --limit ends without a further row."""
    asked = ["batch", "-m", str(model), "-", *options, "--quiet", "--limit", "3"]
    given = {"choices": ["a", "b"]} if "--score" in options else {}
    child = subprocess.Popen(
        command(asked), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), bufsize=0
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        for name in ("a", "b", "c"):
            row = json.dumps({"id": name, "prompt": name, **given}).encode() + b"\n"
            child.stdin.write(row[:9])  # half a row does not hold up anything either
            child.stdin.write(row[9:])
            assert select.select([child.stdout], [], [], 60)[0], "no answer"
            assert json.loads(child.stdout.readline())["id"] == name
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.stdin.close()
        child.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_what_is_computed(number: signal.Signals) -> None:
    """From another thread: the main one may be in a long pass, where Python runs no handlers."""
    cancelled: list[str] = []
    done = threading.Event()

    class Cancelled:
        def cancel(self) -> None:
            cancelled.append(threading.current_thread().name)
            done.set()

    before = {one: signal.signal(one, lambda *_: None) for one in (number, signal.SIGUSR1)}
    try:
        with cancel_on_signal(Cancelled()):  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGUSR1)  # ends nothing
            os.kill(os.getpid(), number)
            assert done.wait(60)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert cancelled == ["ropechat-signals"]
    assert signal.set_wakeup_fd(-1) == -1


# ---- Stopping early


def test_rows_that_all_fail_alike(door: Door, tmp_path: Path, model: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"id": i, "prompt": "x" * (99 + i)}) + "\n" for i in range(30)))
    code, _, err = door("batch", "-m", model, source, "-o", out, *HOT)
    assert code == 2
    assert "error: the first 20 rows all fail with the same error: " in err
    assert {path.name for path in tmp_path.iterdir()} == {"model", "in.jsonl"}


def test_too_many_errors(door: Door, tmp_path: Path, model: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt":"a"}\n{\n{\n{\n{"prompt":"b"}\n')
    code, _, err = door("batch", "-m", model, source, "-o", out, *HOT, "--max-errors", 2, "--parallel", 1)
    assert code == 2
    assert "error: more than 2 rows failed (--max-errors)" in err
    assert "continue: " in err
    assert not out.exists()
    code, _, err = door("batch", "-m", model, source, "-o", out, *HOT, "--resume", "--max-errors", 3)
    assert (code, len(records(out.read_text()))) == (3, 5)


def test_a_dry_run(
    door: Door, tmp_path: Path, model: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fake_core

    monkeypatch.setattr(fake_core.Engine, "load", lambda *_, **__: pytest.fail("loads the model"))
    monkeypatch.chdir(tmp_path)
    code, out, err = door(
        "batch", source, "-o", "out.jsonl", "--dry-run", "--prompt", "Say {{ prompt }}", *HOT
    )
    (first,) = records(out)
    assert (code, first["prompt"], first["max_tokens"]) == (0, [{"role": "user", "content": "Say a"}], 4)
    assert err.endswith(f"{source}: 12 rows, 12 ok, 0 failed; nothing was computed\n")
    assert door("batch", source, "--dry-run", "--prompt", "{{ note.x.y }}")[0] == 3
    monkeypatch.setattr("ropechat.engine.preview.own_sampling", lambda *_, **__: {"temperature": 0.25})
    code, out, err = door("batch", source, "--dry-run", "--n", 2, "--max-tokens", 5, "--raw", "-m", model)
    (first,) = records(out)
    assert (code, first["temperature"]) == (0, 0.25)
    assert err.startswith("prompts: 12 tokens, 0 shared; the longest has 1; up to 120 tokens of 24 answers\n")
    code, out, err = door("batch", source, "-m", tmp_path / "none", "--dry-run")
    assert (code, records(out)[0]["temperature"]) == (0, 0.7)
    assert f"note: no tokens and no settings of the model: {tmp_path / 'none'}: " in err
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", model.name}


# ---- stderr and usage


def test_progress_and_quiet(door: Door, tmp_path: Path, model: Path, source: Path) -> None:
    code, out, err = door("batch", "-m", model, source, *HOT, "--quiet")
    assert (code, err, len(records(out))) == (0, "", 12)
    err = door("batch", "-m", model, source, *HOT, "--progress", "json")[2]
    last = next(json.loads(line) for line in reversed(err.splitlines()) if line.startswith("{"))
    assert (last["done"], last["total"], last["tokens"], last["failed"]) == (12, 12, 48, 0)


def test_usage_errors(door: Door, tmp_path: Path, model: Path, source: Path) -> None:
    for options, words in (
        (["--prompt", "a", "--prompt-file", "b"], "--prompt-file: not possible with --prompt"),
        (["--prompt", "{{"], "--prompt: "),
        (["--format", "json"], "--format json: not possible on stdout"),
        (["--format", "csv", "--keep", "all"], "--keep all: csv needs the names of its columns"),
        (["--format", "csv", "--logprobs", 0], "--logprobs: not possible as csv; use jsonl, json or openai"),
        (["-o", tmp_path / "out.tsv", "--logprobs", 2], "--logprobs: not possible as tsv"),
        (["--any-isa"], "--any-isa: requires --ray"),
    ):
        code, out, err = door("batch", "-m", model, source, *options)
        assert (code, out, words in err) == (2, "", True), err
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("out")]


def test_a_kept_column_must_exist(door: Door, tmp_path: Path, model: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text("id,text,label\n1,a,x\n")
    code, out, err = door("batch", "-m", model, table, *COOL, "--keep", "label,lable")
    assert (code, out) == (2, "")
    assert "--keep: lable: no such column (got id, text, label)" in err
    code, out, _ = door("batch", "-m", model, table, *COOL, "--keep", "label")
    assert (code, records(out)[0]["input"]) == (0, {"label": "x"})


def test_a_terminal_needs_a_dash(
    door: Door, model: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, err = door("batch", "-m", model, source)
    assert (code, out, "-o: missing; give a file, or - for the terminal" in err) == (2, "", True)


def test_help_is_in_groups(door: Door) -> None:
    code, out, _ = door("batch", "--help")
    titles = ["Input:", "Output:", "Run:", "Prompt:", "Sampling:", "Model:", "Help:", "Examples:"]
    assert code == 0
    assert [line for line in out.splitlines() if line in titles] == titles


def test_options_that_would_be_ignored_are_refused(door: Door, model: Path, source: Path) -> None:
    for words, flag in (
        (("batch", source, "--score", "--temperature", "1"), "--temperature: not possible with --score"),
        (("batch", source, "--score", "--seed", "1"), "--seed: not possible with --score"),
        (("batch", source, "--score", "--json-flexible"), "--json-flexible: not possible with --score"),
        (("run", "a", "--candidates", "2"), "--candidates: requires --json or --trace"),
        (("run", "a", "--json-flexible"), "--json-flexible: requires --json-schema"),
        (("run", "a", "--regex", "a", "--json-flexible"), "--json-flexible: requires --json-schema"),
    ):
        code, out, err = door(*words, "-m", model)
        assert (code, out) == (2, ""), err
        assert flag in err


def test_a_timeout_that_is_not_a_number_is_refused(door: Door, source: Path) -> None:
    code, out, err = door("batch", source, "-m", "nobody/nothing", "--timeout", "nan")
    assert (code, out) == (2, "")
    assert "'--timeout': must be a number (got nan)" in err


def test_a_field_to_keep_that_no_row_has_is_noted_once(door: Door, model: Path, source: Path) -> None:
    note = "note: --keep: 'nope': no row has this field"
    code, out, err = door("batch", source, "-m", model, *HOT, "--keep", "note,nope")
    assert (code, err.count("--keep"), err.count(note)) == (0, 1, 1)
    assert records(out)[3]["input"] == {"note": 3}
    assert note in door("batch", source, "--dry-run", "--keep", "note,nope")[2]
    assert note not in door("batch", source, "--dry-run", "--keep", "note,nope", "--quiet")[2]


def test_a_resumed_run_with_a_limit_says_what_is_left(
    door: Door, model: Path, source: Path, tmp_path: Path
) -> None:
    asked = ("batch", source, "-m", model, *HOT, "--resume", "-o", tmp_path / "out.jsonl")
    err = door(*asked, "--limit", 5)[2]
    assert "note: 7 rows above --limit; the same command without it computes the rest" in err
    err = door(*asked, "--limit", 4)[2]
    assert "note: 1 result of out.jsonl.journal is not in out.jsonl" in err
    assert "its row is changed, removed or above --limit" in err
    err = door(*asked)[2]
    assert "--limit" not in err
    assert "12 rows, 12 ok, 0 failed; 5 of an earlier run" in err


def test_one_row_is_one_row(door: Door, model: Path) -> None:
    cold = ("--temperature", 0, "--max-tokens", 1)
    err = door("batch", "-", "-m", model, *cold, stdin=b'{"prompt": "a"}\n')[2]
    assert "stdout: 1 row, 1 ok, 0 failed; " in err
    assert " + 1 token, " in err
    assert "reply 1 token, " in door("run", "a", "-m", model, *cold)[2]


def test_files_and_numbers_that_are_refused(door: Door, model: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "table").write_text("id,text\n1,a\n")
    for words, said in (
        ((source, "--prompt-file", tmp_path / "none"), f"error: {tmp_path}/none: file not found"),
        ((source, "--messages-file", tmp_path / "none"), f"error: {tmp_path}/none: file not found"),
        ((tmp_path / "table",), "line 1: must be a JSON object, one per line (got 'id,text')"),
        ((source, "--limit", "0"), "'--limit': must be at least 1 (got 0)"),
        ((source, "--context", str(10**30)), "'--context': must be at most 4611686018427387904"),
    ):
        code, out, err = door("batch", *words, "-m", model)
        assert (code, out) == (2, ""), err
        assert said in err


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("Say {prompt}", "--prompt: uses no field, so every row has the same prompt; write {{ prompt }}"),
        ("Say it", "--prompt: uses no field, so every row has the same prompt; write {{ field }}"),
        ("{% for x in [1] %}{{ x }}{% endfor %}", "--prompt: uses no field"),
        ("{{ note }}: {prompt}", "--prompt: {prompt} stays text; write {{ prompt }} for that field"),
        ("{{ prompt }} as {answer}", None),
        ("{{ index }}", None),
        ("{{ row | tojson }}", None),
    ],
)
def test_a_template_that_uses_no_field_has_a_warning(
    door: Door, model: Path, source: Path, template: str, words: str | None
) -> None:
    for options in (["--dry-run"], ["-m", model, *HOT]):
        code, _, err = door("batch", source, "--limit", 2, "--prompt", template, *options)
        warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
        assert (code, len(warnings)) == (0, words is not None), err
        assert (words or "") in "".join(warnings)
