"""The sampling settings by name: presets, parsing of typed values, and steps up and down."""

from __future__ import annotations

import secrets
from dataclasses import replace

from ropechat.sampling import AUTO, MAX_BIAS, MAX_COUNT, SETTINGS, THINK, THINK_HELP, Sampling, used_settings
from ropechat.util.text import closest_name

THINKING = ("think", "thinking_budget")
"""The settings that are only for models that think before they answer."""
_SHORT = {"think": "think first, or how much", "thinking_budget": "longest thought; none: any"}
NAMES = tuple(name for one in SETTINGS for name in (THINKING if one == THINKING[1] else (one,)))
USUAL = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens", *THINKING, "seed")
"""The settings that are shown where they are off, too."""
_LEAST_SEARCHED = 64  # tokens, by keys
PRESETS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "precise": {"temperature": 0.3, "top_k": 40, "top_p": 0.9, "min_p": 0.0},
    "balanced": {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.0},
    "creative": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.05},
}


def names_for(*, thinks: bool) -> tuple[str, ...]:
    """The settings that matter to a model. thinks: whether it may think before it answers."""
    return NAMES if thinks else tuple(name for name in NAMES if name not in THINKING)


def describe_setting(name: str) -> str:
    """What a setting does, in few words."""
    return _SHORT.get(name) or SETTINGS[name].short


def shown_names(sampling: Sampling, *, thinks: bool, whole: bool = False) -> tuple[str, ...]:
    """The settings to show: the usual ones, those that are on, and the parts of these.

    thinks: whether the model may think before it answers. whole: those that are off, too.
    """

    def is_on(name: str) -> bool:
        return bool(getattr(sampling, name) != SETTINGS[name].off)

    def is_shown(name: str) -> bool:
        of = SETTINGS[name].of if name in SETTINGS else None
        return is_on(of) if of is not None else whole or name in USUAL or is_on(name)

    return tuple(filter(is_shown, names_for(thinks=thinks)))


def format_value(sampling: Sampling, name: str) -> str:
    """The value of a setting as text for the screen."""
    value = getattr(sampling, name)
    if name == "think":
        return str(value)
    if name == "thinking_budget" and value < 0:
        return "none"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def full_name(text: str) -> str:
    """The setting whose name begins with a text. Raises ValueError if none or several do."""
    wanted = text.replace("-", "_")
    found = [name for name in NAMES if name == wanted] or [name for name in NAMES if name.startswith(wanted)]
    if len(found) > 1:
        raise ValueError(f"{text:.20}: several settings begin with this: {', '.join(found)}")
    if not found:
        meant = closest_name(wanted, NAMES)
        hint = f"did you mean {meant}?" if meant else f"there are {', '.join(USUAL)} …"
        raise ValueError(f"{text:.20}: unknown setting; {hint}")
    return found[0]


def with_value(sampling: Sampling, name: str, text: str) -> Sampling:
    """The settings with one value parsed from typed text. Raises ValueError that says what it must be."""
    value: float | str | None
    if name == "think":
        value = text
    elif name == "seed" and text in ("none", "off", "-", ""):
        value = None
    elif name == "thinking_budget" and text in ("no limit", "none", "-", ""):
        value = -1
    else:
        try:
            value = SETTINGS[name].kind(text)
        except ValueError:
            raise ValueError(f"{name}: must be a number (got {text!r:.40})") from None
    return replace(sampling, **{name: value})  # type: ignore[arg-type]


def with_preset(sampling: Sampling, name: str) -> Sampling:
    """The settings of a preset, without the stages that presets do not name; length and seed stay.

    Raises KeyError.
    """
    named = PRESETS["balanced"]
    off = {other: one.off for other, one in SETTINGS.items() if one.off is not None and other not in named}
    return replace(sampling, **(off | PRESETS[name]))  # type: ignore[arg-type]


def preset_of(sampling: Sampling) -> str:
    """The name of the preset that the settings equal, or ""."""
    return next((name for name in PRESETS if with_preset(sampling, name) == sampling), "")


def describe_preset(name: str) -> str:
    """The settings of a preset as text."""
    return " ".join(f"{key} {value:g}" for key, value in PRESETS[name].items())


def thinking_words(sampling: Sampling) -> list[str]:
    """What is not as the chat template says, in two words; [] if nothing is."""
    think, budget = sampling.thinking
    if sampling.thinking == AUTO:
        return []
    if budget < 0 or think == "off":
        return [f"think {think}"]
    return [f"think ≤{budget:,}" if think in ("auto", "on") else f"think {think} ≤{budget:,}"]


def describe_sampling(sampling: Sampling) -> str:
    """The seed, then the preset or, without one, the settings that cut candidates."""
    used = used_settings(sampling)
    words = [f"T {sampling.temperature:g}"]
    words += [f"{name} {value:g}" for name, value in used.items() if name != "temperature"]
    seed = [] if sampling.seed is None else [f"seed {sampling.seed}"]
    grammar = [] if sampling.grammar is None else [sampling.grammar.name]
    chosen = preset_of(sampling) or " ".join(words)
    return " · ".join([*seed, chosen, *thinking_words(sampling), *grammar])


def with_thinking(sampling: Sampling, words: str) -> Sampling:
    """The settings with a choice of THINK, or with a budget of tokens for the thought. Raises ValueError."""
    if words.replace(",", "").isdecimal():
        return with_value(replace(sampling, think="on"), "thinking_budget", words.replace(",", ""))
    if words not in THINK:
        raise ValueError(f"/think {'|'.join(THINK[1:])}|N|auto: {THINK_HELP}; N: at most N tokens")
    return replace(sampling, think=words, thinking_budget=-1)


def describe_thinking(sampling: Sampling) -> str:
    """Whether the model thinks, and how much, as a sentence."""
    think, budget = sampling.thinking
    if think == "off":
        return "no thoughts"
    words = {"auto": "thinks as its chat template says", "on": "thinks first"}
    most = "" if budget < 0 else f", at most {budget:,} token{'s' * (budget != 1)}"
    return words.get(think, f"thinks first, with {think} effort") + most


def step_value(sampling: Sampling, name: str, by: int) -> Sampling:
    """The settings with one value a step up or down, within its limits."""
    value = getattr(sampling, name)
    if name == "think":
        return replace(sampling, think=THINK[(THINK.index(value) + by) % len(THINK)])
    if name == "seed":
        return replace(sampling, seed=None if by < 0 else secrets.randbits(31))
    if name == "max_tokens":
        return replace(sampling, max_tokens=min(MAX_COUNT, max(1, value * 2 if by > 0 else value // 2)))
    if name == "thinking_budget":
        return replace(sampling, thinking_budget=_next_budget(value, by))
    if name == "dry_penalty_last_n":
        more = max(_LEAST_SEARCHED, value * 2) if by > 0 else value // 2
        return replace(sampling, dry_penalty_last_n=-1 if more < _LEAST_SEARCHED else min(MAX_COUNT, more))
    step = SETTINGS[name].step or 1
    return _moved(sampling, name, (round(value / step) + by) * step, value)


def _next_budget(value: int, by: int) -> int:
    """A budget of a thought, a step up or down: from 0 over powers of two to no limit."""
    sizes = (0, *(1 << power for power in range(6, 15)))
    if value < 0:
        return sizes[-1] if by < 0 else value
    if by < 0:
        return max((size for size in sizes if size < value), default=0)
    return min((size for size in sizes if size > value), default=-1)


def with_fraction(sampling: Sampling, name: str, fraction: float) -> Sampling:
    """The settings with one value at a fraction of its usual maximum, rounded to a step."""
    one = SETTINGS[name]
    step, highest = one.step or 1, one.highest or 1
    return _moved(sampling, name, round(fraction * highest / step) * step)


def _moved(sampling: Sampling, name: str, value: float, beyond: float = 0) -> Sampling:
    """The settings with one value, kept between a step (or 0) and its usual maximum, or `beyond` that."""
    one = SETTINGS[name]
    lowest = one.step if one.above and one.step else one.low
    kept = round(min(max(lowest, value), max(one.highest or value, beyond)), 2)
    return replace(sampling, **{name: one.kind(kept)})  # type: ignore[arg-type]


def fill_fraction(sampling: Sampling, name: str) -> float | None:
    """The value as a fraction of its usual maximum; None for settings without one."""
    highest = SETTINGS[name].highest if name in SETTINGS else None
    return None if highest is None else max(0.0, getattr(sampling, name) / highest)


def with_bias(sampling: Sampling, id: int, bias: float) -> Sampling:
    """The settings with the bias of a token, put last; 0 removes it."""
    biases = {other: value for other, value in sampling.logit_bias if other != id}
    return replace(sampling, logit_bias=(*biases.items(), *([(id, bias)] if bias else [])))


def change_bias(sampling: Sampling, id: int, by: float) -> Sampling:
    """The settings with the bias of a token changed; by -MAX_BIAS: banned, or no longer banned."""
    now = dict(sampling.logit_bias).get(id, 0.0)
    banned = now <= -MAX_BIAS
    if by <= -MAX_BIAS:
        now = 0.0 if banned else -MAX_BIAS
    else:
        now = min(max((0.0 if banned else now) + by, -MAX_BIAS), MAX_BIAS)
    return with_bias(sampling, id, now)


def describe_bias(bias: float) -> str:
    """A bias as text for the screen."""
    return "banned" if bias <= -MAX_BIAS else f"{bias:+g}" if bias else "no bias"
