"""Where the value of each setting of the sampler is from, and whose value counts.

The command line goes before the environment, that before the settings file, and all of them before what the
maker of the model recommends; then come the defaults. What is changed in a chat, or is of a preset, goes
before all.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ropechat.sampling import DEFAULTS, SETTINGS, Sampling, used_settings

FLAG, ENVIRONMENT, SETTINGS_FILE = "flag", "environment", "settings"
CHAT, PRESET, MODEL, DEFAULT = "chat", "preset", "model", "default"
WITHOUT_EFFECT = ("top_n_sigma", "top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold")
"""The settings that do nothing at temperature 0."""


class SourcedSampling(NamedTuple):
    """Settings, and where the numbers that are not the default are from."""

    sampling: Sampling
    sources: Mapping[str, str]

    def source(self, name: str) -> str:
        """Where the value of a setting is from."""
        return self.sources.get(name, DEFAULT)

    def with_own(self, own: Mapping[str, float]) -> "SourcedSampling":
        """These settings with a model's own where nobody gave others; an earlier model's go."""
        free = [name for name in SETTINGS if self.source(name) in (MODEL, DEFAULT)]
        values: dict[str, Any] = {name: own[name] for name in free if name in own}
        values |= {
            name: getattr(DEFAULTS, name) for name in free if self.source(name) == MODEL and name not in own
        }
        sampling = replace(self.sampling, **values)
        given = {name: source for name, source in self.sources.items() if name not in free}
        return SourcedSampling(sampling, {**given, **{name: MODEL for name in free if name in own}})

    def changed(
        self, sampling: Sampling, source: str = CHAT, names: frozenset[str] = frozenset()
    ) -> "SourcedSampling":
        """Other settings. source: of the numbers that differ, and of `names`."""
        differ = {name for name in SETTINGS if getattr(sampling, name) != getattr(self.sampling, name)}
        return SourcedSampling(sampling, {**self.sources, **dict.fromkeys(differ | names, source)})

    def table(self) -> dict[str, str]:
        """The source of each number, for records."""
        return {name: self.source(name) for name in SETTINGS}

    def line(self) -> str:
        """The settings that are switched on, by source: "sampling: temperature 0.2, top_p 0.9 (model)"."""
        by_source: dict[str, list[str]] = {}
        for name, value in used_settings(self.sampling).items():
            if self.sampling.temperature == 0.0 and name in WITHOUT_EFFECT:
                continue
            by_source.setdefault(self.source(name), []).append(f"{name} {value:g}")
        parts = [f"{', '.join(words)} ({source})" for source, words in by_source.items()]
        return f"sampling: {'; '.join(parts) or 'temperature 1 without a filter'}"


def valid_numbers(numbers: Mapping[str, float]) -> dict[str, float]:
    """The settings of the sampler among these, with their types, without values out of range."""
    found: dict[str, float] = {}
    for name, value in numbers.items():
        if (one := SETTINGS.get(name)) is not None and name not in ("seed", "max_tokens"):
            try:
                found[name] = one.kind(value)
                one.check(name, found[name])
            except (ValueError, OverflowError):
                found.pop(name, None)
    return found
