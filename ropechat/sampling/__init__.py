"""The settings of the sampler: `Sampling` declares each once, with its range, its steps and its help."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, NamedTuple

from ropechat.sampling.grammar import Grammar

MAX_SEED = 2**64 - 1
SEED_BITS = 53
"""Bits of a random seed: programs that store numbers as f64 (jq, JavaScript, R) read it exactly."""
MAX_COUNT = 2**31 - 1
MAX_BIAS = 100.0
THINK = ("auto", "on", "off", "low", "medium", "high")
"""Whether, and how much, a model that reasons thinks before it answers; auto: as its chat template says."""
THINK_HELP = (
    "whether the model thinks before it answers: auto (as its chat template says), on, off, or an effort"
)


def _plain(value: object) -> object:
    """A number of NumPy as Python's; anything else as it is."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _grammar(value: Any) -> Grammar | None:
    if value is None or isinstance(value, Grammar):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"grammar: must be a Grammar (got {value!r:.40})")
    try:
        return Grammar(**value)
    except TypeError:
        raise ValueError(f"grammar: must have kind, source and flexible (got {list(value)!r:.40})") from None


class Thinking(NamedTuple):
    """Whether a model thinks before it answers, one of THINK, and for how many tokens; -1: no limit."""

    think: str = "auto"
    budget: int = -1


AUTO = Thinking()
"""What the chat template does by itself."""


class SamplerSetting(NamedTuple):
    """What is true of a number of `Sampling`.

    low, high: the range of its values; above: low itself is not allowed. off: the value that has no effect;
    None: always has one. step: by which keys change it; highest: the end of its bar on the screen; None for
    both: it has no bar. help: one sentence; short: a few words for the screen.
    """

    kind: type[int] | type[float]
    low: float
    high: float
    help: str
    short: str
    off: float | None = None
    step: float | None = None
    highest: float | None = None
    above: bool = False

    def check(self, name: str, value: object) -> None:
        """Raise ValueError for a value out of range; NaN and infinity are."""
        number = isinstance(value, int if self.kind is int else int | float) and not isinstance(value, bool)
        if number and (self.low < value if self.above else self.low <= value) and value <= self.high:  # type: ignore[operator]
            return
        if self.kind is int:
            allowed = f"an integer from {self.low} to {self.high}"
        else:
            allowed = f"a number {'above' if self.above else 'from'} {self.low:g} to {self.high:g}"
        raise ValueError(f"{name}: must be {allowed} (got {value!r:.40})")


_BIAS_ID = SamplerSetting(int, 0, MAX_COUNT, "", "")
_BIAS = SamplerSetting(float, -MAX_BIAS, MAX_BIAS, "", "")


def _setting(
    default: float | None,
    kind: type[int] | type[float],
    bounds: tuple[float, float],
    help: str,
    short: str,
    **more: Any,
) -> Any:
    return field(default=default, metadata={"setting": SamplerSetting(kind, *bounds, help, short, **more)})


@dataclass(frozen=True)
class Sampling:
    """The settings of the sampler, validated on construction.

    temperature: 0 to 100; 0 is greedy (ties go to the lowest id).
    top_k: keep the k most probable ids; 0 keeps all.
    top_p: keep the smallest set of ids whose probability reaches top_p; 1 keeps all.
    min_p: keep ids with at least min_p times the largest probability; 0 keeps all.
    repetition_penalty: divides positive and multiplies negative logits of earlier ids; 1 is off.
    max_tokens: maximum number of new tokens, at least 1; the tokens of a thought do not count.
    think: one of THINK. A model that does not think ignores off and auto.
    thinking_budget: maximum number of tokens of a thought, whose end is then written for the model. -1: no
        limit.
    seed: makes sampling repeatable, 0 to 2^64 - 1; None takes a random one below 2^53.
    logit_bias: pairs (id, number from -100 to 100), added to logits before all else; -100 bans the id.
    grammar: what the answer must match; None: anything. A mapping of its fields is accepted, too.

    Raises ValueError naming the field, the value and the allowed range.
    """

    temperature: float = _setting(
        *(0.7, float, (0, 100), "randomness; 0 is greedy", "0: always the likeliest"),
        off=1.0,
        step=0.05,
        highest=2.0,
    )
    top_k: int = _setting(
        *(40, int, (0, MAX_COUNT), "keep the k most probable tokens; 0 keeps all"),
        "keep the k likeliest; 0: all",
        off=0,
        step=1,
        highest=100,
    )
    top_p: float = _setting(
        *(0.95, float, (0, 1), "keep the smallest set of tokens that reaches this probability; 1 keeps all"),
        "keep this much probability",
        off=1.0,
        step=0.01,
        highest=1.0,
        above=True,
    )
    min_p: float = _setting(
        *(0.0, float, (0, 1)),
        "keep tokens with at least this share of the best one's probability; 0 keeps all",
        "drop below this × the best",
        off=0.0,
        step=0.01,
        highest=0.5,
    )
    repetition_penalty: float = _setting(
        *(1.0, float, (0, 100), "penalty on repeated tokens; 1 is off", "1: off"),
        off=1.0,
        step=0.05,
        highest=2.0,
        above=True,
    )
    max_tokens: int = _setting(512, int, (1, MAX_COUNT), "maximum number of new tokens", "the longest answer")
    seed: int | None = _setting(
        *(None, int, (0, MAX_SEED)),
        "makes sampling repeatable: 0 to 2^64 - 1 (jq and JavaScript round above 2^53)",
        "none: a new one each time",
    )
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None
    think: str = "auto"
    thinking_budget: int = _setting(
        *(-1, int, (-1, MAX_COUNT), "maximum number of tokens of a thought; -1: no limit"),
        "the longest thought; -1: no limit",
    )

    def __post_init__(self) -> None:
        if self.think not in THINK:
            raise ValueError(f"think: must be one of {', '.join(THINK)} (got {self.think!r:.40})")
        for name, setting in SETTINGS.items():
            value = _plain(getattr(self, name))
            object.__setattr__(self, name, value)
            if name != "seed" or value is not None:
                setting.check(name, value)
        try:
            object.__setattr__(
                self, "logit_bias", tuple((_plain(id), _plain(bias)) for id, bias in self.logit_bias)
            )
        except (TypeError, ValueError):
            raise ValueError(
                f"logit_bias: must be a list of [id, bias] pairs (got {self.logit_bias!r:.40})"
            ) from None
        for id, bias in self.logit_bias:
            _BIAS_ID.check("logit_bias", id)
            _BIAS.check("logit_bias", bias)
        object.__setattr__(self, "grammar", _grammar(self.grammar))

    @property
    def thinking(self) -> Thinking:
        """What a prompt depends on."""
        return Thinking(self.think, self.thinking_budget)


SETTINGS: dict[str, SamplerSetting] = {
    one.name: one.metadata["setting"] for one in fields(Sampling) if "setting" in one.metadata
}
"""The numbers of `Sampling`, by name."""
DEFAULTS = Sampling()
