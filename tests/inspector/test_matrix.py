"""A matrix of prompts by answers: its numbers, its outputs, `ropechat matrix`."""

import csv
import io
import json
import math
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door
from hostile_html import strings
from model_folders import byte_folder, chat_folder

from ropechat import Engine, MatrixSpec, Pair, Score, TokenDistribution, Trace
from ropechat.cli.exit_codes import REFUSED
from ropechat.cli.matrix import _Watcher
from ropechat.errors import RequestError
from ropechat.inspector import matrix_page, matrix_view
from ropechat.inspector.matrix import Cell, Matrix, Row, fill
from ropechat.util.width import cell_width

PROMPTS = ("The capital of France is", "The capital of Italy is", "Rome is in")
ANSWERS = (" Paris", " Rome, of course", " Italy.")
SAMPLES = Path(__file__).with_name("recorded")


def made(*rows: tuple[float | None, ...], target: int | None = None) -> Matrix:
    """A matrix of probabilities."""
    answers = [f" a{place}" for place in range(len(rows[0]))]
    cells = [
        [None if share is None else Cell(math.log(share), 2, 3, False, -1.0, 7) for share in row]
        for row in rows
    ]
    return Matrix(
        [Row(f"prompt {at}", answers, row, target) for at, row in enumerate(cells)], answers, {"model": "m"}
    )


def test_the_numbers_are_those_of_each_answer_alone() -> None:
    engine = Engine.load("builtin", threads=1)
    matrix = MatrixSpec(PROMPTS, ANSWERS).run(engine)
    for row in matrix.rows:
        for cell, answer in zip(row.cells, ANSWERS, strict=True):
            (alone,) = engine.rank(row.prompt, [answer])
            assert cell is not None
            assert (cell.logprob, cell.tokens, cell.bytes) == (alone.logprob, alone.tokens, alone.bytes)
            assert (cell.first_logprob, cell.first_rank) == (
                alone.trace.tokens[0].logprob,
                alone.trace.tokens[0].rank,
            )
            assert cell.is_greedy == alone.is_greedy
        shares = [row.share(place) for place in range(3)]
        assert math.fsum(share or 0.0 for share in shares) == pytest.approx(1.0, abs=1e-12)
    assert matrix.rows[0].rank(0) == 1


def test_ranks_and_shares() -> None:
    matrix = made((0.4, 0.1, 0.1), (0.2, None, 0.3), (0.0625, 0.125, 0.0625), target=1)
    first, second, third = matrix.rows
    assert [first.rank(place) for place in range(3)] == [1, 2, 2]
    assert [first.share(place) for place in range(3)] == pytest.approx([4 / 6, 1 / 6, 1 / 6])
    assert [second.rank(0), second.share(2), second.is_complete] == [None, None, False]
    assert matrix.mean_share(0) == pytest.approx((4 / 6 + 1 / 4) / 2)
    assert (matrix.count, matrix.correct()) == (8, (1, 2))
    assert third.cells[1] is not None
    assert third.cells[1].bits == 3.0
    nothing = Row("p", ["a", "b"], [Cell(-math.inf, 1, 1, False), Cell(-math.inf, 1, 1, False)])
    assert nothing.share(0) is None


def test_the_table() -> None:
    lines = list(matrix_view.lines(made((0.5, 0.25), (0.125, None), target=0), 60))
    assert lines == [
        "bits, share           ·a0           ·a1",
        "prompt 0       ▸*1.0  67%      2.0  33%",
        "prompt 1        *3.0    –             –",
        "mean share          66.7%         33.3%",
        "2 prompts, 2 answers: 3 of 4 cells computed",
        "the right answer (*) is the likeliest in 1 of 1",
    ]
    assert "0.7  67%" in list(matrix_view.lines(made((0.5, 0.25)), 60, "nat"))[1]
    wide = made((0.1,) * 9)
    for width in (20, 40, 80, 200):
        shown = list(matrix_view.lines(wide, width, color=False))
        assert all(cell_width(line) <= max(width, 25) for line in shown)
        assert "".join(shown).count("11%") == 9


def test_records_and_columns() -> None:
    matrix = made((0.5, 0.25), (0.125, None), target=0)
    head, *cells, end = map(json.loads, matrix_view.json_lines(matrix))
    assert (head["schema"], head["prompts"], head["answers"]) == (
        "ropechat.matrix/1",
        ["prompt 0", "prompt 1"],
        [" a0", " a1"],
    )
    assert [(one["prompt"], one["answer"], one["rank"], one["target"]) for one in cells] == [
        *((1, 1, 1, True), (1, 2, 2, False), (2, 1, None, True), (2, 2, None, False)),
    ]
    assert cells[1]["bits"] == 2.0
    assert cells[1]["bits_per_byte"] == pytest.approx(2 / 3)
    assert (cells[3]["logprob"], cells[3]["tokens"]) == (None, None)
    assert (end["cells"], end["complete_rows"], end["correct"], end["judged"]) == (3, 1, 1, 1)
    rows = list(csv.DictReader(io.StringIO("".join(matrix_view.csv_lines(matrix)))))
    assert tuple(rows[0]) == matrix_view.COLUMNS
    assert [row["bits"] for row in rows] == ["1.0", "2.0", "3.0", ""]
    assert rows[0]["answer_text"] == "·a0"


def test_hostile_texts_stay_texts() -> None:
    texts = list(strings())
    rows = [Row(text, texts[:5], [Cell(-1.0, 1, 1, True)] * 5, 0) for text in texts]
    matrix = Matrix(rows, texts[:5], {"model": texts[3]})
    page = "".join(matrix_page.render(matrix, texts[4]))
    assert page.count("<script") == 1
    assert not re.search(r"<(img|svg|iframe|b|a)\b", page)
    assert all("\x1b" not in line for line in matrix_view.lines(matrix, 80))
    assert all("\n" not in row for row in matrix_view.csv_lines(matrix) if not row.endswith("\r\n"))


def test_samples_of_the_harness(door: Door) -> None:
    code, out, err = door("matrix", "--open", SAMPLES / "lm_eval_choices.jsonl")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split() == [
        *("The", "capital", "of", "France", "is"),
        "▸*0.4",
        "100%",
        "11.1",
        "0%",
        "10.3",
        "0%",
    ]
    assert out.splitlines()[-1] == "the right answer (*) is the likeliest in 3 of 4"
    docs = [
        {
            "doc_id": at,
            "target": "0",
            "arguments": [[f"Q{at}", f" a{at}"], [f"Q{at}", " b"]],
            "resps": [[["-1", "True"]], [["-2", "False"]]],
        }
        for at in range(2)
    ]
    lines = "".join(json.dumps(one) + "\n" for one in docs).encode()
    head, *cells, _ = door("matrix", "--open", "-", "--format", "jsonl", stdin=lines)[1].splitlines()
    assert json.loads(head)["answers"] is None
    assert [json.loads(cell)["answer_text"] for cell in cells] == [" a0", " b", " a1", " b"]
    assert "choice 2" in door("matrix", "--open", "-", stdin=lines)[1]
    code, _, err = door("matrix", "--open", SAMPLES / "ollama.json")
    assert (code, "must have the prompt of its answer" in err) == (REFUSED, True)


def test_the_command(door: Door, tmp_path: Path) -> None:
    model = byte_folder(tmp_path / "m")
    prompts, answers = tmp_path / "p.txt", tmp_path / "a.txt"
    prompts.write_text("one\ntwo\n\n")
    answers.write_text(" a\n b\n")
    ask = ("matrix", "-m", model)
    inline = door(*ask, "-p", "one", "-p", "two", "-a", " a", "-a", " b")
    assert inline[0] == 0
    assert inline[1].splitlines()[-1] == "2 prompts, 2 answers"
    assert inline[2].startswith("note: 4 cells, about 14 tokens")
    assert door(*ask, "--prompts-file", prompts, "--answers-file", "-", stdin=answers.read_bytes()) == inline
    out = tmp_path / "m.csv"
    assert door(*ask, "--prompts-file", prompts, "--answers-file", answers, "-o", out)[0] == 0
    made = MatrixSpec(("one", "two"), (" a", " b"), form="csv")
    engine = Engine.load(str(model))
    made.write(tmp_path / "n.csv", engine)
    assert (tmp_path / "n.csv").read_bytes() == out.read_bytes()
    _, _, err = door(*ask, "-p", "one", "-a", "a")
    assert "note: no space is between prompts and answers" in err
    chat = chat_folder(tmp_path / "chat")
    assert door("matrix", "-m", chat, "--context", 200, "--chat", "-p", "hi", "-a", "yo", "-a", "no")[0] == 0


def test_a_cell_that_cannot_be_scored_stays_empty() -> None:
    class Failing:
        """An engine whose second answer fails."""

        def score_many(self, items: Any) -> Any:
            for index, _ in enumerate(items):
                trace = Trace((), TokenDistribution(0, (), 0.0, 0.0, 0.0))
                yield index, Score(math.nan, 0, 0, False, trace, error=RequestError(f"bad {index}"))

    matrix, errors = Matrix([Row("p", ["a", "b"])], ["a", "b"]), list[str]()
    with pytest.raises(RequestError, match="bad 1"):  # all failed
        fill(Failing(), matrix, Pair, int, errors.append, lambda: False)  # type: ignore[arg-type]
    assert errors == ["prompt 1, answer 1: bad 0"]
    assert matrix.count == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-p", "a"], "--answer: missing; give it for each text, or --answers-file FILE"),
        (["-a", "a"], "--prompt: missing"),
        (["-p", "a", "-a", ""], "answers: must have at least one character each (number 1 has none)"),
        (
            ["-p", "a", "--prompts-file", "x", "-a", "b"],
            "--prompt: not possible with --prompts-file; give one of them",
        ),
        (["--open", "x", "-p", "a"], "--prompt: not possible with --open; omit it"),
        (["-p", "a", "-a", "b", "-o", "x.svg"], "-o: must end in .txt, .jsonl, .csv, .html"),
    ],
)
def test_what_it_refuses(door: Door, options: list[str], words: str) -> None:
    code, _, err = door("matrix", *options)
    assert (code, words in err) == (REFUSED, True)


def test_a_signal_keeps_what_is_computed(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Any, cells: int) -> None:
        scored(self, cells)
        if cells == 3:
            os.kill(os.getpid(), signal.SIGINT)
            end = time.monotonic() + 60
            while not self.is_stopped:  # the signal arrives in a thread of its own
                assert time.monotonic() < end
                time.sleep(0.001)

    scored = _Watcher.scored
    monkeypatch.setattr(_Watcher, "scored", interrupted)
    model, out = byte_folder(tmp_path / "m"), tmp_path / "m.jsonl"
    texts = [text for at in range(40) for text in ("-p", f"prompt {at}")]
    code, _, err = door("matrix", "-m", model, *texts, "-a", " a", "-a", " b", "-o", out)
    assert code == 130
    assert "m.jsonl.partial contains the first " in err
    head, *cells, end = map(json.loads, Path(f"{out}.partial").read_text().splitlines())
    assert len(head["prompts"]) == 40
    assert 3 <= end["cells"] < 80
    assert sum(cell["logprob"] is not None for cell in cells) == end["cells"]
