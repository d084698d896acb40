"""The results of a benchmark: values by name and round, and their medians, as a table or a JSON object.

Medians omit rounds with a memory bandwidth below 0.7 of the best: other programs were running.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropechat.util.records import aligned

SCHEMA = "ropechat.bench/1"
QUIET = 0.7
"""The minimum share of the best memory bandwidth for a round to count."""


@dataclass(frozen=True)
class Spread:
    """The median and range of several values."""

    median: float
    min: float
    max: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values), tuple(values))

    def record(self) -> dict[str, Any]:
        return {"median": self.median, "min": self.min, "max": self.max, "values": list(self.values)}


def find_quiet_rounds(probes: Sequence[float]) -> list[bool]:
    """Which rounds count, by their memory bandwidths."""
    return [probe >= QUIET * max(probes) for probe in probes]


@dataclass
class Rounds:
    """The measurements of one number of threads, in seconds, bytes or tokens per second."""

    load: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    values: list[dict[str, float]] = field(default_factory=list)
    load_averages: list[float | None] = field(default_factory=list)

    def add(self, values: dict[str, float], load_average: float | None) -> None:
        self.values.append(values)
        self.load_averages.append(load_average)

    def quiet_rounds(self) -> list[dict[str, float]]:
        keep = find_quiet_rounds([values["memory_read"] for values in self.values])
        return [values for values, kept in zip(self.values, keep, strict=True) if kept]

    def spreads(self) -> dict[str, Spread]:
        """Spreads by name: the measurements of the rounds, then `load_s`, `ttft_s` and `peak_bytes`."""
        kept = self.quiet_rounds()
        found = {name: Spread.of([values[name] for values in kept]) for name in kept[0]}
        for name, own in (("load_s", self.load), ("ttft_s", self.start), ("peak_bytes", self.peak)):
            if own:
                found[name] = Spread.of(own)
        return found


@dataclass(frozen=True)
class Report:
    """The results of a run. rounds: by number of threads."""

    model: str
    facts: dict[str, Any]
    plan: dict[str, Any]
    rounds: dict[int, Rounds]

    def record(self) -> dict[str, Any]:
        """The object of --json: every value of the rounds that count."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            **self.facts,
            "plan": self.plan,
            "results": [
                {
                    "threads": threads,
                    "discarded_rounds": len(rounds.values) - len(rounds.quiet_rounds()),
                    "load_averages": rounds.load_averages,
                    **{name: spread.record() for name, spread in rounds.spreads().items()},
                }
                for threads, rounds in self.rounds.items()
            ],
        }

    def table(self) -> str:
        """A table with a column for each number of threads."""
        facts, plan = self.facts, self.plan
        rounds = f"{plan['rounds']} round{'s' * (plan['rounds'] > 1)}"
        head = f"{self.model}, {facts['dtype']}, {facts['isa']}: median (min-max) of {rounds}"
        titles = ["", "", *(f"{n} thread{'s' * (n > 1)}" for n in self.rounds)]
        spreads = [own.spreads() for own in self.rounds.values()]
        rows = [titles]
        for name, title, unit, scale, digits in _metrics(plan):
            if name in spreads[0]:
                rows.append([title, unit, *(_cell(found.get(name), scale, digits) for found in spreads)])
        rows.append(["weights", "MB", *[f"{facts['weight_bytes'] / 1e6:.1f}"] * len(spreads)])
        rows.append(["load average", "", *(_averages(own) for own in self.rounds.values())])
        rows.append(["rounds left out", "", *(_left_out(own) for own in self.rounds.values())])
        return "\n".join([head, *aligned(rows, 2)])


Metric = tuple[str, str, str, float, int]  # name, title, unit, values are divided by, digits


def _metrics(plan: dict[str, Any]) -> Iterator[Metric]:
    yield "prefill", f"prefill {plan['prefill']}", "tokens/s", 1, 1
    yield "decode", f"decode {plan['decode']}", "tokens/s", 1, 1
    yield "decode_at_depth", f"decode {plan['depth_decode']} at {plan['depth']}", "tokens/s", 1, 1
    for count in plan["batches"]:
        yield f"batch_{count}", f"decode of {count} sequences", "tokens/s", 1, 1
    yield "ttft_s", "start to first token", "ms", 1e-3, 0
    yield "load_s", "load", "ms", 1e-3, 0
    yield "memory_read_1", "memory read, 1 thread", "GB/s", 1e9, 1
    yield "memory_read", "memory read", "GB/s", 1e9, 1
    yield "decode_share", "decode reads of it", "%", 0.01, 0
    yield "peak_bytes", "peak memory", "MB", 1e6, 1


def _cell(spread: Spread | None, scale: float, digits: int) -> str:
    if spread is None:
        return "–"
    middle, low, high = (f"{value / scale:.{digits}f}" for value in (spread.median, spread.min, spread.max))
    return f"{middle} ({low}-{high})"


def _averages(rounds: Rounds) -> str:
    known = [value for value in rounds.load_averages if value is not None]
    return f"{min(known):.2f}-{max(known):.2f}" if known else "–"


def _left_out(rounds: Rounds) -> str:
    return str(len(rounds.values) - len(rounds.quiet_rounds()))
