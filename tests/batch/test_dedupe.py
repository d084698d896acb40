"""Equal rows that are computed once (--dedupe), and rows that take too long (--timeout)."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builtin_config import TOO_LONG

from ropechat.batch import dedupe
from ropechat.cli import main
from ropechat.engine import scheduler
from ropechat.engine.engine import Engine
from ropechat.engine.scheduler import Completion, Job
from ropechat.errors import RequestError, RowTimeoutError
from ropechat.sampling import Sampling

PROMPTS = ("What is RoPE?", "Hello", "What is a token?")
DRAWN = ("--seed", "3", "--temperature", "0.8", "--max-tokens", "9", "--quiet")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """40 rows of three prompts; some with a seed or a temperature of their own, one that fails."""
    rows: list[dict[str, Any]] = []
    for number in range(40):
        row = {"id": f"r{number}", "prompt": PROMPTS[number % 3], "note": number}
        row |= {"seed": 5} if number % 10 == 4 else {}
        row |= {"temperature": 0} if number % 10 == 7 else {}
        row |= {"prompt": TOO_LONG} if number in (20, 30) else {}
        rows.append(row)
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(source: Path, out: Path, *words: str, code: int = 3) -> list[dict[str, Any]]:
    assert main(["batch", str(source), "-o", str(out), "--keep", "note", *DRAWN, *words]) == code
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def test_equal_rows_are_computed_once(source: Path, tmp_path: Path, capfd: Any) -> None:
    records = run(source, tmp_path / "out.jsonl", "--dedupe", "--n", "2")
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    asked = {
        (row["prompt"], row.get("seed"), row.get("temperature"), sample) for row in rows for sample in (0, 1)
    }
    facts = json.loads((tmp_path / "out.jsonl.run.json").read_text())
    assert len(records) == 80
    assert facts["copied"] == 80 - len(asked)
    answers: dict[Any, tuple[Any, ...]] = {}
    for record in records:
        row = rows[record["index"]]
        assert (record["id"], record["input"]) == (row["id"], {"note": row["note"]})
        key = (row["prompt"], row.get("seed"), row.get("temperature"), record["sample"])
        told = record["ok"], record.get("text"), record.get("seed"), record.get("usage")
        assert answers.setdefault(key, told) == told
        if not record["ok"]:
            assert record["error"]["message"].startswith(f"in.jsonl: line {record['index'] + 1}: ")
    seeds = [told[2] for key, told in answers.items() if key[0] == PROMPTS[0]]
    assert len(set(seeds)) == len(seeds)
    assert answers[PROMPTS[1], 5, None, 0][2] == 5
    capfd.readouterr()
    text, seed = records[0]["text"], str(records[0]["seed"])
    assert main(["run", *DRAWN[2:], "--seed", seed, PROMPTS[0]]) == 0
    assert capfd.readouterr().out.strip() == text.strip()


@pytest.mark.slow
def test_the_bytes_are_the_same_however_it_runs(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tmp_path / "plain.jsonl"
    run(source, plain, "--dedupe")
    for number, words in enumerate((("--parallel", "1"), ("--parallel", "64"), ("--n", "1"))):
        monkeypatch.setattr(dedupe, "MAX_WAITING", (1, 3, 5)[number])
        run(source, tmp_path / f"w{number}.jsonl", "--dedupe", *words)
        assert (tmp_path / f"w{number}.jsonl").read_bytes() == plain.read_bytes()
    for part in (1, 2, 3):
        words = ["--keep", "note", *DRAWN, "--dedupe", "--shard", f"{part}/3"]
        assert main(["batch", str(source), "-o", str(tmp_path / "parts.jsonl"), *words]) in (0, 3)
    parts = [str(tmp_path / f"parts.{part}of3.jsonl") for part in (1, 2, 3)]
    assert main(["merge", str(tmp_path / "merged.jsonl"), *parts, "--order-of", str(source)]) == 3
    assert (tmp_path / "merged.jsonl").read_bytes() == plain.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 5, 17, 39])
def test_a_stopped_run_goes_on(source: Path, tmp_path: Path, kept: int) -> None:
    plain, out = tmp_path / "plain.jsonl", tmp_path / "out.jsonl"
    run(source, plain, "--dedupe", "--resume")
    lines = (tmp_path / "plain.jsonl.journal").read_text().splitlines(keepends=True)
    journal = tmp_path / "out.jsonl.journal"
    journal.write_text("".join(lines[: 1 + kept]))
    run(source, out, "--dedupe", "--resume")
    assert out.read_bytes() == plain.read_bytes()
    out.unlink()
    assert main(["batch", str(source), "-o", str(out), "--keep", "note", *DRAWN, "--resume"]) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--dedupe", "-o", "-"), "--dedupe: requires a file (-o)"),
        (("--dedupe", "--score"), "--dedupe: not possible with --score"),
        (("--timeout", "5", "--score"), "--timeout: not possible with --score"),
        (("--timeout", "0"), "--timeout"),
    ],
)
def test_what_does_not_go_together(source: Path, capfd: Any, words: tuple[str, ...], told: str) -> None:
    assert main(["batch", str(source), *words]) == 2
    assert told in capfd.readouterr().err


@pytest.mark.parametrize("window", ["1", "16"])
def test_copies_of_failed_rows_are_errors(window: str, tmp_path: Path, capfd: Any) -> None:
    source, out, plain = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "plain.jsonl"))
    prompts = ["Hello", *[TOO_LONG] * 10]
    rows = [{"id": n, "prompt": prompt, "note": n} for n, prompt in enumerate(prompts)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(source, plain, "--dedupe")
    words = ("--dedupe", "--parallel", window, "--resume")
    run(source, out, *words, "--max-errors", "3", code=2)
    assert "error: more than 3 rows failed (--max-errors)" in capfd.readouterr().err
    assert not out.exists()
    run(source, out, *words, "--max-errors", "9")
    assert out.read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("window", ["1", "16"])
def test_copies_count_among_the_first_rows(window: str, tmp_path: Path, capfd: Any) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"id": n, "prompt": TOO_LONG, "note": n} for n in range(25)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(source, out, "--dedupe", "--parallel", window, code=2)
    assert "the first 20 rows all fail with the same error" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


# ---- --timeout


def test_a_late_row_fails_and_is_computed_again(tmp_path: Path) -> None:
    source, out, plain = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "plain.jsonl"))
    source.write_text(
        "".join(json.dumps({"id": n, "prompt": PROMPTS[n % 3], "note": n}) + "\n" for n in range(9))
    )
    run(source, plain, code=0)
    records = run(source, out, "--timeout", "0.000001", "--resume")
    assert [record["error"]["class"] for record in records] == ["RowTimeoutError"] * 9
    assert records[4]["error"]["message"] == "in.jsonl: line 5: not finished within 1e-06 s"
    again = run(source, out, "--timeout", "600", "--resume")
    assert again == records  # failed rows stay as they are
    run(source, out, "--timeout", "600", "--resume", "--retry-failed", code=0)
    assert out.read_bytes() == plain.read_bytes()


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the scheduler's clock is a second later."""
    count = itertools.count()

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return float(next(count))

    monkeypatch.setattr(scheduler, "time", Clock)


def answers(jobs: list[Job | str], seconds: float) -> Iterator[tuple[int, Completion]]:
    engine = Engine.load("builtin")
    never_ends = tuple((id, -100.0) for id in engine.stop_ids)
    settings = Sampling(temperature=0, max_tokens=8, logit_bias=never_ends)
    return engine.generate_many(iter(jobs), settings, window=4, timeout=seconds)


@pytest.mark.usefixtures("ticks")
def test_all_turns_of_a_row_are_one_time() -> None:
    alone = Job("Once upon a time")
    twice = dataclasses.replace(alone, then=lambda completion: alone)
    found = dict(answers([alone, twice], 12))
    assert found[0].error is None
    assert isinstance(found[1].error, RowTimeoutError)
    assert dict(answers([alone, twice], 100))[1].error is None


def test_a_timeout_must_be_above_zero() -> None:
    with pytest.raises(RequestError, match="timeout: must be above 0"):
        answers(["x"], 0)
