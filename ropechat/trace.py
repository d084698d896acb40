"""Records of tokens and their probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "context", "cancelled"]


@dataclass(frozen=True)
class Row:
    """Read-out of one logit row."""

    position: int
    top: tuple[tuple[int, float], ...]
    logsumexp: float
    entropy: float
    top_mass: float


@dataclass(frozen=True)
class Stage:
    """What one sampler stage left."""

    name: str
    kept: int
    mass: float
    entropy: float


@dataclass(frozen=True)
class Step:
    """One generated token."""

    id: int
    bytes: bytes
    text: str
    logprob: float
    rank: int
    entropy: float
    top: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    position: int = 0
    row: Row | None = None
    stages: tuple[Stage, ...] = ()
    u: float | None = None
