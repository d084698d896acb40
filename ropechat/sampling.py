"""How the next token is chosen. A leaf: imports nothing of ours."""

from dataclasses import dataclass

MAX_SEED = 2**64 - 1
SEED_BITS = 53
"""Of a seed that is drawn: jq, JavaScript and R read it exactly, as they hold numbers in an f64."""
MAX_COUNT = 2**31 - 1
MAX_BIAS = 100.0


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}: {value!r:.40} is not allowed; an integer from {low} to {high} is")


def _number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """`above`: the low end itself is excluded. NaN and infinity fail the comparisons."""
    fits = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (low < value if above else low <= value)
        and value <= high
    )
    if not fits:
        allowed = f"a number {'above' if above else 'from'} {low:g} to {high:g}"
        raise ValueError(f"{name}: {value!r:.40} is not allowed; {allowed} is")


@dataclass(frozen=True)
class Sampling:
    """The settings of the sampler, checked when made.

    temperature: 0 is greedy (ties to the lowest id); up to 100.
    top_k: keep the k most probable ids; 0 keeps all.
    top_p: keep the smallest set of ids whose probability reaches top_p; 1 keeps all.
    min_p: keep ids with at least min_p times the largest probability; 0 keeps all.
    repetition_penalty: divides positive and multiplies negative logits of ids seen so far; 1 is none.
    max_tokens: most new tokens, at least 1.
    logit_bias: (id, what is added to its logit, -100 to 100) pairs, before all else; -100 bans.
    seed: makes draws repeatable, 0 to 2^64 - 1; None takes a fresh one below 2^53.

    Raises ValueError that names the field, the value and the allowed range.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 512
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0, 100)
        _integer("top_k", self.top_k, 0, MAX_COUNT)
        _number("top_p", self.top_p, 0, 1, above=True)
        _number("min_p", self.min_p, 0, 1)
        _number("repetition_penalty", self.repetition_penalty, 0, 100, above=True)
        _integer("max_tokens", self.max_tokens, 1, MAX_COUNT)
        try:
            object.__setattr__(self, "logit_bias", tuple((id, bias) for id, bias in self.logit_bias))
        except (TypeError, ValueError):
            raise ValueError(
                f"logit_bias: {self.logit_bias!r:.40} is not allowed; [id, bias] pairs are"
            ) from None
        for id, bias in self.logit_bias:
            _integer("logit_bias", id, 0, MAX_COUNT)
            _number("logit_bias", bias, -MAX_BIAS, MAX_BIAS)
        if self.seed is not None:
            _integer("seed", self.seed, 0, MAX_SEED)
