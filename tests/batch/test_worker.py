"""The engine of a node: rows that arrive while others are in progress give the records of one run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_folders import byte_folder, load_fake

from ropechat.batch.output import Sink
from ropechat.batch.reader import BatchReader, BatchRow, RowOptions
from ropechat.batch.runner import compute_rows
from ropechat.batch.spec import BatchSpec, PromptOptions
from ropechat.batch.worker import Worker, least_isa
from ropechat.engine.engine import Engine
from ropechat.errors import InternalError, RequestError
from ropechat.sampling import Sampling

SAMPLING = Sampling(temperature=1.0, max_tokens=5)


class Kept(Sink):
    """Keeps records."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def write(self, row: BatchRow, record: Any) -> None:
        self.records.append(record)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return load_fake(monkeypatch, byte_folder(tmp_path / "model"))


def read(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> list[BatchRow]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(BatchReader(path, options=RowOptions(**options)))


def collect(worker: Worker, tasks: list[tuple[BatchRow, list[int]]], count: int) -> list[Any]:
    """Hand the rows over a few at a time; return `count` records by row and sample."""
    found: list[Any] = []
    while len(found) < count:
        found += worker.exchange([tasks.pop(0) for _ in tasks[:3]], 5)
    return sorted(found, key=lambda record: (record["index"], record["sample"]))


def test_rows_that_arrive_later_get_the_records_of_one_run(engine: Engine, tmp_path: Path) -> None:
    rows = read(tmp_path, [{"id": n, "prompt": "ab" * n, "max_tokens": 1 + n % 4} for n in range(1, 20)])
    spec, whole = BatchSpec(Path(), prompts=PromptOptions(raw=True, samples=2), sampling=SAMPLING), Kept()
    compute_rows(engine, rows, whole, spec, 3)
    worker = Worker(engine, replace(spec, window=4), 3)
    found = collect(worker, [(row, [0, 1]) for row in rows], 38)
    assert worker.exchange([], 0) == []
    found += collect(worker, [(rows[0], [1])], 1)  # after a pause, one sample of a row
    worker.close()
    wanted = sorted(whole.records, key=lambda record: (record["index"], record["sample"]))
    for record in (*wanted, *found):
        record.pop("cached_tokens")
    assert found == [*wanted, wanted[1]]
    assert worker.made_tokens >= sum(record["usage"]["completion_tokens"] for record in wanted)


def test_scores(engine: Engine, tmp_path: Path) -> None:
    lines = [{"id": n, "prompt": "a", "choices": ["b", "cd"], "answer": n % 2} for n in range(9)]
    rows = read(tmp_path, lines, score=True)
    worker = Worker(engine, BatchSpec(Path(), rows=RowOptions(score=True), window=4), 0)
    found = collect(worker, [(row, [0]) for row in rows], 9)
    worker.close()
    assert [record["correct"] for record in found] == [
        record["best"] == n % 2 for n, record in enumerate(found)
    ]


def test_what_ends_the_computation_is_raised(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise InternalError("broken")

    monkeypatch.setattr(engine, "generate_many", broken)
    worker = Worker(engine, BatchSpec(Path(), prompts=PromptOptions(raw=True)), 0)
    with pytest.raises(InternalError, match="broken"):
        worker.exchange([(read(tmp_path, [{"prompt": "a"}])[0], [0])], 5)


@pytest.mark.parametrize(
    ("found", "least"),
    [
        (["amx"], "amx"),
        (["avx512", "avx512-vnni"], "avx512"),
        (["avx-vnni", "amx"], "avx2"),
        (["avx-vnni"], "avx-vnni"),
        (["scalar", "avx2"], "scalar"),
        (["neon-dotprod", "neon-i8mm"], "neon-dotprod"),
    ],
)
def test_the_instruction_set_that_all_nodes_have(found: list[str], least: str) -> None:
    assert least_isa(found) == least


def test_nodes_of_different_architectures_share_no_instruction_set() -> None:
    with pytest.raises(RequestError, match=r"x86-64 and Arm processors \(avx2, neon\).*--any-isa"):
        least_isa(["avx2", "neon"])
    with pytest.raises(InternalError, match="unknown instruction set 'sve'"):
        least_isa(["avx2", "sve"])
