"""The settings of the sampler."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from ropechat.sampling.grammar import Grammar

MAX_SEED = 2**64 - 1
SEED_BITS = 53
"""Bits of a random seed: programs that store numbers as f64 (jq, JavaScript, R) read it exactly."""
MAX_COUNT = 2**31 - 1
MAX_BIAS = 100.0
_NUMBERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens", "seed")


def _plain(value: object) -> object:
    """A number of NumPy as Python's; anything else as it is."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}: must be an integer from {low} to {high} (got {value!r:.40})")


def _number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """Raise ValueError unless low <= value <= high (low < value with `above`). NaN and infinity fail."""
    fits = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (low < value if above else low <= value)
        and value <= high
    )
    if not fits:
        allowed = f"a number {'above' if above else 'from'} {low:g} to {high:g}"
        raise ValueError(f"{name}: must be {allowed} (got {value!r:.40})")


def _grammar(value: Any) -> Grammar | None:
    if value is None or isinstance(value, Grammar):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"grammar: must be a Grammar (got {value!r:.40})")
    try:
        return Grammar(**value)
    except TypeError:
        raise ValueError(f"grammar: must have kind, source and flexible (got {list(value)!r:.40})") from None


@dataclass(frozen=True)
class Sampling:
    """The settings of the sampler, validated on construction.

    temperature: 0 to 100; 0 is greedy (ties go to the lowest id).
    top_k: keep the k most probable ids; 0 keeps all.
    top_p: keep the smallest set of ids whose probability reaches top_p; 1 keeps all.
    min_p: keep ids with at least min_p times the largest probability; 0 keeps all.
    repetition_penalty: divides positive and multiplies negative logits of earlier ids; 1 is off.
    max_tokens: maximum number of new tokens, at least 1.
    logit_bias: pairs (id, number from -100 to 100), added to logits before all else; -100 bans the id.
    grammar: what the answer must match; None: anything. A mapping of its fields is accepted, too.
    seed: makes sampling repeatable, 0 to 2^64 - 1; None takes a random one below 2^53.

    Raises ValueError naming the field, the value and the allowed range.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 512
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            object.__setattr__(self, name, _plain(getattr(self, name)))
        _number("temperature", self.temperature, 0, 100)
        _integer("top_k", self.top_k, 0, MAX_COUNT)
        _number("top_p", self.top_p, 0, 1, above=True)
        _number("min_p", self.min_p, 0, 1)
        _number("repetition_penalty", self.repetition_penalty, 0, 100, above=True)
        _integer("max_tokens", self.max_tokens, 1, MAX_COUNT)
        try:
            object.__setattr__(
                self, "logit_bias", tuple((_plain(id), _plain(bias)) for id, bias in self.logit_bias)
            )
        except (TypeError, ValueError):
            raise ValueError(
                f"logit_bias: must be a list of [id, bias] pairs (got {self.logit_bias!r:.40})"
            ) from None
        for id, bias in self.logit_bias:
            _integer("logit_bias", id, 0, MAX_COUNT)
            _number("logit_bias", bias, -MAX_BIAS, MAX_BIAS)
        object.__setattr__(self, "grammar", _grammar(self.grammar))
        if self.seed is not None:
            _integer("seed", self.seed, 0, MAX_SEED)
