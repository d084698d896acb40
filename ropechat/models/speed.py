"""How fast models are on this machine: measured while they work, kept on disk, expected of others."""

import contextlib
import math
import os
import platform
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropechat.util.paths import cache_folder

_LEAST_READ = 32  # tokens of a prompt from which the rate says something
_LEAST_WRITTEN = 8
_NEWEST_WEIGHT = 0.5  # of a new measurement in the mean
_PREFILL_SHARE = 0.85  # of the products of the probe, as long as no model was measured here
_DECODE_SHARE = 0.8  # of the bandwidth of the probe, likewise


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
    _write(_file_of(model), {"model": str(model.resolve()), **speed.__dict__})


def _write(file: Path, record: Mapping[str, Any]) -> None:
    import json  # imported here: a start does not need it

    part = file.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):
        part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            part.write_text(json.dumps(record), "utf-8")
            part.replace(file)
        except OSError:
            part.unlink(missing_ok=True)


def known_speeds() -> list[Speed]:
    """The speeds of all models that were measured here."""
    try:
        names = [path for path in _folder().iterdir() if path.suffix == ".json"]
        files = [path for path in names if not path.name.startswith("machine")]
    except OSError:
        return []
    return [speed for path in files if (speed := _read(path)) is not None]


@dataclass(frozen=True)
class Machine:
    """What a probe of this machine reached.

    version: of the engine. bandwidth: bytes per second that are read from memory. products: weights per
    second that are multiplied with a token, by the kind of their dtype.
    """

    version: str
    bandwidth: float
    products: Mapping[str, float]

    def products_of(self, dtype: str) -> float:
        """Products per second with weights of a dtype, in any spelling: Q4_K_M, q8_0, bfloat16."""
        return self.products[_kind(dtype)]


def _kind(dtype: str) -> str:
    """The kind of a dtype that the probe measures: blocks of blocks, plain blocks, or floats."""
    name = dtype.lower()
    if name.startswith(("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq")):
        return "q4_k"
    return "q8_0" if name.startswith(("q", "tq", "int", "mxfp")) else "bf16"


def _machine_file() -> Path:
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    key = f"{platform.machine()} {processors} {os.environ.get('ROPECHAT_ISA', '')}"
    return _folder() / f"machine-{zlib.crc32(key.encode()):08x}.json"


def known_machine(version: str | None = None) -> Machine | None:
    """What an earlier probe with these processors found; None without one, or of another version."""
    import json  # imported here: a start does not need it

    try:
        found = json.loads(_machine_file().read_bytes())
        products = {kind: _number(found["products"][kind]) for kind in ("q8_0", "bf16", "q4_k")}
        bandwidth = _number(found["bandwidth"])
        if version not in (None, found["version"]) or bandwidth is None or not all(products.values()):
            return None
        rates = {kind: rate for kind, rate in products.items() if rate is not None}
        return Machine(str(found["version"]), bandwidth, rates)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def keep_machine(machine: Machine) -> None:
    """Write what a probe found; a full or read-only disk is no error."""
    _write(_machine_file(), machine.__dict__)


def expected_speed(
    weights: int,
    products: int,
    known: Iterable[Speed],
    dtype: str = "",
    machine: Machine | None = None,
) -> Speed:
    """What to expect of a model that was not measured, from those that were and from a probe.

    Writing reads all weights for each token, reading multiplies with all of them: so many bytes and products
    in a second as the probe reached, times the share of that which the models nearest in size reach. Without
    a probe: as many as those models. weights: bytes of the model; products: as in `Speed`.
    """
    known = list(known)
    if machine is None:
        multiplied = _near([(one.prefill, one.products, 1.0) for one in known], products)
        read = _near([(one.decode, one.weights, 1.0) for one in known], weights)
    else:
        shares = [(one.prefill, one.products, machine.products_of(one.dtype)) for one in known]
        multiplied = machine.products_of(dtype) * (_near(shares, products) or _PREFILL_SHARE)
        shares = [(one.decode, one.weights, machine.bandwidth) for one in known]
        read = machine.bandwidth * (_near(shares, weights) or _DECODE_SHARE)
    return Speed(
        prefill=multiplied / products if multiplied and products > 0 else None,
        decode=read / weights if read and weights > 0 else None,
        weights=weights,
        products=products,
    )


def _near(found: Iterable[tuple[float | None, int, float]], size: int) -> float | None:
    """The median of rate * size / of, of the three models nearest in size. found: (rate, size, of)."""
    usable = [(rate * other / of, other) for rate, other, of in found if rate and other > 0]
    if not usable or size <= 0:
        return None
    nearest = sorted(usable, key=lambda one: abs(math.log(one[1] / size)))[:3]
    reached = sorted(share for share, _ in nearest)
    return reached[len(reached) // 2]


def count_products(facts: Mapping[str, Any]) -> int:
    """Weights that are multiplied for each token: all but the embedding."""
    return max(1, int(facts["num_parameters"]) - int(facts["vocab_size"]) * int(facts["hidden_size"]))
