"""The model of many threads. No test looks at how fast anything was."""

import os
import sys
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from models import TINY

from ropechat.engine.bench import shapes

BANDWIDTH, START = 10e9, 3e-6
MOST = {1: BANDWIDTH, 2: 2.5 * BANDWIDTH}


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "bench"))
    import scaling

    return scaling


@pytest.fixture
def model(scaling: ModuleType) -> ModuleType:
    import scaling_model

    return scaling_model


def product(size: float, count: int = 30, parts: int = 1000) -> dict[str, Any]:
    """A job that reads as fast as it can."""
    seconds = count * (START + size / BANDWIDTH)
    return {
        "phase": "gate_up_proj",
        "parts": parts,
        "count": count,
        "seconds": seconds,
        "bytes": count * size,
    }


def step(*jobs: dict[str, Any], rows: int = 1) -> dict[str, Any]:
    return {"name": "decode", "rows": rows, "serial_s": 1e-3, "jobs": list(jobs)}


def test_products_scale_with_the_bandwidth_and_their_start_does_not(
    scaling: ModuleType, model: ModuleType
) -> None:
    machine, shape = model.Machine(MOST, start=START, transfer=0.0), scaling.SHAPES[scaling.MODELS[0]]
    table = step(product(1e6))
    assert model.predict(table, shape, 1, machine) == pytest.approx(1e-3 + 30 * (START + 1e-4), rel=0.01)
    assert model.predict(table, shape, 2, machine) == pytest.approx(1e-3 + 30 * (START + 4e-5), rel=0.01)
    assert model.predict(table, shape, 64, machine) > 1e-3 + 30 * START
    narrow = model.Machine({1: BANDWIDTH}, 4 * BANDWIDTH)
    four, many = (model.predict(table, shape, n, narrow) for n in (4, 64))
    assert four < many < 1.05 * four  # the memory's limit, and the parts of a thread are fewer


def test_the_constants_are_found_in_tables_that_were_made_of_them(model: ModuleType) -> None:
    decode = step(product(0.4e6), product(2e6), product(600e6, 1))
    assert model.start_of(decode) == pytest.approx(START, rel=0.05)
    assert model.bandwidth_of(step(product(600e6, 1))) == pytest.approx(BANDWIDTH, rel=0.001)


@pytest.mark.parametrize(("parts", "threads", "least"), [(64, 64, 1), (18, 2, 9), (3, 2, 2), (1000, 64, 16)])
def test_parts_are_never_faster_than_the_fullest_thread(
    model: ModuleType, parts: int, threads: int, least: int
) -> None:
    machine = model.Machine(MOST, transfer=0.0)
    found = model.simulate(parts, parts * 1e-5, threads, machine)
    assert least * 1e-5 <= found < (least + 1.5) * 1e-5


def test_threads_wait_for_lines_of_others(scaling: ModuleType, model: ModuleType) -> None:
    machine = model.Machine(MOST, read=5e-9, written=5e-9)
    shape = scaling.SHAPES[scaling.MODELS[0]]
    of = [shape.exchange("gate_up_proj", 32, threads, machine) for threads in (1, 2, 64)]
    # Half of 576 rounded values by each thread, half of 1,536 that it writes itself.
    assert of[1] == pytest.approx(32 * (576 * 1.375 / 64 + 1536 * 4 / 64 / 2) * 5e-9 / 2)
    assert of[0] == 0.0
    # Of many threads each reads all of the input.
    assert of[2] > 32 * 576 * 1.375 / 64 * 5e-9 * 63 / 64


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or (os.cpu_count() or 1) < 2, reason="needs Linux, two processors"
)
def test_validation(
    scaling: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    monkeypatch.setattr(scaling, "MODELS", ("tiny q8_0",))
    monkeypatch.setattr(scaling, "SHAPES", {"tiny q8_0": scaling.Shape(64, 128, 2, 4, 2, 16, 256, 1.06)})
    given = ["--validate", "--table", "--seconds", "0", "--folder", str(tmp_path), "--markdown"]
    monkeypatch.setattr(sys, "argv", ["scaling.py", *given])
    scaling.main()
    out = capfd.readouterr().out
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows if "tiny" in row[0]] == [
        *(f"| {work} of tiny q8_0" for work in ("decode", "batch", "prefill")),
        *["| decode of tiny q8_0"] * 2,
    ]
    for row in rows:
        if "tiny" in row[0]:
            cells = [cell.strip(" |") for cell in row[2:]]
            # An error may be zero, a time may not.
            assert all(isfinite(float(cell.rstrip("%"))) for cell in cells), row
            assert all(float(cell) > 0 for cell in cells if not cell.endswith("%")), row
