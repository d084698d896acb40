"""`ropechat compare`, in this process, on the built-in model."""

import csv
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builtin_config import TRAINED_LENGTH

from ropechat.cli import main
from ropechat.cli.compare import compare
from ropechat.cli.exit_codes import CHECK_FAILED

TEXT = "Once upon a time there was a cat. It sat on the mat."
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.delenv("ROPECHAT_MODEL", raising=False)

    def call(*arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        capfd.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(["compare", "--threads", "1", *map(str, arguments)])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_a_table_of_two_types(run: Run) -> None:
    against = ("--against-dtype", "q4_0", "--against-kv-dtype", "f16")
    code, out, err = run(TEXT, "--dtype", "f32", *against, "--rows", 2)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("A  builtin f32, kv f32")
    assert lines[1].startswith("B  builtin q4_0, kv f16")
    assert sum(line.startswith("#") for line in lines) == 2
    assert "mean KLD(A, B)" in out


def test_jsonl_csv_and_table_agree(run: Run, tmp_path: Path) -> None:
    options = (TEXT, "--against-dtype", "q8_0", "--candidates", 2)
    records = [json.loads(line) for line in run(*options, "--format", "jsonl")[1].splitlines()]
    meta, *tokens, summary = records
    assert (meta["schema"], meta["b"]["dtype"], meta["text"]) == ("ropechat.compare/1", "q8_0", TEXT)
    assert summary["tokens"] == len(tokens)
    assert summary["mean_kld"] == pytest.approx(sum(token["kl"] for token in tokens) / len(tokens))
    assert {len(token["a"]["top"]) for token in tokens} == {2}
    out = tmp_path / "out.csv"
    assert run(*options, "-o", out) == (0, "", "")
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [float(row["kl"]) for row in rows] == [token["kl"] for token in tokens]
    code, printed, err = run(*options, "-o", out)
    assert (code, printed) == (2, "")
    assert "exists; choose another output or add --overwrite" in err
    assert run(*options, "-o", out, "--overwrite", "--format", "jsonl")[0] == 0
    assert len(out.read_text().splitlines()) == len(records)
    assert not list(tmp_path.glob("*.partial"))


def test_a_page(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    assert run(TEXT, "--against-dtype", "q8_0", "-o", out) == (0, "", "")
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_text_from_files_and_stdin(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    options = ("--against-dtype", "q8_0", "--format", "jsonl")
    expected = run(TEXT, *options)
    assert run("-f", file, *options) == expected
    assert run("-", *options, stdin=TEXT.encode()) == expected
    assert run("-f", "-", *options, stdin=TEXT.encode()) == expected


def test_checks_have_an_exit_code(run: Run) -> None:
    options = (TEXT, "--dtype", "f32", "--against-dtype", "q4_0", "--rows", 0)
    assert run(*options, "--max-kl", 100, "--max-ppl", 1e9)[0] == 0
    code, out, err = run(*options, "--max-kl", 0, "--max-ppl", 1)
    assert code == CHECK_FAILED == 1
    assert "mean KLD(A, B)" in out
    assert [line.split(" is ")[0] for line in err.splitlines()] == [
        "check failed: mean KLD in bits",
        "check failed: PPL(B)",
    ]
    code, _, err = run(TEXT, "--dtype", "f32", "--against-dtype", "f32", "--max-kl", 0)
    assert (code, err) == (0, "")


def test_a_limit_and_what_is_shown_have_the_same_unit(run: Run) -> None:
    def mean(*more: str) -> tuple[float, str]:
        table = run(*options, *more)[1].splitlines()
        (line,) = [one for one in table if one.startswith("mean KLD(A, B)")]
        return float(line.split()[3]), line.split()[-1]

    options = (TEXT, "--dtype", "f32", "--against-dtype", "q4_0", "--top", 0)
    (bits, bit), (nats, nat) = mean(), mean("--unit", "nat")
    assert (bit, nat) == ("bit", "nat")
    assert nats == pytest.approx(bits * math.log(2), rel=1e-3)
    between = ("--max-kl", math.sqrt(bits * nats))
    assert run(*options, *between)[0] == CHECK_FAILED
    assert run(*options, *between, "--unit", "nat")[0] == 0


@pytest.mark.parametrize("option", ["--max-kl", "--max-ppl"])
def test_a_limit_that_is_not_a_number_is_refused(run: Run, option: str) -> None:
    code, out, err = run(TEXT, "-m", "nobody/nothing", "--against-dtype", "q8_0", option, "nan")
    assert (code, out) == (2, "")
    assert f"'{option}': must be a number (got nan)" in err


def test_tokens_in_csv_are_visible_and_quoted(run: Run) -> None:
    text = 'He said "hi", = x\n\tand'
    code, out, _ = run(text, "--against-dtype", "q8_0", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert len(out.splitlines()) == len(rows) + 1  # no cell has a line break
    shown = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥"})
    assert [row["token"] for row in rows] == [
        text[int(row["start"]) : int(row["end"])].translate(shown) for row in rows
    ]
    assert set('"·,=⏎⇥') <= set("".join(row["token"] for row in rows))


def test_prompts(run: Run, tmp_path: Path) -> None:
    given, other = tmp_path / "a.txt", tmp_path / "b.txt"
    given.write_text("A story. ")
    other.write_text("A recipe: ")
    options = ("--format", "jsonl")
    code, out, _ = run("There was a cat.", "--given-file", given, "--against-given-file", other, *options)
    meta, *tokens, _ = map(json.loads, out.splitlines())
    assert (code, meta["text"]) == (0, "There was a cat.")
    assert meta["a"]["prompt_tokens"] > 0
    assert sum(token["kl"] for token in tokens) > 0
    code, out, _ = run("Hello.", "--chat", "--given-file", given, "--against-system", "Be brief.", *options)
    meta = json.loads(out.splitlines()[0])
    assert code == 0
    assert meta["b"]["prompt_tokens"] > meta["a"]["prompt_tokens"]


def test_a_long_text_goes_in_windows(run: Run) -> None:
    code, out, err = run(TEXT * 3, "--against-dtype", "q8_0", "--window", 16, "--format", "jsonl")
    meta, *tokens, summary = map(json.loads, out.splitlines())
    assert code == 0
    assert (meta["window"], meta["stride"]) == (16, 8)
    assert err.startswith("note: ")
    assert "tokens in windows of 16, stride 8" in err
    assert summary["tokens"] == len(tokens)
    assert all(8 <= token["a"]["ctx"] <= 16 for token in tokens[16:])
    long, window = "a b " * TRAINED_LENGTH, 4 * TRAINED_LENGTH
    err = run(long, "--against-dtype", "q8_0", "--window", window, "--rows", 0)[2]
    assert f"in one sequence exceed the trained length of {TRAINED_LENGTH}" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([TEXT], "nothing to compare with; give --against MODEL"),
        ([TEXT, "-f", "x", "--against-dtype", "f32"], "TEXT: not possible with --file; give one of them"),
        ([TEXT, "--against-system", "x"], "--against-system: requires --chat"),
        ([TEXT, "--against-dtype", "f32", "--template", "x"], "--template: requires --chat"),
        ([TEXT, "--against-dtype", "f32", "--chat"], "--chat: requires --given-file; add FILE"),
        (
            [TEXT, "--against-dtype", "f32", "-o", "x.png"],
            "-o: must end in .txt, .jsonl, .html, .csv (got",
        ),
        (["-f", "/nowhere/x", "--against-dtype", "f32"], "/nowhere/x: file not found"),
        (["a", "--against-dtype", "f32"], "text: must have at least two tokens"),
        ([TEXT, "--against-dtype", "f32", "-o", "/nowhere/x.csv"], "/nowhere/x.csv: No such file"),
    ],
)
def test_what_is_refused(run: Run, arguments: list[str], said: str) -> None:
    code, out, err = run(*arguments)
    assert code in (2, 74)
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_file_that_is_not_utf8(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"ab\xff")
    code, _, err = run("-f", file, "--against-dtype", "f32")
    assert (code, err) == (
        2,
        f"error: {file}: must be UTF-8 (byte 2 is not); convert the text to UTF-8\n",
    )


def test_examples_of_the_help_are_commands() -> None:
    assert compare.epilog is not None
    lines = [line.strip() for line in compare.epilog.splitlines() if "ropechat compare" in line]
    assert len(lines) >= 4
    for line in lines:
        words = line.partition("ropechat compare ")[2].split()
        options = {word for word in words if word.startswith("-") and word != "-"}
        known = {name for parameter in compare.params for name in parameter.opts}
        assert options <= known
