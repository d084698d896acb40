"""How much of which subject a run does, from which random numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from report import Outcome, Report

from ropechat.errors import RopechatError


@dataclass(frozen=True)
class Run:
    """count: cases per kind. types: kinds that are wanted, empty for all. folder: where cases are kept.

    real: the folder of published vocabularies, or None. gguf: more files with vocabularies.
    """

    seed: int
    count: int
    types: frozenset[str]
    folder: Path
    real: Path | None
    gguf: tuple[Path, ...] = ()

    def wants(self, kind: str) -> bool:
        return not self.types or kind in self.types

    def generator(self, *names: object) -> np.random.Generator:
        """Random numbers that depend on the seed and these names alone, not on what ran before."""
        return np.random.default_rng([self.seed, *(sum(map(ord, str(name))) for name in names)])


def attempt(report: Report, subject: str, kind: str, check: Callable[[], str], **case: Any) -> Outcome:
    """Run a check, which says what differs ("" for nothing), and count its outcome."""
    try:
        said = check()
    except RopechatError as error:
        report.add(subject, kind, Outcome.REFUSED, reason_of(error))
        return Outcome.REFUSED
    except Exception as error:
        report.fail(subject, kind, Outcome.CRASH, f"{type(error).__name__}: {error}", **case)
        return Outcome.CRASH
    if said:
        report.fail(subject, kind, Outcome.WRONG, said, **case)
        return Outcome.WRONG
    report.add(subject, kind, Outcome.EQUAL)
    return Outcome.EQUAL


def reason_of(error: BaseException) -> str:
    """An error without the file that it names: what refusals are tallied by."""
    text = str(error)
    for part in text.split(": ")[:1]:
        if "/" in part:
            text = text[len(part) + 2 :]
    return text[:160]
