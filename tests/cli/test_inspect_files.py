"""`ropechat inspect` with files: several in, one out, by suffix; what it refuses and its exit codes."""

import csv
import io
import json
import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door
from model_folders import byte_folder

from ropechat.engine.engine import Engine
from ropechat.engine.scoring import ScoreStream


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return byte_folder(tmp_path / "model")


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("ab\ncd\n")
    second.write_text("é")
    return first, second


@pytest.mark.parametrize(
    ("suffix", "start"),
    [
        (".txt", " #  token"),
        (".jsonl", '{"schema": "ropechat.trace/1", '),
        (".csv", "file,i,id,token,"),
        (".html", "<!DOCTYPE html>"),
        (".svg", "<svg "),
        (".HTML", "<!DOCTYPE html>"),
    ],
)
def test_the_suffix_decides_the_format(
    door: Door, model: Path, tmp_path: Path, suffix: str, start: str
) -> None:
    out = tmp_path / f"out{suffix}"
    assert door("inspect", "-m", model, "ab", "-o", out) == (0, "", "")
    assert out.read_text("utf-8").startswith(start)
    assert not out.with_name(out.name + ".partial").exists()


def test_format_overrides_the_suffix(door: Door, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.data"
    code, _, err = door("inspect", "-m", model, "ab", "-o", out)
    assert (code, "--format" in err) == (2, True)
    assert door("inspect", "-m", model, "ab", "-o", out, "--format", "csv")[0] == 0
    assert out.read_text().startswith("file,")


def test_several_files_are_in_one_output(
    door: Door, model: Path, tmp_path: Path, texts: tuple[Path, Path]
) -> None:
    files = [part for path in texts for part in ("-f", path)]
    code, out, err = door("inspect", "-m", model, *files, "--format", "jsonl")
    records = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [record["file"] for record in records if "schema" in record] == list(map(str, texts))
    assert [record["tokens"] for record in records if "summary" in record] == [6, 2]
    rows = list(csv.DictReader(io.StringIO(door("inspect", "-m", model, *files, "--format", "csv")[1])))
    assert [row["file"] for row in rows] == [str(texts[0])] * 6 + [str(texts[1])] * 2
    page = door("inspect", "-m", model, *files, "--format", "html")[1]
    assert page.count("<section") == 2
    assert "2 inspected texts" in page


def test_one_failed_file_of_several_is_3_and_the_others_are_written(
    door: Door, model: Path, tmp_path: Path, texts: tuple[Path, Path]
) -> None:
    bad, empty, out = tmp_path / "bad.txt", tmp_path / "empty.txt", tmp_path / "o.jsonl"
    bad.write_bytes(b"a\xff")
    empty.write_bytes(b"")
    wanted = ["-f", bad, "-f", texts[0], "-f", tmp_path / "no.txt", "-f", empty]
    code, _, err = door("inspect", "-m", model, *wanted, "-o", out)
    assert code == 3
    lines = err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == [str(bad), str(tmp_path / "no.txt"), str(empty)]
    assert "byte 1 is not" in lines[0]
    assert sum("schema" in line for line in out.read_text().splitlines()) == 1


@pytest.mark.parametrize("content", [None, b"\xff", b""])
def test_the_only_file_that_fails_is_an_error(
    door: Door, model: Path, tmp_path: Path, content: bytes | None
) -> None:
    path, out = tmp_path / "x.txt", tmp_path / "o.html"
    if content is not None:
        path.write_bytes(content)
    code, _, err = door("inspect", "-m", model, "-f", path, "-o", out)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"error: {path}: ")
    assert not out.exists()


def test_when_all_files_fail_nothing_is_written(door: Door, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.html"
    code, _, err = door("inspect", "-m", model, "-f", tmp_path / "x", "-f", tmp_path / "y", "-o", out)
    assert (code, err.count("\n")) == (2, 2)
    assert list(tmp_path.glob("o.html*")) == []


def test_an_existing_output_is_refused(door: Door, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.csv"
    out.write_text("mine")
    code, _, err = door("inspect", "-m", model, "ab", "-o", out)
    assert (code, out.read_text()) == (2, "mine")
    assert "--overwrite" in err
    assert door("inspect", "-m", model, "ab", "-o", out, "--overwrite")[0] == 0
    assert out.read_text() != "mine"
    text = tmp_path / "in.txt"
    text.write_text("ab")
    code, _, err = door("inspect", "-m", model, "-f", text, "-o", text, "--overwrite")
    assert (code, text.read_text()) == (2, "ab")
    assert "is the input" in err
    assert door("inspect", "-m", model, "ab", "-o", tmp_path / "no" / "o.csv")[0] == 74


def test_an_output_that_stops_midway_leaves_nothing(
    door: Door, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropechat.inspector import records

    def broken(*given: object) -> object:
        yield "a line\n"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "csv_lines", broken)
    out = tmp_path / "o.csv"
    out.write_text("old")
    code, _, err = door("inspect", "-m", model, "ab", "-o", out, "--overwrite")
    assert (code, out.read_text()) == (74, "old")
    assert err == f"error: {out}: No space left on device; not written\n"
    assert list(tmp_path.glob("*.partial")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "html", "svg", "txt"])
def test_a_signal_keeps_what_is_complete(
    door: Door,
    model: Path,
    tmp_path: Path,
    texts: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    number: signal.Signals,
) -> None:
    def stopped(*given: Any, **options: Any) -> Any:
        stream = usual(*given, **options)
        at = ScoreStream(stream.meta, chunks(stream))
        at.meta["tokens"] = None
        return at

    def chunks(stream: Any) -> Any:
        for index, token in enumerate(stream):
            yield [token]
            if index == 3:
                os.kill(os.getpid(), number)
        return stream.next

    usual = Engine.score_stream
    monkeypatch.setattr(Engine, "score_stream", stopped)
    out = tmp_path / f"o.{suffix}"
    out.write_text("old")
    code, _, err = door("inspect", "-m", model, "-f", texts[0], "-f", texts[1], "-o", out, "--overwrite")
    assert code == 128 + number
    told = re.fullmatch(r"stopped: (.*) contains the first ([45]) tokens\n", err)
    assert told is not None, err
    count = int(told[2])  # the fifth is there if it was computed before the engine was cancelled
    partial = out.with_name(f"o.{suffix}.partial")
    assert (told[1], out.read_text()) == (str(partial), "old")
    written = partial.read_text()
    if suffix == "jsonl":
        found = [record.get("i") for record in map(json.loads, written.splitlines())]
        assert found == [None, *range(count), None]
    elif suffix == "csv":
        assert [row["i"] for row in csv.DictReader(io.StringIO(written))] == [*"01234"[:count]]
    elif suffix == "txt":
        assert written.splitlines()[-1].startswith(f"{count} tokens, {count - 1} scored: ")
    else:
        assert written.rstrip().endswith("</html>" if suffix == "html" else "</svg>")


def test_stdin_is_a_file(door: Door, model: Path) -> None:
    code, out, _ = door("inspect", "-m", model, "-f", "-", "--format", "jsonl", stdin=b"ab")
    meta = json.loads(out.splitlines()[0])
    assert (code, meta["text"], meta["file"]) == (0, "ab", "stdin")
    marked = door("inspect", "-m", model, "-f", "-", "--format", "jsonl", stdin=b"\xef\xbb\xbfab")[1]
    assert marked == out  # without the byte order mark
    code, _, err = door("inspect", "-m", model, "-f", "-", stdin=b"\xff")
    assert (code, err.split(" (")[0]) == (2, "error: stdin: must be UTF-8")


def test_by_line(door: Door, model: Path, texts: tuple[Path, Path]) -> None:
    inspect = ["inspect", "-m", model, "-f", texts[0], "--by", "line"]
    records = [json.loads(line) for line in door(*inspect, "--format", "jsonl")[1].splitlines()]
    assert [(one["line"], one["text"], one["tokens"]) for one in records] == [(1, "ab", 2), (2, "cd", 3)]
    sums = json.loads(door("inspect", "-m", model, "-f", texts[0], "--format", "jsonl")[1].splitlines()[-1])
    assert sum(one["nll"] for one in records) == pytest.approx(sums["nll"], rel=1e-12)
    best = [
        json.loads(line) for line in door(*inspect, "--format", "jsonl", "--sort", "bits")[1].splitlines()
    ]
    assert [one["bits"] for one in best] == sorted((one["bits"] for one in records), reverse=True)
    assert len(door(*inspect, "--rows", "1")[1].splitlines()) == 2
    assert len(door(*inspect, "--format", "csv")[1].splitlines()) == 3


def test_by_word(door: Door, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("ab cd\nef.")
    inspect = ["inspect", "-m", model, "-f", file, "--by", "word"]
    records = [json.loads(line) for line in door(*inspect, "--format", "jsonl")[1].splitlines()]
    assert [(one["text"], one["tokens"]) for one in records] == [(" cd", 3), ("\n", 1), ("ef", 2), (".", 1)]
    tokens = [
        json.loads(line)
        for line in door("inspect", "-m", model, "-f", file, "--format", "jsonl")[1].splitlines()[1:-2]
    ]
    assert records[0]["logprob"] == pytest.approx(sum(one["logprob"] for one in tokens[2:5]), rel=1e-12)
    assert records[0]["first_prob"] == pytest.approx(math.exp(tokens[2]["logprob"]))
    spans = [json.loads(line) for line in door(*inspect, "--below", 1, "--format", "jsonl")[1].splitlines()]
    assert [(one["words"], one["text"]) for one in spans] == [(4, " cd\nef.")]
    assert spans[0]["bits"] == pytest.approx(sum(one["bits"] for one in records))
    assert door(*inspect, "--below", 0, "--format", "jsonl")[1] == ""
    assert door(*inspect, "--unit", "nat")[1].splitlines()[0].split() == [
        "line",
        "nats",
        "prob",
        "tokens",
        "text",
    ]
    assert door(*inspect[:-1], "line", "--unit", "nat")[1].split()[1] == "nats"
    assert "nats/byte" in door("inspect", "-m", model, "ab", "--unit", "nat")[1]


def test_fail_below(door: Door, model: Path, tmp_path: Path) -> None:
    file, table = tmp_path / "words.txt", tmp_path / "out.txt"
    file.write_text("ab cd\nef.")
    inspect = ["inspect", "-m", model, "-f", file]
    code, out, err = door(*inspect, "--fail-below", 1)
    assert code == 1
    assert err.splitlines() == [err.splitlines()[0]]
    assert err.startswith(f"unsure: {file}:1: ")
    assert err.endswith(" in 7 tokens: ·cd⏎ef.\n")
    assert out == door(*inspect)[1]
    assert door(*inspect, "--fail-below", 0)[::2] == (0, "")
    code, _, err = door(*inspect, "--fail-below", 1, "--by", "line", "-o", table)
    assert (code, err.count("unsure: ")) == (1, 1)
    assert table.exists()
    assert door(*inspect, "-f", tmp_path / "none", "--fail-below", 1)[0] == 3
    trace = tmp_path / "trace.jsonl"
    assert door(*inspect, "-o", trace)[0] == 0
    code, _, err = door("inspect", "--open", trace, "--by", "word", "--fail-below", 1)
    assert code == 1
    assert err.endswith(" in 7 tokens: ·cd⏎ef.\n")
    assert door("inspect", "--open", trace, "--fail-below", 0)[0] == 0


def test_chart(door: Door, model: Path, texts: tuple[Path, Path], tmp_path: Path) -> None:
    code, out, _ = door("inspect", "-m", model, "-f", texts[0], "-f", texts[1], "--chart")
    lines = out.splitlines()
    assert code == 0
    assert [line for line in lines if line in map(str, texts)] == [*map(str, texts)]
    assert sum(line.startswith("surprisal") for line in lines) == 2
    trace, picture = tmp_path / "trace.jsonl", tmp_path / "chart.svg"
    assert door("inspect", "-m", model, "-f", texts[0], "-o", trace)[0] == 0
    opened = door("inspect", "--open", trace, "--chart", "--unit", "nat")[1].splitlines()
    one = door("inspect", "-m", model, "-f", texts[0], "--chart", "--unit", "nat")[1].splitlines()
    assert opened[1:] == one[1:]
    assert "nat│" in opened[1]
    assert door("inspect", "-m", model, "-f", texts[0], "--chart", "-o", picture)[0] == 0
    assert picture.read_text().count("<polyline") == 5


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["x", "-f", "{a}"], "--file: not possible with TEXT"),
        (["x", "--by", "line", "--format", "html"], "--by line"),
        (["x", "--sort", "bits"], "--by line"),
        (["x", "--rows", "3"], "--by line"),
        (["x", "--below", "0.1"], "--below: requires --by word"),
        (["x", "--by", "line", "--below", "0.1"], "--below: requires --by word"),
        (["x", "--by", "word", "--format", "svg"], "--by word: not possible as svg; use one of table, jsonl"),
        (["x", "--fail-below", "1.5"], "--fail-below"),
        (["x", "--lens", "--fail-below", "0.5"], "--lens: not possible with --fail-below"),
        (["x", "--attention", "--unit", "nat"], "--attention: not possible with --unit nat"),
        (["x", "--unit", "nat", "--format", "csv"], "--unit: not possible as csv, which has both units"),
        (["x", "--by", "line", "--unit", "nat", "--format", "jsonl"], "--unit: not possible as jsonl"),
        (["x", "--chart", "--format", "csv"], "--chart: not possible as csv; use one of table, html, svg"),
        (["x", "--chart", "--by", "word"], "--chart: not possible with --by word"),
        (["x", "--chart", "--look-up", "y"], "--chart: not possible with --look-up"),
        (["x", "--chart", "--stages"], "--stages: not possible with --chart"),
        (["x", "--look-up", "y", "--format", "svg"], "--look-up"),
        (["x", "--look-up-whole"], "requires --look-up"),
        (["x", "--look-up", ""], "--look-up"),
        (["x", "--lens", "--attention"], "--lens: not possible with --attention; omit one of them"),
        (["x", "--chat", "--bos", "no"], "--bos"),
        (["x", "--format", "pdf"], "--format"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_a_model_is_loaded(
    door: Door, texts: tuple[Path, Path], arguments: list[str], word: str
) -> None:
    given = [argument.format(a=texts[0]) for argument in arguments]
    code, out, err = door("inspect", "-m", "/no/such/model", *given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert word in err


def test_look_up_in_table_jsonl_and_page(door: Door, model: Path) -> None:
    inspect = ["inspect", "-m", model, "ab", "--look-up", "cd", "--look-up", "e"]
    records = [json.loads(line) for line in door(*inspect, "--format", "jsonl")[1].splitlines()]
    found = records[-2]["lookup"]
    assert {text: len(one["ids"]) for text, one in found.items()} == {"cd": 2, "e": 1}
    whole = [
        json.loads(line) for line in door("inspect", "-m", model, "abcd", "--format", "jsonl")[1].splitlines()
    ]
    assert found["cd"]["logprob"] == pytest.approx(whole[3]["logprob"] + whole[4]["logprob"])
    assert found["cd"]["rank"] == whole[3]["rank"]
    shown = [line for line in door(*inspect)[1].splitlines() if line.startswith(" ?")]
    assert shown[0].endswith("cd  (the first of 2 tokens)")
    assert shown[-2].endswith("cd  (2 tokens)")
    assert len(shown) == 4  # the first token has no context; after the text there is a place, too
    assert records[2]["lookup"]["cd"]["logprob"] is None
    asked = [
        json.loads(line) for line in door(*inspect, "--look-up-whole", "--format", "jsonl")[1].splitlines()
    ]
    assert asked[2]["lookup"]["cd"]["logprob"] < asked[2]["lookup"]["cd"]["first_logprob"]
    assert "Looked up after the text" in door(*inspect, "--format", "html")[1]


def test_bos_is_chosen(door: Door, model: Path, tmp_path: Path) -> None:
    def roles(*arguments: object, of: Path = model) -> list[str]:
        out = door("inspect", "-m", of, "ab", "--format", "jsonl", *arguments)[1]
        return [one["role"] for one in map(json.loads, out.splitlines()) if "role" in one]

    assert roles() == roles("--bos", "no") == ["text", "text"]
    assert roles("--bos", "yes") == ["bos", "text", "text"]


def test_typed_control_tokens_stay_text(door: Door, model: Path) -> None:
    def ids(*arguments: object) -> list[int]:
        out = door("inspect", "-m", model, "a</s>", "--format", "jsonl", *arguments)[1]
        return [one["id"] for one in map(json.loads, out.splitlines()) if "role" in one]

    assert len(ids()) == 5
    assert len(ids("--special", "tokens")) == 2


def test_a_continuation_counts_lines_from_its_own_start(
    door: Door, model: Path, texts: tuple[Path, Path]
) -> None:
    prompt = texts[0].with_name("prompt.txt")
    prompt.write_text("x\ny\n")
    inspect = ["inspect", "-m", model, "-f", texts[0], "--given-file", prompt]
    lines = [json.loads(one) for one in door(*inspect, "--by", "line", "--format", "jsonl")[1].splitlines()]
    assert [(one["line"], one["text"], one["tokens"]) for one in lines] == [(1, "ab", 3), (2, "cd", 3)]
    page = door(*inspect, "--format", "html")[1].split("<pre")[1].split("</pre>")[0]
    assert [part.split("</span>")[0].split(">")[-1] for part in page.split("<span")[1:]] == [*"ab\ncd\n", ""]


def test_long_texts_are_noted_by_file(door: Door, tmp_path: Path, texts: tuple[Path, Path]) -> None:
    model, out = byte_folder(tmp_path / "short", max_position_embeddings=4), tmp_path / "o.jsonl"
    code, _, err = door("inspect", "-m", model, "-f", texts[0], "-f", texts[1], "-o", out, "--look-up", "e")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith(f"note: {texts[0]}: 6 tokens in windows of 4, stride 2")
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["ctx"] for one in records if "ctx" in one][:6] == [0, 1, 2, 3, 4, 3]
    assert [len(one["lookup"]["e"]["ids"]) for one in records if "next" in one] == [1, 1]
