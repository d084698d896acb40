"""Predict the time of a step with many threads from what one thread did, and check it with two.

    python tests/bench/scaling.py --validate                  # two models, a minute for each work
    python tests/bench/scaling.py --table --markdown          # 1 to 64 threads, also of larger models

Everything that this prints for more threads than were measured is a model's figure, not a measurement. On a
busy machine as root: `chrt -f 10 python ...`.

The model is in `scaling_model.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling_model import Machine, Shape, Table, bandwidth_of, machine_of, predict
from scaling_turns import WORKS, make_probe, prepare, turns
from subject import make_model

from ropechat.util.records import aligned

MOST = 64
"""Threads of the table."""
SHAPES = {
    "smollm2-135m q8_0": Shape(576, 1536, 30, 9, 3, 64, 49152, 1.06),
    "llama-3.2-1b q4_k_m": Shape(2048, 8192, 16, 32, 8, 64, 128256, 0.62),
    "llama-3.1-8b q4_k_m": Shape(4096, 14336, 32, 32, 8, 128, 128256, 0.6),
    "qwen3-30b-a3b q4_k_m": Shape(2048, 768, 48, 32, 4, 128, 151936, 0.6, (128, 8)),
}


@dataclass(frozen=True)
class Checked:
    """Predictions beside measurements: medians of all rounds, in seconds of a step."""

    name: str
    predicted: tuple[float, float]
    measured: tuple[float, float]
    off: tuple[float, float]
    """Predicted by measured, less 1: the medians of each round's."""

    def row(self) -> list[str]:
        cells = [self.name]
        for predicted, measured, off in zip(self.predicted, self.measured, self.off, strict=True):
            cells += [f"{predicted * 1e3:.2f}", f"{measured * 1e3:.2f}", f"{off:+.1%}"]
        return cells


def check(name: str, rounds: Sequence[dict[str, Table]]) -> list[Checked]:
    """Compare for each work with the time without a clock on its phases, of the same round."""
    found = []
    for work in WORKS:
        pairs: list[list[tuple[float, float]]] = [[], []]
        for tables in (tables for tables in rounds if f"{work}/one" in tables):
            machine, one = machine_of(tables), tables[f"{work}/one"]
            for at, subject in enumerate(("one", "two")):
                pairs[at].append(
                    (predict(one, SHAPES[name], at + 1, machine), tables[f"{work}/{subject}"]["plain_s"])
                )
        if not pairs[0]:
            continue
        predicted, measured, off = (
            [statistics.median(of(*pair) for pair in both) for both in pairs]
            for of in (lambda p, m: p, lambda p, m: m, lambda p, m: p / m - 1)
        )
        found.append(
            Checked(f"{work} of {name}", *((x[0], x[1]) for x in (predicted, measured, off)))  # type: ignore[arg-type]
        )
    return found


FIXED = ("schedule", "embed", "grammar", "sample", "events", "python")
"""Phases of serial work that take as long in any model."""


def table_of(name: str, measured: str, decode: Table, machine: Machine) -> Table:
    """The decode step of a shape that was not run. decode: the measured one, of the shape `measured`."""
    shape, of = SHAPES[name], SHAPES[measured]
    fixed = sum(decode["phases_s"].get(phase, 0.0) for phase in FIXED)
    rest = max(0.0, decode["serial_s"] - fixed) * shape.layers * shape.hidden / (of.layers * of.hidden)
    jobs = shape.jobs(machine.bandwidth(1))
    for job in jobs:
        if job["phase"] not in ("attention", "read_out"):
            job["seconds"] += job["count"] * machine.start
    return {"name": "decode", "rows": 1, "serial_s": fixed + rest, "jobs": jobs}


def median_table(tables: Sequence[Table]) -> Table:
    """Tables of the same step as one: the median of each time."""

    def by_job(table: Table) -> dict[tuple[str, int], dict[str, Any]]:
        return {(job["phase"], job["parts"]): job for job in table["jobs"]}

    all_jobs = [by_job(table) for table in tables]
    jobs = []
    for key in dict.fromkeys(key for found in all_jobs for key in found):
        some = [found[key] for found in all_jobs if key in found]
        names = ("count", "seconds", "bytes", "products")
        numbers = {name: statistics.median(job[name] for job in some) for name in names}
        jobs.append({"phase": key[0], "parts": key[1]} | numbers)
    phases = {
        name: statistics.median(table["phases_s"].get(name, 0.0) for table in tables)
        for name in tables[0]["phases_s"]
    }
    serial = statistics.median(table["serial_s"] for table in tables)
    same = {name: tables[0][name] for name in ("name", "rows")}
    return same | {"serial_s": serial, "phases_s": phases, "jobs": jobs}


def many_threads(measured: dict[str, list[dict[str, Table]]], most: float) -> list[list[str]]:
    """The rows of the table. measured: rounds by model; most: bytes per second of all threads together.

    What a job costs beside its work is that of the first model, whose jobs are the smallest.
    """
    counts = [1, 2, 4, 8, 16, 32, MOST]
    rows = [["ms per token, threads:", "pool", *map(str, counts)]]
    last = next(iter(measured))
    costs = [machine_of(tables) for tables in measured[last]]
    start, read, written = (
        statistics.median(getattr(cost, fact) for cost in costs) for fact in ("start", "read", "written")
    )
    for name in SHAPES:
        last = name if name in measured else last
        one = statistics.median(bandwidth_of(tables["decode/probe one"]) for tables in measured[last])
        decode = median_table([tables["decode/many"] for tables in measured[last]])
        machine = Machine({1: one}, most, start, read, written)
        table = decode if name in measured else table_of(name, last, decode, machine)
        for pool in ("before", "now"):
            times = [predict(table, SHAPES[name], n, machine, pool) for n in counts]
            rows.append([f"decode of {name}", pool, *(f"{time * 1e3:.2f}" for time in times)])
    return rows


def constants(name: str, rounds: Sequence[dict[str, Table]]) -> str:
    machines = [machine_of(tables) for tables in rounds]
    one, two = (statistics.median(m.bandwidth(n) for m in machines) / 1e9 for n in (1, 2))
    start = statistics.median(m.start for m in machines) * 1e6
    read, written = (
        statistics.median(getattr(m, fact) for m in machines) * 1e9 for fact in ("read", "written")
    )
    return (
        f"{name}: {len(rounds)} rounds; one thread reads {one:.1f} GB/s, two {two:.1f} "
        f"({two / one:.2f} times); a job starts in {start:.1f} us; a line of the other core takes "
        f"{read:.1f} ns to read, {written:.1f} to write"
    )


def as_text(rows: Sequence[Sequence[str]], markdown: bool) -> str:
    if not markdown:
        return "\n".join(aligned(rows, 1))
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]])


MODELS = ("smollm2-135m q8_0", "llama-3.2-1b q4_k_m")


def measure(name: str, folder: Path, works: Sequence[str], seconds: float) -> list[dict[str, Table]]:
    """Rounds of a model of `MODELS`."""
    shape, dtype = name.split()
    model = make_model(shape, dtype, folder)
    size = prepare(*model)
    probe = make_probe(size, dtype, folder)
    prepare(*probe)
    return list(turns(model, probe, works, seconds, MOST))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--validate", action="store_true", help="predictions beside measurements, 1 and 2 threads"
    )
    parser.add_argument("--table", action="store_true", help="predictions for 1 to 64 threads")
    parser.add_argument("--model", choices=MODELS, action="append", help="only this one; may be repeated")
    parser.add_argument("--work", choices=WORKS, action="append", help="only this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=40, help="of turns per model")
    parser.add_argument(
        "--most", type=float, default=300, help="GB/s that the table's machine reads with all"
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ropechat-bench")
    parser.add_argument("--save", type=Path, help="write what was measured, as JSON")
    parser.add_argument("--load", type=Path, action="append", help="take what --save wrote; may be repeated")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    if not (args.validate or args.table):
        parser.error("nothing to do: give --validate, --table or both")
    names = [name for name in MODELS if name in (args.model or MODELS)]
    if args.load:
        measured = {}
        for file in args.load:
            for name, rounds in json.loads(file.read_text("utf-8")).items():
                measured.setdefault(name, []).extend(rounds)
        measured = {name: measured[name] for name in MODELS if name in measured}
    else:
        measured = {name: measure(name, args.folder, args.work or WORKS, args.seconds) for name in names}
    if args.save:
        args.save.write_text(json.dumps(measured), "utf-8")
    texts = [constants(name, rounds) for name, rounds in measured.items()]
    if args.validate:
        rows = [["ms per step", "1: model", "measured", "off", "2: model", "measured", "off"]]
        rows += [found.row() for name, rounds in measured.items() for found in check(name, rounds)]
        texts += ["", as_text(rows, args.markdown)]
    if args.table:
        rows = many_threads(measured, args.most * 1e9)
        texts += ["", "Times from a model, not measured:", "", as_text(rows, args.markdown)]
    sys.stdout.write("\n".join(texts) + "\n")


if __name__ == "__main__":
    main()
