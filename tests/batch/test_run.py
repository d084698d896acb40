"""A batch as calls from Python: the example of docs/batch.md, and the bytes of the command."""

import re
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door
from model_folders import byte_folder

import ropechat
from ropechat.batch.findings import Findings
from ropechat.errors import BatchInputError

DOCS = Path(__file__).parents[2] / "docs" / "batch.md"


def test_the_example_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, "docs/batch.md", "exec"), {})
    assert capsys.readouterr().out == "2 0\n"
    assert Path("answers.jsonl").read_text().count("\n") == 2


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Door:
    return Door(monkeypatch, capfd)


class Told(ropechat.BatchWatcher):
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.done = 0
        self.left: list[tuple[str, bool]] = []

    def progress(self, report: Any) -> None:
        self.done = report.done

    def failure(self, text: str) -> None:
        self.failures.append(text)

    def stopped(self, where: str, *, resumable: bool) -> None:
        self.left.append((where, resumable))


def test_the_same_bytes_as_the_command(door: Door, tmp_path: Path) -> None:
    model, source = byte_folder(tmp_path / "model"), tmp_path / "in.jsonl"
    source.write_text('{"id": 1, "prompt": "ab"}\n{"id": 2}\n{"id": 3, "prompt": "c", "n": 2}\n')
    options = ["-m", model, "--raw", "--seed", 3, "--max-tokens", 4, "--quiet"]
    assert door("batch", source, "-o", tmp_path / "command.jsonl", *options)[0] == 3
    spec = ropechat.BatchSpec(
        source,
        ropechat.ModelSpec(str(model), raw=True),
        prompts=ropechat.PromptOptions(raw=True),
        sampling=ropechat.Sampling(max_tokens=4, seed=3),
    )
    told, out = Told(), tmp_path / "python.jsonl"
    result = ropechat.run_to_file(spec, out, watcher=told)
    assert out.read_bytes() == (tmp_path / "command.jsonl").read_bytes()
    assert (result.totals.ok, result.totals.failed, told.done, len(told.failures)) == (3, 1, 4, 1)
    pieces: list[str] = []
    ropechat.run_to_stream(spec, pieces.append)
    assert "".join(pieces) == out.read_text()
    with pytest.raises(BatchInputError, match="exists"):
        ropechat.run_to_file(spec, out)


def test_a_run_that_fails_can_be_resumed(door: Door, tmp_path: Path) -> None:
    model, source = byte_folder(tmp_path / "model"), tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"id": {n}, "prompt": "{"ab" * n}"}}\n' for n in range(1, 9)))
    sampling = ropechat.Sampling(max_tokens=3, seed=1)
    spec = ropechat.BatchSpec(source, ropechat.ModelSpec(str(model), raw=True), sampling=sampling, window=1)

    class Broken(Told):
        def progress(self, report: Any) -> None:
            if report.ok == 3:
                raise OSError("no more")

    broken, out = Broken(), tmp_path / "out.jsonl"
    with pytest.raises(OSError, match="no more"):
        ropechat.run_to_file(spec, out, watcher=broken)
    assert not out.exists()
    assert broken.left == [(f"{out}.journal contains 3 results", True)]
    result = ropechat.run_to_file(spec, out, resume=True)
    assert (result.report.found, result.totals.ok) == (3, 8)
    whole = tmp_path / "whole.jsonl"
    ropechat.run_to_file(spec, whole)
    assert whole.read_bytes() == out.read_bytes()


def test_choices_that_are_not_the_likeliest_are_counted() -> None:
    records = [
        {"choices": {"a": 0.4, "b": 0.6}, "confidence": 0.4, "allowed": 0.9},
        {"choices": {"a": 0.4, "b": 0.6}, "confidence": 0.6, "allowed": 0.9},
        {"choices": {"a": 0.4, "b": 0.6}, "confidence": None, "allowed": 0.9},  # cut
    ]
    for greedy in (True, False):
        findings = Findings(greedy=greedy)
        for record in records:
            findings.add(record)
        told = [line.partition(",")[0] for line in findings.lines()]
        assert told == ["note: in 1 of 2 rows another choice is more probable than the answer"] * greedy
