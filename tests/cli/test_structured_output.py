"""run, batch and the chat's documentation: answers of a given form, with the built-in model."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_door import CompiledDoor, Door

from ropechat.cli.exit_codes import OK, REFUSED, SOME_FAILED
from ropechat.engine.agreement import agreement_of

SCHEMA = {
    "type": "object",
    "properties": {"word": {"enum": ["cat", "dog"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["word", "n"],
    "additionalProperties": False,
}
PAGE = Path(__file__).parents[2] / "docs" / "structured-output.md"


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Door:
    return CompiledDoor(monkeypatch, capfd)


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return path


def test_run(door: Door, schema: Path, tmp_path: Path) -> None:
    code, out, _ = door("run", "A pet", "--json-schema", schema, "--json", "--seed", 1, "--temperature", 1)
    record = json.loads(out)
    assert (code, record["finish_reason"]) == (OK, "stop")
    assert record["parsed"] == json.loads(record["text"])
    assert record["parsed"]["word"] in ("cat", "dog")
    code, out, err = door("run", "A pet", "--json-schema", schema, "--json", "--max-tokens", 2)
    record = json.loads(out)
    assert (code, record["finish_reason"], record["parsed"]) == (OK, "length", None)
    assert "truncated before it matched" in err
    inline = json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMA})
    same = ["run", "A pet", "--seed", 1, "--temperature", 1, "--quiet", "--json-schema"]
    assert door(*same, inline)[:2] == door(*same, schema)[:2]
    code, out, _ = door("run", "A pet", "--choices", "yes, no", "--quiet")
    assert (code, out.strip() in ("yes", "no")) == (OK, True)
    code, out, _ = door("run", "A pet", "--regex", "[0-9]{3}", "--quiet")
    assert (code, len(out.strip())) == (OK, 3)
    lark = tmp_path / "g.lark"
    lark.write_text('start: "<" /[xyz]/ ">"')
    code, out, _ = door("run", "A pet", "--lark", lark, "--quiet")
    assert re.fullmatch(r"<[xyz]>\n", out)


def test_what_is_refused_is_refused_before_the_model(door: Door, tmp_path: Path) -> None:
    schema = tmp_path / "bad.json"
    schema.write_text('{"type": "array", "uniqueItems": true}')
    lark = tmp_path / "bad.lark"
    lark.write_text("start: <|nothing|>")
    code, out, err = door("run", "x", "--lark", lark)  # control tokens are those of the model
    assert (code, out) == (REFUSED, "")
    assert err.startswith('error: --lark: at 1(8): unknown special token: "<|nothing|>"')
    for options, words in (
        (("--json-schema", schema), 'bad.json: Unimplemented keys: ["uniqueItems"]'),
        (("--json-schema", tmp_path / "none.json"), f"--json-schema: {tmp_path}/none.json: file not found"),
        (("--json-schema", '{"uniqueItems": true}'), '--json-schema: schema: Unimplemented keys: ["unique'),
        (("--json-schema", "{"), "--json-schema: schema: JSON: "),
        (("--regex", "("), "--regex: "),
        (("--choices", "a,,b"), "--choices: "),
        (("--choices", "a", "--regex", "b"), "--choices: must not be given together with --regex"),
    ):
        code, out, err = door("run", "x", "-m", "nobody/nothing", *options)
        assert (code, out) == (REFUSED, ""), err
        assert words in err
    code, _, err = door("batch", tmp_path / "in.jsonl", "--score", "--regex", "a", "-o", tmp_path / "o.jsonl")
    assert code == REFUSED
    assert "--regex: not possible with --score" in err


def test_a_trace_shows_the_stage_and_replays(door: Door, schema: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    code, _, err = door("run", "A pet", "--json-schema", schema, "--trace", trace, "--seed", 3)
    assert code == OK, err
    meta, first, *_ = [json.loads(line) for line in trace.read_text().splitlines()]
    assert meta["sampling"]["grammar"]["kind"] == "json_schema"
    assert first["sampler"]["stages"][0]["name"] == "grammar"
    assert "grammar" in {one["cut"] for one in first["sampler"]["candidates"]}
    code, out, _ = door("inspect", "--open", trace, "--replay")
    assert (code, "0 mismatches" in out) == (OK, True)
    code, out, _ = door("inspect", "--open", trace)
    assert code == OK
    assert "grammar" in out


def batch_records(door: Door, path: Path, *options: Any) -> tuple[int, list[dict[str, Any]]]:
    code, out, _ = door("batch", path, "-o", "-", "--quiet", *options)
    return code, [json.loads(line) for line in out.splitlines()]


def test_batch_lines_and_options(door: Door, schema: Path, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"id": "option", "prompt": "A pet"},
        {"id": "text", "prompt": "A pet", "max_tokens": 3, "response_format": {"type": "text"}},
        {
            "id": "schema",
            "prompt": "A pet",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"const": [1]}},
            },
        },
        {"id": "object", "prompt": "A pet", "max_tokens": 2, "response_format": {"type": "json_object"}},
        {"id": "choice", "prompt": "A pet", "structured_outputs": {"choice": ["red", "blue"]}},
        {"id": "json", "prompt": "A pet", "structured_outputs": {"json": '{"type": "boolean"}'}},
        {"id": "bad", "prompt": "A pet", "structured_outputs": {"json": {"uniqueItems": True}}},
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, found = batch_records(door, path, "--json-schema", schema, "--temperature", 1, "--seed", 2)
    assert code == SOME_FAILED
    by_id = {record["id"]: record for record in found}
    assert by_id["option"]["parsed"]["word"] in ("cat", "dog")
    assert "parsed" not in by_id["text"]
    assert by_id["schema"]["parsed"] == [1]
    assert (by_id["object"]["parsed"], by_id["object"]["finish_reason"]) == (None, "length")
    assert by_id["choice"]["text"] in ("red", "blue")
    assert "parsed" not in by_id["choice"]
    assert by_id["json"]["parsed"] in (True, False)
    assert "structured_outputs: " in by_id["bad"]["error"]["message"]
    again = {
        window: batch_records(
            door, path, "--json-schema", schema, "--temperature", 1, "--seed", 2, "--parallel", window
        )[1]
        for window in (1, 7, 64)
    }
    assert all(records == found for records in again.values())


def test_choices_say_how_sure_they_are(door: Door, tmp_path: Path) -> None:
    rows, given = tmp_path / "in.csv", ["--choices", "yes,no,yes please", "--temperature", 0]
    rows.write_text("id,text,allowed\n" + "".join(f"{n},Is it {n * 'very '}hot?,x\n" for n in range(5)))
    one = tmp_path / "one.jsonl"
    code, _, err = door("batch", rows, "-o", one, *given, "--parallel", 1)
    records = [json.loads(line) for line in one.read_text().splitlines()]
    assert code == OK
    for record in records:
        assert list(record["choices"]) == ["yes", "no", "yes please"]
        assert record["confidence"] == record["choices"][record["text"]]
        assert 0 < record["allowed"] < 0.1
    assert "warning: in 5 of 5 rows the allowed answers had less than 10% of the model's probability" in err
    facts = json.loads((tmp_path / "one.jsonl.run.json").read_text())
    assert facts["allowed_median"] == sorted(record["allowed"] for record in records)[2]
    assert facts["allowed_low"] == 5
    assert facts["confidence_mean"] == pytest.approx(sum(record["confidence"] for record in records) / 5)
    code, out, _ = door("run", "Is it hot?", *given, "--json")
    same = json.loads(out)
    code, found = batch_records(door, rows, *given, "--limit", 1)
    assert [{name: record[name] for name in ("confidence", "allowed", "choices")} for record in found] == [
        {name: same[name] for name in ("confidence", "allowed", "choices")}
    ]
    table = ["batch", rows, "-o", tmp_path / "t.csv", *given, "--seed", 1, "--keep", "allowed"]
    door(*table)
    for number in (1, 2):
        door(*table, "--shard", f"{number}/2")
    parts = [tmp_path / f"t.{number}of2.jsonl" for number in (1, 2)]
    door("merge", tmp_path / "all.csv", *parts, "--order-of", rows)
    assert (tmp_path / "all.csv").read_bytes() == (tmp_path / "t.csv").read_bytes()
    head, first = list(csv.reader((tmp_path / "t.csv").read_text().splitlines()))[:2]
    assert head[:6] == ["id", "input_allowed", "text", "confidence", "allowed", "choices"]
    cells = dict(zip(head, first, strict=True))
    expected = [records[0][name] for name in ("confidence", "allowed", "choices")]
    assert [json.loads(cells[name]) for name in ("confidence", "allowed", "choices")] == expected


def test_fields_of_a_schema_are_columns(door: Door, tmp_path: Path) -> None:
    inner = {"type": "object", "properties": {"n": {"type": "number", "enum": [1, 2.5]}}, "required": ["n"]}
    properties = {
        "word": {"enum": ["cat", "dog"]},
        "text": {"type": "boolean"},
        "inner": {**inner, "additionalProperties": False},
        "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 1},
    }
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    given = ["--json-schema", json.dumps({**schema, "additionalProperties": False}), "--seed", 1]
    rows = tmp_path / "in.csv"
    rows.write_text("id,text\n1,A pet\n2,Two\n3,Three\n")
    found = batch_records(door, rows, *given, "--max-tokens", 90)[1]
    door("batch", rows, *given, "--max-tokens", 90, "-o", tmp_path / "t.csv")
    head, *lines = csv.reader((tmp_path / "t.csv").read_text().splitlines())
    assert head[2:11] == [
        *("confidence", "allowed", "word", "word.confidence", "parsed.text", "parsed.text.confidence"),
        *("inner.n", "inner.n.confidence", "list"),
    ]
    assert any(record["parsed"] is not None for record in found)
    for record, line in zip(found, lines, strict=True):
        cells, fields = dict(zip(head, line, strict=True)), record["fields"]
        if record["parsed"] is None:
            assert (fields, cells["word"], cells["confidence"]) == ({}, "", "")
            continue
        value = record["parsed"]
        assert cells["word"] == value["word"]
        assert json.loads(cells["list"]) == value["list"]
        assert json.loads(cells["parsed.text"]) is value["text"]
        assert float(cells["inner.n"]) == value["inner"]["n"]
        assert float(cells["word.confidence"]) == fields["word"]["confidence"]
        assert float(cells["inner.n.confidence"]) == fields["inner.n"]["confidence"]
        assert [*fields] == ["word", "text", "inner.n", "list[0]"]
        assert float(cells["allowed"]) == min(
            fields[name]["allowed"] for name in fields if "values" in fields[name]
        )
    same = json.loads(
        door("run", "A pet", *given[:2], "--seed", found[0]["seed"], "--json", "--max-tokens", 90)[1]
    )
    assert [same[name] for name in ("text", "fields")] == [found[0][name] for name in ("text", "fields")]


def test_a_parquet_table_has_the_kinds_of_a_schema(door: Door, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    rows = tmp_path / "in.csv"
    rows.write_text("id,text\n1,A pet\n2,Two\n")
    schema = (
        '{"type": "object", "properties": {"a": {"type": "boolean"}, "n": {"type": "integer", "maximum": 9}}}'
    )
    door("batch", rows, "-o", tmp_path / "t.parquet", "--json-schema", schema, "--max-tokens", 30)
    table = pq.read_table(tmp_path / "t.parquet")
    kinds = {name: str(table.schema.field(name).type) for name in ("a", "a.confidence", "n", "confidence")}
    assert kinds == {"a": "bool", "a.confidence": "double", "n": "string", "confidence": "double"}
    assert table.num_rows == 2


def test_unsure_rows_fail_and_are_taken_up_again(door: Door, tmp_path: Path) -> None:
    rows, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    rows.write_text("id,text\n" + "".join(f"{n},Is it {n * 'very '}hot?\n" for n in range(30)))
    given = ["batch", rows, "-o", out, "--choices", "hot,cold", "--temperature", 1, "--seed", 1]
    door(*given)
    sure = [json.loads(line) for line in out.read_text().splitlines()]
    below = sorted(record["confidence"] for record in sure)[25]
    again = [*given, "--fail-below", below, "--overwrite"]
    code, _, err = door(*again)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert (code, "30 rows, 5 ok, 25 failed" in err) == (SOME_FAILED, True)
    for before, after in zip(sure, found, strict=True):
        is_unsure = before["confidence"] < below
        assert after.pop("ok") is not is_unsure
        if is_unsure:
            error = after.pop("error")
            assert error["class"] == "UnsureError"
            assert f"line {before['index'] + 2}: unsure: below {below:g}: " in error["message"]
            assert after.pop("unsure") == [{"text": before["text"], "prob": before["confidence"]}]
        assert after == {name: value for name, value in before.items() if name != "ok"}
    again[-1] = "--resume"
    assert door(*again, "--parallel", 3)[0] == SOME_FAILED
    resume = [*given, "--fail-below", 0.0, "--resume"]
    code, _, err = door(*resume)
    assert (code, "fail_below: " in err) == (REFUSED, True)
    code, _, err = door(*resume, "--retry-failed")
    assert (code, "5 of an earlier run" in err) == (OK, True)
    assert [json.loads(line) for line in out.read_text().splitlines()] == sure
    assert json.loads((tmp_path / "out.jsonl.run.json").read_text())["fail_below"] == 0


def test_samples_that_agree_are_one_record(door: Door, tmp_path: Path) -> None:
    rows, schema = tmp_path / "in.csv", '{"properties": {"a": {"type": "boolean"}}, "required": ["a"]}'
    rows.write_text("id,text\n1,A pet\n2,Two\n3,Three\n")
    given = ["batch", rows, "--n", 5, "--seed", 1, "--temperature", 1, "--max-tokens", 20]
    given += ["--json-schema", schema[:-1] + ', "type": "object", "additionalProperties": false}']
    door(*given, "-o", tmp_path / "all.jsonl")
    samples = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    code, out, _ = door(*given, "-o", "-", "--agree")
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, [record["id"] for record in found]) == (OK, ["1", "2", "3"])
    for place, record in enumerate(found):
        own = samples[5 * place : 5 * place + 5]
        agreement = record.pop("agreement")
        assert agreement == agreement_of([sample["text"] for sample in own], is_json=True)
        assert {**record, "sample": 0} in [{**sample, "sample": 0} for sample in own]
        assert agreement["answers"][record["text"]] == max(agreement["answers"].values())
    for number in (1, 2):
        door(*given, "-o", tmp_path / "t.csv", "--agree", "--shard", f"{number}/2")
    parts = [tmp_path / f"t.{number}of2.jsonl" for number in (1, 2)]
    door("merge", tmp_path / "all.csv", *parts, "--order-of", rows)
    door(*given, "-o", tmp_path / "t.csv", "--agree")
    assert (tmp_path / "all.csv").read_bytes() == (tmp_path / "t.csv").read_bytes()
    head, first, *_ = csv.reader((tmp_path / "t.csv").read_text().splitlines())
    cells = dict(zip(head, first, strict=True))
    assert "sample" not in cells
    of_first = agreement_of([sample["text"] for sample in samples[:5]], is_json=True)
    assert float(cells["agreement"]) == of_first["share"]
    assert float(cells["entropy"]) == of_first["entropy"]
    assert float(cells["a.agreement"]) == of_first["fields"]["a"]["share"]
    _, out, _ = door(*given, "--agree", "--format", "openai", "-o", "-", "--fail-below", 1)
    line = json.loads(out.splitlines()[0])
    body = line["response"]["body"]
    assert [choice["message"]["content"] for choice in body["choices"]] == [
        one["text"] for one in samples[:5]
    ]
    best = body["agreement"].pop("best")
    assert body["agreement"] == of_first
    assert body["choices"][best]["confidence"] == samples[best]["confidence"]
    assert (line["response"]["status_code"], line["error"]["code"]) == (200, "unsure")
    assert body["choices"][0]["unsure"][0]["field"] == "a"
    code, _, err = door(*given, "--n", 1, "--agree", "-o", "-")
    assert (code, "--agree: requires --n" in err) == (REFUSED, True)


def test_another_schema_cannot_resume(door: Door, schema: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"prompt": "A pet"}\n')
    code, _, err = door("batch", path, "-o", out, "--json-schema", schema, "--resume", "--quiet")
    assert code == OK, err
    header = (
        json.loads((tmp_path / "out.run.json").read_text()) if (tmp_path / "out.run.json").exists() else None
    )
    assert header is None or "grammar" in header
    code, _, err = door("batch", path, "-o", out, "--choices", "a", "--resume", "--quiet")
    assert code == REFUSED
    assert "grammar" in err


@pytest.mark.slow
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    launcher = Path(sys.executable).with_name("ropechat")
    if not launcher.exists() or shutil.which("bash") is None:
        pytest.skip("ropechat is not installed beside this Python")
    text = PAGE.read_text(encoding="utf-8")
    (shell,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    environ = {"PATH": f"{launcher.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "ROPECHAT_CACHE": "off"}
    done = subprocess.run(["bash", "-euc", shell], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (python,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(python, str(PAGE), "exec"), names)
    assert isinstance(json.loads(names["text"])["n"], int)
