"""Variants over the same rows: the table, the checks, what is refused, and going on after a stop."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from cli_door import Door
from model_folders import chat_folder

from ropechat.batch.grid import Check, read_grid
from ropechat.batch.grid_page import marked
from ropechat.batch.row_template import RowTemplate
from ropechat.batch.schema_check import matches, unknown_keyword
from ropechat.batch.spec import BatchSpec
from ropechat.errors import RequestError

GRID = """
least = 0.5

[[variant]]
name = "plain"
prompt = "{{ text }}"

[[variant]]
name = "short"
prompt = "{{ text }}"
max_tokens = 2
temperature = 0.5
top_k = 1

[[variant]]
name = "other"
model = "MODEL"
prompt = "x{{ text }}"

[[check]]
contains = "{{ wanted }}"

[[check]]
regex = "^[A-Z]+$"
ignore_case = true
"""


@pytest.fixture
def given(tmp_path: Path) -> list[Any]:
    rows, model = tmp_path / "in.csv", chat_folder(tmp_path / "chat")
    rows.write_text("id,text,wanted\na,ab,de\nb,bb,cd\nc,fg,zz\n")
    chat_folder(tmp_path / "second")
    (tmp_path / "grid.toml").write_text(GRID.replace("MODEL", str(tmp_path / "second")))
    options = ["--raw", "--temperature", 0, "--max-tokens", 4, "--grid", tmp_path / "grid.toml"]
    return ["batch", rows, "-m", model, *options]


def test_a_table_of_all_variants(door: Door, given: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    code, _, err = door(*given, "-o", out, "--keep", "wanted")
    table = list(csv.DictReader(out.read_text().splitlines()))
    assert [(row["id"], row["wanted"]) for row in table] == [("a", "de"), ("b", "cd"), ("c", "zz")]
    assert [row["plain"] for row in table] == ["cdef", "cdef", "hijk"]
    assert [row["short"] for row in table] == ["cd", "cd", "hi"]
    assert [row["other"] for row in table] == ["cdef", "cdef", "hijk"]
    assert [row["plain.passed"] for row in table] == ["true", "true", "false"]
    assert [row["short.passed"] for row in table] == ["false", "true", "false"]
    assert [row["differ"] for row in table] == ["true"] * 3
    assert code == 1  # a third of the short answers pass
    [line] = [line.split() for line in err.splitlines() if line.startswith("plain ") and " of " in line]
    assert line == ["plain", "2", "of", "3", "2", "3", "0", "–", "12"]
    assert "answers differ in 3 of 3 rows\n" in err
    assert "plain passes where short does not: 1 row (a)\n" in err
    lines = tmp_path / "t.jsonl"
    door(*given, "-o", lines, "--resume")
    facts = json.loads((tmp_path / "t.plain.jsonl.run.json").read_text())
    assert facts["resumed"] == 3  # the results are those of the first table
    first = json.loads(lines.read_text().splitlines()[0])
    assert (first["id"], first["input"]["wanted"], first["differ"]) == ("a", "de", True)
    assert first["variants"]["short"]["checks"] == [False, True]
    run = json.loads((tmp_path / "t.short.jsonl.run.json").read_text())
    assert (run["run_seed"], run["sampling"]["max_tokens"], run["sampling"]["top_k"]) == (0, 2, 1)
    other = json.loads((tmp_path / "t.other.jsonl.run.json").read_text())
    assert other["model"]["name"] == "second"


def test_a_grid_goes_on(door: Door, given: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    door(*given, "-o", out)
    whole = out.read_bytes()
    code, _, err = door(*given, "-o", out)
    assert (code, f"{out}: exists" in err) == (2, True)
    out.unlink()
    (tmp_path / "t.other.jsonl").unlink()
    journal = tmp_path / "t.other.jsonl.journal"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:2]))  # stopped after a row
    assert door(*given, "-o", out, "--resume")[0] == 1
    assert out.read_bytes() == whole
    assert door(*given, "-o", out, "--overwrite")[0] == 1
    assert out.read_bytes() == whole


def test_the_exit_code(door: Door, given: list[Any], tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    for text, expected in (
        ('[[variant]]\nname = "a"\nprompt = "{{ text }}"', 0),
        ('[[variant]]\nname = "a"\nprompt = "{{ text }}{{ missing }}"', 3),
        ('least = 0.0\n[[variant]]\nname = "a"\nprompt = "{{ text }}"\n[[check]]\nequals = "x"', 0),
        ('[[variant]]\nname = "a"\nprompt = "{{ text }}"\n[[check]]\nequals = "x"', 1),
    ):
        grid.write_text(text)
        code, _, err = door(*given, "-o", tmp_path / "t.csv", "--overwrite")
        assert code == expected, err


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "variant: must be a list of 1 to 32"),
        ("variant = 3", "variant: must be a list of objects"),
        ("[[variant]]", r"variant\[0\].name: must be 1 to 40 letters"),
        ('[[variant]]\nname = "a/b"', r"variant\[0\].name: must be"),
        ('[[variant]]\nname = "a"\n[[variant]]\nname = "a"', "names must be unique"),
        ('[[variant]]\nname = "a"\ntemprature = 1', r"temprature: unknown; did you mean temperature\?"),
        ('[[variant]]\nname = "a"\ntemperature = -1', r"variant\[0\]: temperature: must be"),
        ('[[variant]]\nname = "a"\nprompt = ""', "prompt: must be a text"),
        ('[[variant]]\nname = "a"\nprompt = "{{"', r"variant\[0\].prompt: "),
        ('[[variant]]\nname = "a"\nprompt = "x"\nprompt_file = "y"', "must not be given together with"),
        ('[[variant]]\nname = "a"\nprompt_file = "none.txt"', "none.txt: file not found"),
        ('[[variant]]\nname = "a"\nchoices = "x"', "choices: must be a list of texts"),
        ('[[variant]]\nname = "a"\njson_schema = {uniqueItems = true}', "Unimplemented keys"),
        ('[[variant]]\nname = "a"\n[[check]]\npython = "os"', "python: refused: a grid runs no"),
        ('[[variant]]\nname = "a"\n[[check]]\nequals = "a"\nregex = "b"', "must have one of equals"),
        ('[[variant]]\nname = "a"\n[[check]]\nequals = "a"\nignore_case = 1', "ignore_case: must be"),
        ('[[variant]]\nname = "a"\n[[check]]\nschema = "none.json"', "none.json: file not found"),
        ('[[variant]]\nname = "a"\n[[check]]\nschema = 1', r"check\[0\].schema: must be an object"),
        ('[[variant]]\nname = "a"\n[[check]]\nschema = {if = true}', "if: not a keyword that a check knows"),
        ('least = 2\n[[variant]]\nname = "a"', "least: must be a number from 0 to 1"),
        ("[[variant", r"grid\.toml: "),
        ("other = 1", "other: unknown; must be one of variant, check, least"),
    ],
)
def test_a_bad_grid_names_the_place(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(RequestError, match=what):
        read_grid(path, BatchSpec(tmp_path / "in.csv"))


def test_a_grid_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "grid.json"
    variant = {"name": "a", "choices": ["x", "y"]}
    path.write_text(json.dumps({"variant": [variant], "check": [{"equals": "x"}]}))
    grid = read_grid(path, BatchSpec(tmp_path / "in.csv"))
    assert grid.variants[0].spec.sampling.grammar is not None
    with pytest.raises(RequestError, match="file not found"):
        read_grid(tmp_path / "none.toml", BatchSpec(tmp_path / "in.csv"))


@pytest.mark.parametrize(
    ("kind", "wanted", "ignores", "text", "passes"),
    [
        ("equals", "Paris", False, " Paris\n", True),
        ("equals", "Paris", False, "paris", False),
        ("equals", "PARIS", True, "paris", True),
        ("contains", "ari", False, "Paris", True),
        ("contains", "x", False, "Paris", False),
        ("regex", "^[0-9]{4}$", False, "1945", True),
        ("regex", "^[0-9]{4}$", False, "in 1945", False),
        ("equals", "{{ city }}", False, "Rome", True),
    ],
)
def test_what_passes(kind: str, wanted: str, ignores: bool, text: str, passes: bool) -> None:
    check = Check(kind, RowTemplate.of_text(wanted), ignores)
    assert check.passes(text, {"city": "Rome"}, 0) is passes


def test_what_a_grid_does_not_do(door: Door, given: list[Any], tmp_path: Path) -> None:
    for options, words in (
        (["-o", "-"], "--grid: requires a file (-o)"),
        (["-o", tmp_path / "t.json"], "--grid: results must be csv, tsv, jsonl, html (got json)"),
        (["-o", tmp_path / "t.csv", "--n", 2], "--grid: not possible with --n"),
        (["-o", tmp_path / "t.csv", "--keep", "all"], "--keep: must name the fields"),
    ):
        code, _, err = door(*given, *options)
        assert (code, words in err) == (2, True), err


def test_a_page_of_a_grid(door: Door, given: list[Any], tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(grid.read_text() + '\n[[check]]\nschema = {type = "string"}\n')
    code, _, err = door(*given, "-o", tmp_path / "t.html", "--keep", "text")
    assert code == 1, err
    page = (tmp_path / "t.html").read_text()
    assert page.count('<tr id="row-') == 3
    assert '<tr id="row-2" class="differs failed">' in page
    assert "<small>text: fg</small>" in page
    assert "<mark>cd</mark><small>" in page  # the short answer, which begins with the same letters
    assert "<th" in page
    assert "schema 3</th>" in page
    assert "not passed</span>" in page


@pytest.mark.slow
def test_the_page_in_a_browser(door: Door, given: list[Any], tmp_path: Path) -> None:
    door(*given, "-o", tmp_path / "t.html")
    browser = Browser(tmp_path / "browser")
    try:
        page = browser.open(tmp_path / "t.html")
        rows = "[...document.querySelectorAll('tbody tr[id]')]"
        seen = f"{rows}.filter(row => row.offsetParent).map(row => row.id)"
        assert page.value(seen) == ["row-0", "row-1", "row-2"]
        page.click('input[value="fails"] + span')
        assert page.value(seen) == ["row-0", "row-2"]
        assert page.value("byId('count').textContent") == "2"
        page.value("location.hash = '#row-1'")
        page.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert page.value(seen) == ["row-0", "row-1", "row-2"]
        assert page.faults() == []
    finally:
        browser.close()


def test_marks_are_around_what_is_new() -> None:
    assert marked("It is <b> red.", "It is blue.") == "It is <mark>&lt;b&gt; red</mark>."
    assert marked("same", "same") == "same"
    assert marked("", "x") == ""


SCHEMAS: list[Any] = [
    {"type": "integer", "minimum": 2, "exclusiveMaximum": 9, "multipleOf": 0.5},
    {"type": ["string", "null"], "minLength": 1, "maxLength": 3, "pattern": "^a"},
    {"enum": [1, "1", None, [1, {"a": True}]]},
    {"const": {"a": [1, 2]}},
    {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}, "maxItems": 3},
    {"type": "array", "items": {"type": "number"}, "minItems": 2},
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/b"}},
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"b": {"anyOf": [{"type": "boolean"}, {"$ref": "#"}]}},
    },
    {"patternProperties": {"^x": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
    {"oneOf": [{"type": "number"}, {"type": "integer"}], "not": {"const": 1.5}},
    {"allOf": [{"minProperties": 1}, {"maxProperties": 2}]},
    True,
    False,
]
VALUES: list[Any] = [
    *(0, 1, 2, 2.0, 2.5, 2.3, 9, True, None, "", "a", "abc", "abcd", "b", "1", [], [1], [1, "x"], ["x", 1]),
    *([1, 2], [1, {"a": True}], [1, {"a": 1}], {}, {"a": 1}, {"a": [1, 2]}, {"a": 1, "b": True}, {"x": 1}),
    *({"a": 1, "b": {"a": 2}}, {"a": 1, "b": {"a": "2"}}, {"a": 1, "c": 1}, {"x": None, "y": 3}, 1.5),
]


def test_schemas_are_checked_as_the_package_jsonschema_does() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    for schema in SCHEMAS:
        assert unknown_keyword(schema) is None
        validator = jsonschema.Draft202012Validator(schema)
        found = [matches(schema, json.dumps(value)) for value in VALUES]
        assert found == [validator.is_valid(value) for value in VALUES], schema
    assert not matches(True, "{cut")
    assert not matches(True, "NaN")
    assert unknown_keyword({"properties": {"if": {"items": {"uniqueItems": True}}}}) == "uniqueItems"
