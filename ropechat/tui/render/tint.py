"""Tints of tokens in five levels. Level 0 is no tint, so ordinary text stays plain."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropechat.conversation import surprisal_bits
from ropechat.inspector.explain import explain

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.sampling import Sampling
    from ropechat.trace import Step


@dataclass(frozen=True)
class Tint:
    """A figure of a token, the values at which levels 1 to 4 begin, and their unit."""

    name: str
    limits: tuple[float, float, float, float]
    unit: str
    figure: Callable[[Step, Sampling | None], float]

    def level(self, step: Step, sampling: Sampling | None) -> int:
        """The level of a token, 0 to 4; 0 if its figure is unknown."""
        value = self.figure(step, sampling)
        return 0 if math.isnan(value) else bisect_right(self.limits, value)


def _sampled_bits(step: Step, sampling: Sampling | None) -> float:
    if sampling is None:
        return math.nan
    chosen = explain(step, sampling).chosen
    if chosen.sampled is None or chosen.sampled <= 0.0:
        return math.nan
    return -math.log2(chosen.sampled)


TINTS = (
    Tint("surprisal", (1.0, 2.0, 4.0, 8.0), "bits", lambda step, _: surprisal_bits(step)),
    Tint("sampled", (1.0, 2.0, 4.0, 8.0), "bits", _sampled_bits),
    Tint("entropy", (1.0, 2.0, 3.0, 5.0), "bits", lambda step, _: step.entropy / math.log(2.0)),
    Tint("rank", (2, 3, 6, 21), "", lambda step, _: float(step.rank)),
)
OFF = "off"
NAMES = (*(tint.name for tint in TINTS), OFF)
BY_NAME = {tint.name: tint for tint in TINTS}
