"""`ropechat inspect --lens` and `--attention` on the built-in model."""

import json
import shlex

import pytest
from click.testing import CliRunner

from ropechat.cli import main
from ropechat.cli.inspect import inspect


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["inspect", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


TEXT = "Once upon a time there was a little girl"


def test_the_lens_agrees_with_the_trace(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "--lens", "--format", "jsonl", "--top-k", "2", TEXT)
    meta, *records = [json.loads(line) for line in out.splitlines()]
    trace = [json.loads(line) for line in run(capfd, "--format", "jsonl", TEXT)[1].splitlines()][2:-1]
    assert code == 0
    assert meta["schema"] == "ropechat.lens/1"
    assert len(records) == 4 * len(meta["ids"])
    last = [(record["i"], record["logprob"], record["rank"]) for record in records if record["layer"] == 3]
    assert last[:-1] == [(token["i"], token["logprob"], token["rank"]) for token in trace]
    assert all(len(record["top"]) == len(record["top_text"]) == 2 for record in records)


def test_tables(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "--lens", "--layers", "3,0", TEXT)
    assert code == 0
    assert out.splitlines()[0].split() == ["#", "token", "0", "3"]
    code, out, _ = run(capfd, "--attention", "--layers", "1", TEXT)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["1", str(head)] for head in range(8)]


def test_attention_records_cover_the_text(capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capfd, "--attention", "--format", "jsonl", TEXT)
    meta, *records = [json.loads(line) for line in out.splitlines()]
    assert len(records) == 4 * 8
    assert all(len(record["mean"]) == len(meta["ids"]) for record in records)
    assert all(record["previous"] == pytest.approx(record["mean"][1]) for record in records)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lens", "--layers", "4", "a"], "error: layers: must be from 0 to 3 (got 4)\n"),
        (["--lens", "--layers", "x", "a"], "--layers: must be numbers such as 0,2,4"),
        (["--layers", "1", "a"], "--layers: requires --lens or --attention"),
    ],
)
def test_refusals(arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_the_examples_of_the_help_run(capfd: pytest.CaptureFixture[str]) -> None:
    text = CliRunner().invoke(inspect, ["--help"]).output
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("ropechat inspect --")]
    assert len(lines) == 3
    for line in lines:
        command = line.partition(">")[0]
        code, out, err = run(capfd, *shlex.split(command)[2:])
        assert (code, bool(out)) == (0, True), (command, err)
