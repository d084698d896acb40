"""How fast models are on this machine: measured while they work, kept on disk, expected of others."""

import contextlib
import math
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropechat.util.paths import cache_folder

_LEAST_READ = 32  # tokens of a prompt from which the rate says something
_LEAST_WRITTEN = 8
_NEWEST_WEIGHT = 0.5  # of a new measurement in the mean


@dataclass(frozen=True)
class Speed:
    """How fast a model is here.

    prefill: tokens per second of reading, without what attention adds; decode: of writing. packing: seconds
    that packing its weights took. None: not measured. weights: bytes that are read for each token. products:
    weights that are multiplied for each token. growth: see `Progress`.
    """

    prefill: float | None = None
    decode: float | None = None
    packing: float | None = None
    weights: int = 0
    products: int = 0
    growth: float = 0.0
    dtype: str = ""

    def seconds_to_read(self, cached: int, total: int) -> float | None:
        """Expected seconds to read a prompt, of which `cached` tokens are read already; None if unknown."""
        if not self.prefill:
            return None
        return (_cost(total, self.growth) - _cost(cached, self.growth)) / self.prefill

    def with_read(self, cached: int, total: int, seconds: float) -> "Speed":
        """Take in how long it took to read a prompt."""
        if total - cached < _LEAST_READ or seconds <= 0:
            return self
        rate = (_cost(total, self.growth) - _cost(cached, self.growth)) / seconds
        return replace(self, prefill=_mean(self.prefill, rate))

    def with_written(self, tokens: int, seconds: float) -> "Speed":
        """Take in how long it took to write an answer."""
        if tokens < _LEAST_WRITTEN or seconds <= 0:
            return self
        return replace(self, decode=_mean(self.decode, tokens / seconds))


def _cost(tokens: int, growth: float) -> float:
    return tokens + growth * tokens * tokens / 2


def _mean(known: float | None, new: float) -> float:
    return new if known is None else known + _NEWEST_WEIGHT * (new - known)


def _folder() -> Path:
    return cache_folder() / "speed"


def _file_of(model: Path) -> Path:
    return _folder() / f"{zlib.crc32(os.fsencode(model.resolve())):08x}.json"


def load_speed(model: Path) -> Speed | None:
    """The speed of a model as it was measured here; None if it was not."""
    return _read(_file_of(model), model)


def _read(file: Path, model: Path | None = None) -> Speed | None:
    """The speed in a file; None if it cannot be read, or is of another model."""
    import json  # imported here: a start does not need it

    try:
        found = json.loads(file.read_bytes())
        if model is not None and found["model"] != str(model.resolve()):
            return None
        return Speed(
            prefill=_number(found.get("prefill")),
            decode=_number(found.get("decode")),
            packing=_number(found.get("packing")),
            weights=int(_number(found.get("weights")) or 0),
            products=int(_number(found.get("products")) or 0),
            growth=_number(found.get("growth")) or 0.0,
            dtype=str(found.get("dtype", "")),
        )
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    """A positive number of a file that anyone may have changed; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and value > 0 else None


def keep_speed(model: Path, speed: Speed) -> None:
    """Write the speed of a model; a full or read-only disk is no error."""
    import json  # imported here: a start does not need it

    file = _file_of(model)
    part = file.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):
        part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            part.write_text(json.dumps({"model": str(model.resolve()), **speed.__dict__}), "utf-8")
            part.replace(file)
        except OSError:
            part.unlink(missing_ok=True)


def known_speeds() -> list[Speed]:
    """The speeds of all models that were measured here."""
    try:
        files = [path for path in _folder().iterdir() if path.suffix == ".json"]
    except OSError:
        return []
    return [speed for path in files if (speed := _read(path)) is not None]


def expected_speed(weights: int, products: int, known: Iterable[Speed]) -> Speed:
    """What to expect of a model that was not measured, from those that were.

    Writing reads all weights for each token, reading multiplies with all of them: so many bytes and products
    in a second as the models nearest in size reach. weights: bytes of the model; products: as in `Speed`.
    """
    known = list(known)
    return Speed(
        prefill=_per_second([(one.prefill, one.products) for one in known], products),
        decode=_per_second([(one.decode, one.weights) for one in known], weights),
        weights=weights,
        products=products,
    )


def _per_second(found: Iterable[tuple[float | None, int]], size: int) -> float | None:
    """Tokens per second of a model of this size: the median of what three models nearest in size reach."""
    usable = [(rate, other) for rate, other in found if rate and other > 0]
    if not usable or size <= 0:
        return None
    nearest = sorted(usable, key=lambda one: abs(math.log(one[1] / size)))[:3]
    reached = sorted(rate * other for rate, other in nearest)
    return reached[len(reached) // 2] / size


def count_products(facts: Mapping[str, Any]) -> int:
    """Weights that are multiplied for each token: all but the embedding."""
    return max(1, int(facts["num_parameters"]) - int(facts["vocab_size"]) * int(facts["hidden_size"]))
