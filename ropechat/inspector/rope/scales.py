"""The axes of a plot: from a value to a share of the axis, and round numbers along it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ropechat.inspector.rope.blocks import Plot
    from ropechat.inspector.rope.formulas import Array

_TICKS = 6


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, linear or logarithmic."""

    low: float
    high: float
    log: bool

    def place(self, values: Array) -> Array:
        """The share of the axis at which values lie, cut to 0 .. 1."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        found = np.log(np.maximum(values, self.low)) if self.log else np.asarray(values, np.float64)
        return np.clip((found - low) / (high - low), 0.0, 1.0)

    def value(self, share: float) -> float:
        """The value at a share of the axis."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        at = low + share * (high - low)
        return math.exp(at) if self.log else at

    def ticks(self) -> list[float]:
        """Round values along the axis."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last - first < 2:  # too few powers of ten
                near = (factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5))
                found = [value for value in near if self.low <= value <= self.high]
                return found or [self.low, self.high]
            step = max(1, (last - first) // _TICKS)
            return [10.0**power for power in range(first, last + 1, step)]
        width = _round_step((self.high - self.low) / _TICKS)
        first = math.ceil(self.low / width - 1e-9)
        return [number * width for number in range(first, math.floor(self.high / width + 1e-9) + 1)]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else value


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))


def axes(plot: Plot) -> tuple[Axis, Axis]:
    """The axes that hold all points of a plot, with some width even if all values are equal."""
    xs = np.concatenate([curve.x for curve in plot.curves])
    ys = np.concatenate([curve.y for curve in plot.curves])
    return _axis(xs, plot.x_log), _axis(ys, plot.y_log)


def _axis(values: Array, log: bool) -> Axis:
    low, high = (float(values.min()), float(values.max())) if len(values) else (1.0, 2.0)
    if high <= low:
        low, high = (low / 2.0, low * 2.0) if log else (low - 0.5, low + 0.5)
    return Axis(low, high, log)


def short(value: float) -> str:
    """A label of an axis, at most 7 characters: 131k, 5.4e+07, 0.25."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    if 1e4 <= abs(value) < 1e6:
        return f"{value / 1000:.3g}k"
    return f"{value:.2g}"
