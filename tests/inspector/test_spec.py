"""Inspecting as a call from Python: the example of docs/inspect.md, and the bytes of the command."""

import re
from pathlib import Path
from typing import Any

import pytest
from cli_door import CompiledDoor, Door

import ropechat
from ropechat.errors import BatchInputError, RequestError, RopechatError
from ropechat.trace import TokenScore

DOCS = Path(__file__).parents[2] / "docs" / "inspect.md"
TEXT = "The cat sat on the mat.\nIt slept."


def test_the_example_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (section,) = re.findall(r"## From Python\n(.*?)\n## ", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    offline = code.replace('ModelSpec("smollm2:135m")', 'ModelSpec("builtin")')
    assert offline != code
    exec(compile(offline, "docs/inspect.md", "exec"), {})
    assert capsys.readouterr().out.startswith("file,i,id,token,bytes,start,end,role,logprob,")
    assert "lookup1_string" in Path("capital.csv").read_text()


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Door:
    return CompiledDoor(monkeypatch, capfd)


@pytest.fixture(scope="module")
def engine() -> ropechat.Engine:
    return ropechat.ModelSpec("builtin", raw=True).load()


@pytest.mark.parametrize(
    ("suffix", "options", "fields"),
    [
        ("jsonl", (), {}),
        ("csv", ("--candidates", 2), {"top_k": 2}),
        ("html", ("--look-up", " dog"), {"look_up": [" dog"]}),
        ("svg", (), {}),
        ("txt", ("--window", 8), {"window": 8}),
        ("csv", ("--by", "line", "--sort", "bits"), {"view": "lines", "sort": "bits"}),
        ("csv", ("--by", "word", "--below", 0.5), {"view": "words", "below": 0.5}),
        ("svg", ("--chart", "--unit", "nat"), {"view": "chart", "unit": "nat"}),
        ("txt", ("--chart",), {"view": "chart"}),
        ("jsonl", ("--lens", "--layers", "0,2"), {"view": "lens", "layers": [0, 2]}),
        ("txt", ("--attention",), {"view": "attention"}),
    ],
)
def test_the_same_bytes_as_the_command(
    door: Door, engine: ropechat.Engine, tmp_path: Path, suffix: str, options: Any, fields: dict[str, Any]
) -> None:
    file, ours, theirs = tmp_path / "a.txt", tmp_path / f"python.{suffix}", tmp_path / f"command.{suffix}"
    file.write_text(TEXT)
    asked: Any = ("-f", file) if "view" not in fields else (TEXT,)
    assert door("inspect", "-m", "builtin", *asked, "-o", theirs, *options)[0] == 0
    spec = ropechat.InspectSpec([file if "view" not in fields else TEXT], **fields)
    spec.write(ours, engine)
    assert ours.read_bytes() == theirs.read_bytes()
    with pytest.raises(BatchInputError, match="exists"):
        spec.write(ours, engine)


def test_who_watches_hears_of_tokens_notes_and_failures(engine: ropechat.Engine, tmp_path: Path) -> None:
    told: list[str] = []

    class Told(ropechat.InspectWatcher):
        def note(self, text: str) -> None:
            told.append(text)

        def failure(self, name: str, error: RopechatError) -> None:
            told.append(f"{name} failed")

        def scored(self, token: TokenScore) -> None:
            told.append(token.text)

    good, missing = tmp_path / "good", tmp_path / "missing"
    good.write_text("The cat sat")
    spec = ropechat.InspectSpec([missing, good], window=2)
    assert "".join(spec.pieces(engine, Told())).startswith(f"{good}\n")
    assert told[0] == f"{missing} failed"
    assert "in windows of 2" in told[1]
    assert "".join(told[2:]) == "The cat sat"
    with pytest.raises(RequestError, match="missing: file not found"):
        list(ropechat.InspectSpec([missing]).pieces(engine))
    with pytest.raises(RequestError, match="form: must be one of table, jsonl, csv"):
        ropechat.InspectSpec([TEXT], view="lines", form="svg").pieces(engine)
    with pytest.raises(RequestError, match="lens: must be of one text"):
        ropechat.InspectSpec([TEXT, TEXT], view="lens").pieces(engine)
