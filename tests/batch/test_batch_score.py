"""`ropechat batch --score`: completions and choices instead of answers."""

import csv
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door
from model_folders import chat_folder, load_fake

from ropechat.batch.line import LineError, parse_request
from ropechat.batch.score import Accuracy
from ropechat.batch.score_line import scored_request
from ropechat.conversation import Message, Role

ROWS: list[dict[str, Any]] = [
    {"id": "pair", "prompt": "ab ", "completion": "c"},
    {"id": 7, "prompt": "a", "choices": ["x", "b", "bc"], "answer": 1},
    {"prompt": "a", "choices": ["x", "b"], "answer": 0},
    {"prompt": "a", "choices": ["x", "b"]},
    {"messages": [{"role": "user", "content": "hi"}], "completion": "yo"},
    {"prompt": "", "completion": "c"},
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return chat_folder(tmp_path / "chat")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_records_say_what_the_engine_says(
    door: Door, model: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = door("batch", rows, "-m", model, "-o", "-", "--score")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 3
    assert [record["ok"] for record in records] == [True] * 5 + [False]
    engine = load_fake(monkeypatch, model)
    (pair,) = engine.rank("ab ", ["c"])
    assert records[0] == {
        **{"id": "pair", "index": 0, "ok": True, "logprob": pair.logprob, "tokens": 2, "bytes": 2},
        **{"bits_per_byte": pytest.approx(-pair.logprob / math.log(2) / 2), "is_greedy": pair.is_greedy},
    }
    scores = engine.rank("a", ["x", "b", "bc"])
    assert [score["logprob"] for score in records[1]["scores"]] == [score.logprob for score in scores]
    found = {
        name: records[1][name] for name in ("id", "best", "best_per_byte", "correct", "correct_per_byte")
    }
    per_byte = [score.logprob / score.bytes for score in scores]
    assert found == {
        **{"id": 7, "best": 1, "best_per_byte": per_byte.index(max(per_byte))},
        **{"correct": True, "correct_per_byte": max(per_byte) == per_byte[1]},
    }
    assert (records[2]["correct"], "correct" in records[3]) == (False, False)
    ((_, answered),) = engine.score_many([([Message(Role.USER, "hi")], "yo")])
    assert (records[4]["logprob"], records[4]["tokens"]) == (answered.logprob, 2)
    assert "line 6: prompt: must have at least one character" in records[5]["error"]["message"]
    assert err.splitlines()[-1].startswith("accuracy 0.5000 ± 0.5000, per byte ")


def test_files_are_the_same_for_any_window_and_after_a_stop(
    door: Door, model: Path, rows: Path, tmp_path: Path
) -> None:
    outs = []
    for window in (1, 5):
        out = tmp_path / f"{window}.jsonl"
        assert door("batch", rows, "-m", model, "-o", out, "--score", "--parallel", window)[0] == 3
        outs.append(out.read_bytes())
    run = json.loads((tmp_path / "1.jsonl.run.json").read_text())
    assert (run["answered"], run["accuracy"], run["ok"], run["completion_tokens"]) == (2, 0.5, 5, 12)
    journal = tmp_path / "1.jsonl.journal"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:4]))  # stopped after three rows
    (tmp_path / "1.jsonl").unlink()
    assert door("batch", rows, "-m", model, "-o", tmp_path / "1.jsonl", "--score", "--resume")[0] == 3
    assert {*outs, (tmp_path / "1.jsonl").read_bytes()} == {outs[0]}
    code, _, err = door("batch", rows, "-m", model, "-o", tmp_path / "1.jsonl", "--resume")
    assert (code, "score: true there, false here" in err) == (2, True)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"prompt": "a"}, "completion: must be given, or choices"),
        ({"prompt": "a", "completion": "b", "choices": ["c"]}, "but not both"),
        ({"prompt": "a", "completion": ""}, "completion: must be a string of at least one character"),
        ({"prompt": "a", "completion": "\ud800"}, "completion: must be valid Unicode"),
        ({"prompt": "a", "choices": []}, "choices: must be a list of 1 to"),
        ({"prompt": "a", "choices": ["b", 3]}, r"choices\[1\]: must be a string"),
        ({"prompt": "a", "choices": ["b"], "answer": 1}, "answer: must be a choice: its text, its letter"),
        ({"prompt": "a", "choices": ["b"], "answer": True}, r"its index, 0 to 0 \(got True\)"),
        ({"prompt": "a", "choices": ["b", "c"], "answer": "d"}, "answer: must be a choice"),
        ({"prompt": "a", "choices": ["b", "c"], "answer": "C"}, r"\(got 'C'\)"),
        ({"turns": ["a", "b"], "completion": "c"}, "turns: not possible with --score"),
        ({"prompt": "a", "completion": "c", "n": 2}, "n: must be 1 with --score"),
        ({"completion": "c"}, "prompt: "),
    ],
)
def test_a_bad_row_names_the_field(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(LineError, match=what):
        scored_request(fields, parse_request)


def test_options_that_are_of_no_use_are_refused(door: Door, model: Path, rows: Path, tmp_path: Path) -> None:
    batch = ["batch", rows, "-m", model, "--score"]
    for arguments, what in (
        (["-o", "-", "--n", 2], "--n: not possible with --score"),
        (["-o", "-", "--logprobs", 2], "--logprobs: not possible with --score"),
        (["-o", "-", "--format", "openai"], "--score: results must not be openai"),
        (["-o", "-", "--regex", "a"], "--regex: not possible with --score"),
    ):
        code, _, err = door(*batch, *arguments)
        assert code == 2
        assert what in err


@pytest.mark.parametrize(
    ("answer", "index"),
    [
        *((0, 0), ("0", 0), ("b", 1), (" b ", 1), ("A", 0), ("c", 2), ("2", 2), ("7", 3)),
        *(("", None), (None, None)),
    ],
)
def test_the_right_choice_by_its_text_letter_or_index(answer: object, index: int | None) -> None:
    fields = {"prompt": "a", "choices": [" x", " b", " y", " 7"], "answer": answer}
    assert scored_request(fields, parse_request).answer == index


def test_choices_of_all_rows_and_a_table(door: Door, model: Path, tmp_path: Path) -> None:
    rows, out = tmp_path / "in.csv", tmp_path / "out.csv"
    rows.write_text("id,question,answer,choices\n1,ab,c,-\n2,cd,B,-\n3,xy,,-\n4,xy,none,-\n")
    given = ["batch", rows, "-m", model, "--score", "--prompt", "{{ question }}"]
    given += ["--choices", "c,f", "--keep", "choices"]
    code, _, err = door(*given, "-o", out)
    assert code == 3
    assert "; 2 rows with an answer" in err
    table = list(csv.DictReader(out.read_text().splitlines()))
    code, text, _ = door(*given, "-o", "-")
    records = [json.loads(line) for line in text.splitlines()]
    engine_scores = [record["scores"] for record in records[:3]]
    for record, line, scores in zip(records, table, engine_scores, strict=False):
        total = sum(math.exp(score["logprob"]) for score in scores)
        best = scores[record["best"]]
        assert record["allowed"] == pytest.approx(total)
        assert record["confidence"] == pytest.approx(math.exp(best["logprob"]) / total)
        assert record["text"] == ["c", "f"][record["best"]]
        assert (line["text"], line["choices"]) == (record["text"], "-")
        assert float(line["logprob"]) == best["logprob"]
        assert float(line["confidence"]) == record["confidence"]
    assert [line["answer"] for line in table] == ["c", "f", "", ""]
    assert (table[0]["correct"], table[2]["correct"]) == (json.dumps(records[0]["correct"]), "")
    assert "answer: must be a choice" in table[3]["error"]
    run = json.loads((tmp_path / "out.csv.run.json").read_text())
    assert sum(count for line in run["confusion"].values() for count in line.values()) == 2


def test_f1_is_that_of_its_definition() -> None:
    accuracy = Accuracy()
    draw = random.Random(1)
    pairs = [(draw.choice("abc"), draw.choice("abcd")) for _ in range(40)]
    for answer, text in pairs:
        accuracy.add({"correct": answer == text, "correct_per_byte": True, "answer": answer, "text": text})
    found = []
    for label in "abcd":
        hits = sum(pair == (label, label) for pair in pairs)
        precision = hits / max(1, sum(text == label for _, text in pairs))
        recall = hits / max(1, sum(answer == label for answer, _ in pairs))
        found.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    assert accuracy.f1 == pytest.approx(sum(found) / 4)
    assert accuracy.facts()["confusion"]["a"].get("b", 0) == pairs.count(("a", "b"))
    for number in range(30):
        accuracy.add({"correct": True, "correct_per_byte": True, "answer": str(number), "text": str(number)})
    assert "confusion" not in accuracy.facts()


def test_accuracy_has_the_error_of_a_mean() -> None:
    accuracy = Accuracy()
    values = [True, False, True, True]
    for value in values:
        accuracy.add({"correct": value, "correct_per_byte": not value})
    accuracy.add({"logprob": -1.0})
    facts = accuracy.facts()
    mean = 0.75
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / 3)
    assert facts["accuracy"] == mean
    assert facts["accuracy_per_byte"] == 0.25
    assert facts["accuracy_stderr"] == pytest.approx(spread / math.sqrt(4))
    assert Accuracy().facts() == {}
