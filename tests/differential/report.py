"""What a run found: how many cases had which outcome, why, and every case that differs."""

import json
import time
from collections import Counter, defaultdict
from enum import StrEnum
from pathlib import Path
from typing import Any

KEPT = 50
"""Cases of one kind and outcome that the report lists; the others are counted."""


class Outcome(StrEnum):
    """equal: as the reference. explained: different for a named cause that is no defect. refused: ropechat
    names what it does not compute. skipped: the reference itself has no answer. wrong, crash: defects."""

    EQUAL = "equal"
    EXPLAINED = "explained"
    REFUSED = "refused"
    SKIPPED = "skipped"
    WRONG = "wrong"
    CRASH = "crash"


DEFECTS = (Outcome.WRONG, Outcome.CRASH)


class Report:
    """The outcomes of a run, written to report.json and report.txt of a folder."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self._settings = settings
        self._started = time.monotonic()
        self._counts: dict[tuple[str, str], Counter[Outcome]] = defaultdict(Counter)
        self._reasons: dict[tuple[str, str, Outcome], Counter[str]] = defaultdict(Counter)
        self._cases: list[dict[str, Any]] = []
        self._listed: Counter[tuple[str, str, Outcome]] = Counter()

    def add(self, subject: str, kind: str, outcome: Outcome, reason: str = "", count: int = 1) -> None:
        """Count cases of a kind (a model type, a tokenizer, a stage, a layout) of a subject."""
        if count:
            self._counts[subject, kind][outcome] += count
            if reason:
                self._reasons[subject, kind, outcome][reason] += count

    def fail(self, subject: str, kind: str, outcome: Outcome, reason: str, **case: Any) -> None:
        """Count a defect; `case` is what it takes to see it again."""
        self.add(subject, kind, outcome, reason)
        self._listed[subject, kind, outcome] += 1
        if self._listed[subject, kind, outcome] <= KEPT:
            entry = {"subject": subject, "kind": kind, "outcome": outcome, "reason": reason, **case}
            self._cases.append(entry)
            print(
                f"{outcome.upper()} {subject} {kind}: {reason} {json.dumps(case, default=str):.300}",
                flush=True,
            )

    def line(self, subject: str, kind: str) -> str:
        """The counts of one kind."""
        counts = self._counts[subject, kind]
        said = ", ".join(f"{outcome} {counts[outcome]}" for outcome in Outcome if counts[outcome])
        return f"{subject} {kind}: {said or 'nothing'}"

    def done(self, subject: str, kind: str) -> None:
        """Print the counts of a kind that is finished."""
        print(self.line(subject, kind), flush=True)

    def merge(self, other: "Report") -> None:
        """Add the outcomes of another process, whose kinds are not here yet."""
        self._counts.update(other._counts)
        self._reasons.update(other._reasons)
        self._cases += other._cases

    @property
    def is_clean(self) -> bool:
        """Whether there is no defect."""
        return not any(counts[outcome] for counts in self._counts.values() for outcome in DEFECTS)

    def write(self) -> None:
        """Write both files; print the sums."""
        total: dict[str, Counter[Outcome]] = defaultdict(Counter)
        for (subject, _), counts in self._counts.items():
            total[subject].update(counts)
        sums = {subject: {str(o): n for o, n in counts.items()} for subject, counts in total.items()}
        kinds = [
            {
                "subject": subject,
                "kind": kind,
                "outcomes": {str(outcome): count for outcome, count in counts.items()},
                "reasons": {
                    str(outcome): dict(self._reasons[subject, kind, outcome].most_common())
                    for outcome in counts
                    if self._reasons[subject, kind, outcome]
                },
            }
            for (subject, kind), counts in self._counts.items()
        ]
        seconds = round(time.monotonic() - self._started, 1)
        whole = {
            "settings": self._settings,
            "seconds": seconds,
            "sums": sums,
            "kinds": kinds,
            "cases": self._cases,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(whole, indent=1, ensure_ascii=True, default=str)
        (self.folder / "report.json").write_text(text, encoding="utf-8")
        (self.folder / "report.txt").write_text("\n".join(self._text(sums)) + "\n", encoding="utf-8")
        print(f"{seconds} s; {self.folder / 'report.txt'}")
        said = (
            f"{subject}: " + ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
            for subject, counts in sums.items()
        )
        print(f"differential runs: {'; '.join(said)}", flush=True)

    def _text(self, sums: dict[str, dict[str, int]]) -> list[str]:
        lines = [f"{name}: {value}" for name, value in self._settings.items()]
        for subject, counts in sums.items():
            lines += ["", f"{subject}: " + ", ".join(f"{count} {name}" for name, count in counts.items())]
            for (other, kind), _ in self._counts.items():
                if other != subject:
                    continue
                lines.append("  " + self.line(subject, kind).removeprefix(f"{subject} "))
                for outcome in Outcome:
                    for reason, count in self._reasons[subject, kind, outcome].most_common():
                        lines.append(f"    {outcome} {count}: {reason}")
        return lines
