"""`ropechat inspect --lens` and `--attention` on the built-in model."""

import json
import math
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from builtin_config import HEADS, LAYERS, TRAINED_LENGTH
from click.testing import CliRunner

from ropechat.cli import main
from ropechat.cli.inspect import _Progress, inspect


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["inspect", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


TEXT = "Once upon a time there was a little girl"


def test_the_lens_agrees_with_the_trace(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "--lens", "--format", "jsonl", "--candidates", "2", TEXT)
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
        (["--attention", "--look-up", "b", "a"], "--attention: not possible with --look-up"),
        (["--attention-map", "1", "a"], "--attention-map: must be a layer and a head such as 5,0 (got '1')"),
        (["--attention-map", "0,99", "a b"], f"error: heads: must be from 0 to {HEADS - 1} (got 99)"),
        (["--attention-map", "0,0", "--lens", "a"], "--lens: not possible with --attention-map"),
    ],
)
def test_refusals(arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, *arguments)
    *notes, last = err.splitlines()
    assert (code, out) == (2, "")
    assert all(note.startswith("note: ") for note in notes)
    assert words in last + "\n"


def test_a_view_goes_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "a.txt", tmp_path / "a.jsonl"
    text.write_text(TEXT)
    code, _, err = run(capfd, "--lens", "-f", str(text), "-o", str(out))
    assert (code, err.count("\n")) == (0, 1)
    assert re.match(
        r"note: 9 tokens, the work of reading \d\d; bf16 weights: .*--dtype f32 --kv-dtype f32\)", err
    )
    shown = run(capfd, "--lens", "--format", "jsonl", TEXT)[1]
    assert out.read_text() == shown
    page = tmp_path / "a.html"
    assert run(capfd, "--lens", TEXT, "-o", str(page))[0] == 0
    assert page.read_text().count("<td class=") == len(shown.splitlines()) - 1  # a cell for each record
    assert run(capfd, "--attention", TEXT, "-o", str(tmp_path / "a.txt2"))[0] == 2


def test_a_string_in_each_layer(capfd: pytest.CaptureFixture[str]) -> None:
    ask = ("--lens", "--format", "jsonl", "--candidates", "1", TEXT)
    code, out, _ = run(capfd, *ask, "--look-up", " girl", "--look-up", " boy")
    meta, *records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [*records[0]["lookup"]] == [" girl", " boy"]
    girl = [one for one in records if one["i"] == len(meta["ids"]) - 1]  # the text's last token
    assert [(one["rank"], one["logprob"]) for one in girl] == [
        (one["lookup"][" girl"]["rank"], one["lookup"][" girl"]["first_logprob"]) for one in girl
    ]
    plain = [json.loads(line) for line in run(capfd, *ask)[1].splitlines()][1:]
    assert [{name: one[name] for name in plain[0]} for one in records] == plain
    table = run(capfd, "--lens", "--layers", "0", TEXT, "--look-up", " boy")[1].splitlines()
    assert [line.split()[1] for line in table[2::2]] == ["·boy"] * len(meta["ids"])


def test_the_map_has_the_weights_of_a_capture(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "--attention-map", "1,2", "--format", "jsonl", TEXT)
    meta, *rows = [json.loads(line) for line in out.splitlines()]
    assert (code, meta["layer"], meta["head"], len(rows)) == (0, 1, 2, len(meta["ids"]))
    for row in rows:
        assert len(row["weights"]) == row["i"] + 1
        assert math.fsum(row["weights"]) == pytest.approx(1.0, abs=1e-5)
    _, out, _ = run(capfd, "--attention", "--layers", "1", "--format", "jsonl", TEXT)
    head = json.loads(out.splitlines()[3])
    assert (head["layer"], head["head"]) == (1, 2)
    sink = [row["weights"][0] for row in rows[1:]]
    assert head["sink"] == pytest.approx(math.fsum(sink) / len(sink), abs=1e-6)
    assert len(run(capfd, "--attention-map", "1,2", TEXT)[1].splitlines()) == len(rows) + 2


@pytest.mark.parametrize(
    ("view", "tokens", "each"), [(("--lens",), {1, 2, 3}, LAYERS), (("--attention-map", "1,2"), {0, 1, 2}, 1)]
)
def test_a_signal_keeps_the_tokens_of_a_lens_and_a_map(
    view: tuple[str, ...],
    tokens: set[int],
    each: int,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(self: Any, looked: int) -> None:
        usual(self, looked)
        if looked == 3:
            os.kill(os.getpid(), signal.SIGINT)

    usual = _Progress.looked
    monkeypatch.setattr(_Progress, "looked", interrupted)
    monkeypatch.setattr("ropechat.inspector.attention_map._FIRST", 3)
    code, _, err = run(capfd, *view, TEXT, "-o", str(tmp_path / "a.jsonl"))
    assert code == 130
    assert "a.jsonl.partial contains the first 3 tokens" in err
    _, *records = map(json.loads, (tmp_path / "a.jsonl.partial").read_text().splitlines())
    assert {one["i"] for one in records} == tokens
    assert len(records) == 3 * each


def test_the_examples_of_the_help_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = CliRunner().invoke(inspect, ["--help"]).output
    lines = [line.strip() for line in text.splitlines()]
    examples = [line for line in lines if line.startswith(("ropechat inspect --l", "ropechat inspect --a"))]
    assert len(examples) == 3
    for line in examples:
        code, _, err = run(capfd, *shlex.split(line)[2:])
        assert (code, err.count("error")) == (0, 0), (line, err)
    assert (tmp_path / "heads.jsonl").exists()


def test_a_text_beyond_the_trained_length_has_a_note(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "--attention", "--layers", "0", "a " * (TRAINED_LENGTH + 1))
    assert code == 0
    assert f"tokens exceed the trained length of {TRAINED_LENGTH}" in err
