"""`ropechat inspect --lens` and `--attention` on the built-in model."""

import json
import shlex
from pathlib import Path

import pytest
from builtin_config import HEADS, LAYERS, TRAINED_LENGTH
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
    trace = [json.loads(line) for line in run(capfd, "--format", "jsonl", TEXT)[1].splitlines()]
    trace = [record for record in trace if record.get("i", 0) > 0]
    assert code == 0
    assert meta["schema"] == "ropechat.lens/1"
    assert len(records) == LAYERS * len(meta["ids"])
    last = [record for record in records if record["layer"] == LAYERS - 1]
    assert [(record["i"], record["logprob"], record["rank"]) for record in last[:-1]] == [
        (token["i"], token["logprob"], token["rank"]) for token in trace
    ]
    assert all(len(record["top"]) == len(record["top_text"]) == 2 for record in records)


def test_tables(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "--lens", "--layers", f"{LAYERS - 1},0", TEXT)
    assert code == 0
    assert out.splitlines()[0].split() == ["#", "token", "0", str(LAYERS - 1)]
    code, out, _ = run(capfd, "--attention", "--layers", "1", TEXT)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["1", str(head)] for head in range(HEADS)]


def test_attention_records_cover_the_text(capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capfd, "--attention", "--format", "jsonl", TEXT)
    meta, *records = [json.loads(line) for line in out.splitlines()]
    assert len(records) == LAYERS * HEADS
    assert all(len(record["mean"]) == len(meta["ids"]) for record in records)
    assert all(record["previous"] == pytest.approx(record["mean"][1]) for record in records)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--lens", "--layers", str(LAYERS), "a"],
            f"error: layers: must be from 0 to {LAYERS - 1} (got {LAYERS})\n",
        ),
        (["--lens", "--layers", "x", "a"], "--layers: must be numbers such as 0,2,4"),
        (["--layers", "1", "a"], "--layers: requires --lens or --attention"),
        (["--lens", "--format", "svg", "a"], "--lens: not possible as svg; use one of table, jsonl, html"),
        (
            ["--attention", "--format", "html", "a"],
            "--attention: not possible as html; use one of table, jsonl",
        ),
        (["--lens", "-f", "a", "-f", "b"], "--lens: must be of one text (got 2)"),
        (["--attention", "--by", "line", "a"], "--attention: not possible with --by line"),
    ],
)
def test_refusals(arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_a_view_goes_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "a.txt", tmp_path / "a.jsonl"
    text.write_text(TEXT)
    assert run(capfd, "--lens", "-f", str(text), "-o", str(out)) == (0, "", "")
    shown = run(capfd, "--lens", "--format", "jsonl", TEXT)[1]
    assert out.read_text() == shown
    page = tmp_path / "a.html"
    assert run(capfd, "--lens", TEXT, "-o", str(page)) == (0, "", "")
    assert page.read_text().count("<td class=") == len(shown.splitlines()) - 1  # a cell for each record
    assert run(capfd, "--attention", TEXT, "-o", str(tmp_path / "a.txt2"))[0] == 2


def test_the_examples_of_the_help_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = CliRunner().invoke(inspect, ["--help"]).output
    lines = [line.strip() for line in text.splitlines()]
    examples = [line for line in lines if line.startswith(("ropechat inspect --l", "ropechat inspect --a"))]
    assert len(examples) == 2
    for line in examples:
        code, _, err = run(capfd, *shlex.split(line)[2:])
        assert (code, err.count("error")) == (0, 0), (line, err)
    assert (tmp_path / "heads.jsonl").exists()


def test_a_text_beyond_the_trained_length_has_a_note(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "--attention", "--layers", "0", "a " * (TRAINED_LENGTH + 1))
    assert code == 0
    assert f"tokens exceed the trained length of {TRAINED_LENGTH}" in err
