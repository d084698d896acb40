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
MAX_BREAKERS, MAX_BREAKER = 32, 40


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
    both: it has no bar. of: the setting that switches on the stage that this one is a part of. help: one
    sentence; short: a few words for the screen.
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
    of: str | None = None

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


def _breakers(value: Any) -> tuple[str, ...]:
    texts = () if isinstance(value, str) else value
    try:
        found = tuple(texts)
        sound = not isinstance(value, str | Mapping) and all(
            isinstance(one, str) and 0 < len(one) <= MAX_BREAKER and one.encode() for one in found
        )
    except (TypeError, UnicodeEncodeError):
        found, sound = (), False
    if not sound or len(found) > MAX_BREAKERS:
        raise ValueError(
            f"dry_sequence_breakers: must be a list of at most {MAX_BREAKERS} texts of 1 to {MAX_BREAKER} "
            f"characters (got {value!r:.40})"
        )
    return found


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


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The settings of the sampler, validated on construction.

    temperature: 0 to 100; 0 is greedy (ties go to the lowest id).
    top_k: keep the k most probable ids; 0 keeps all.
    top_p: keep the smallest set of ids whose probability reaches top_p; 1 keeps all.
    min_p: keep ids with at least min_p times the largest probability; 0 keeps all.
    top_n_sigma: keep ids whose logit is at most so many standard deviations below the largest; 0 keeps all.
    xtc_probability, xtc_threshold: with this probability, of the ids with at least this probability only the
    least probable one stays ("exclude top choices"); 0 is off.
    repetition_penalty: divides positive and multiplies negative logits of earlier ids (of prompt and
    answer); 1 is off.
    presence_penalty, frequency_penalty: subtracted from the logits of ids that the answer has; the second as
    often as it has them (OpenAI's definition); -2 to 2; 0 is off.
    dry_multiplier, dry_base, dry_allowed_length: an id that would continue a repetition of n tokens of prompt
    and answer loses dry_multiplier * dry_base ** (n - dry_allowed_length) if n is at least
    dry_allowed_length ("don't repeat yourself"); 0 is off. dry_penalty_last_n: of the last so many tokens;
    -1: of all. dry_sequence_breakers: texts that end a repetition.
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
    top_n_sigma: float = _setting(
        *(0.0, float, (0, 100)),
        "keep tokens within so many standard deviations of the best logit; 0 keeps all",
        "sigmas below the best; 0: all",
        off=0.0,
        step=0.1,
        highest=4.0,
    )
    xtc_probability: float = _setting(
        *(0.0, float, (0, 1), "how often XTC excludes the most probable tokens; 0 is off"),
        "exclude the best this often",
        off=0.0,
        step=0.05,
        highest=1.0,
    )
    xtc_threshold: float = _setting(
        *(0.1, float, (0, 1)),
        "of the tokens with this probability XTC keeps the least probable; above 0.5 is off",
        "from this probability on",
        step=0.01,
        highest=0.5,
        of="xtc_probability",
    )
    repetition_penalty: float = _setting(
        *(1.0, float, (0, 100), "penalty on tokens of prompt and answer; 1 is off", "on prompt and answer"),
        off=1.0,
        step=0.05,
        highest=2.0,
        above=True,
    )
    presence_penalty: float = _setting(
        *(0.0, float, (-2, 2), "subtracted from the logits of the answer's tokens; 0 is off"),
        "on the answer's tokens",
        off=0.0,
        step=0.1,
        highest=2.0,
    )
    frequency_penalty: float = _setting(
        *(0.0, float, (-2, 2), "subtracted as often as the answer has a token; 0 is off"),
        "each time the answer has it",
        off=0.0,
        step=0.1,
        highest=2.0,
    )
    dry_multiplier: float = _setting(
        *(0.0, float, (0, 100), "penalty on tokens that continue a repetition (DRY); 0 is off"),
        "on repeated sequences",
        off=0.0,
        step=0.05,
        highest=2.0,
    )
    dry_base: float = _setting(
        *(1.75, float, (1, 100), "DRY: factor for each further token of the repetition"),
        "for each further token",
        step=0.05,
        highest=4.0,
        of="dry_multiplier",
    )
    dry_allowed_length: int = _setting(
        *(2, int, (1, MAX_COUNT), "DRY: repetitions that are shorter have no penalty"),
        "tokens without a penalty",
        step=1,
        highest=20,
        of="dry_multiplier",
    )
    dry_penalty_last_n: int = _setting(
        *(-1, int, (-1, MAX_COUNT), "DRY: how many of the last tokens are searched; -1: all"),
        "tokens searched; -1: all",
        of="dry_multiplier",
    )
    max_tokens: int = _setting(512, int, (1, MAX_COUNT), "maximum number of new tokens", "the longest answer")
    seed: int | None = _setting(
        *(None, int, (0, MAX_SEED)),
        "makes sampling repeatable: 0 to 2^64 - 1 (jq and JavaScript round above 2^53)",
        "none: a new one each time",
    )
    logit_bias: tuple[tuple[int, float], ...] = ()
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
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
        object.__setattr__(self, "dry_sequence_breakers", _breakers(self.dry_sequence_breakers))
        object.__setattr__(self, "grammar", _grammar(self.grammar))

    @property
    def thinking(self) -> Thinking:
        """What a prompt depends on."""
        return Thinking(self.think, self.thinking_budget)


SETTINGS: dict[str, SamplerSetting] = {
    one.name: one.metadata["setting"] for one in fields(Sampling) if "setting" in one.metadata
}
"""The numbers of `Sampling`, by name."""
STAGES = tuple(name for name, one in SETTINGS.items() if one.off is not None)
"""The settings that switch on a stage of the sampler."""
DEFAULTS = Sampling()


def used_settings(sampling: Sampling) -> dict[str, float]:
    """The settings that switch on a stage, each followed by those of its parts that are not the default."""
    found: dict[str, float] = {}
    for name in STAGES:
        if getattr(sampling, name) != SETTINGS[name].off:
            parts = [
                part
                for part, one in SETTINGS.items()
                if one.of == name and getattr(sampling, part) != getattr(DEFAULTS, part)
            ]
            found |= {one: getattr(sampling, one) for one in (name, *parts)}
    return found
