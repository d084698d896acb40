"""Every setting: its name, default, values and help.

Command-line flags override environment variables, then the settings file (`file.py`), then defaults.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ropechat.errors import SettingsError
from ropechat.sampling import DEFAULTS, THINK, THINK_HELP, Sampling
from ropechat.sampling import SETTINGS as SAMPLER_SETTINGS

KV_DTYPES = ("auto", "f32", "f16", "bf16", "q8_0")
DTYPES = (
    *("auto", "f32", "bf16", "f16", "q8_0", "q6_k", "q5_1", "q5_k", "q4_1", "q4_k", "q4_0", "q3_k"),
    "q2_k",
)
THEMES = (
    *("auto", "dark", "light", "ansi-dark", "ansi-light", "atom-one-dark", "atom-one-light"),
    *("catppuccin-frappe", "catppuccin-latte", "catppuccin-macchiato", "catppuccin-mocha", "dracula"),
    *("flexoki", "gruvbox", "monokai", "nord", "rose-pine", "rose-pine-dawn", "rose-pine-moon"),
    *("solarized-dark", "solarized-light", "textual-dark", "textual-light", "tokyo-night"),
)
VIEWS = ("tokens", "prose")
TINTS = ("surprisal", "sampled", "entropy", "rank", "off")
WHEN_FULL = ("ask", "slide", "stop")
MAX_INTEGER = 2**62  # limit of the compiled engine
GIGABYTE = 1_000_000_000
MAX_GIGABYTES = 1_000_000
_SWITCH = dict.fromkeys(("on", "true", "t", "yes", "y", "1"), True)
_SWITCH |= dict.fromkeys(("off", "false", "f", "no", "n", "0"), False)

Check = Callable[[object], None]


def _text(value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a non-empty string (got {value!r:.40})")


def _switch(value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false (got {value!r:.40})")


def _count(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_INTEGER:
        raise ValueError(f"must be an integer of at least 1 (got {value!r:.40})")


def _texts(value: object) -> None:
    if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
        raise ValueError(f"must be a list of non-empty strings (got {value!r:.40})")


def _gigabytes(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_GIGABYTES:
        raise ValueError(f"must be an integer from 0 to {MAX_GIGABYTES:,} (got {value!r:.40})")


def _sampling(name: str) -> Check:
    def check(value: object) -> None:
        given: Any = value
        try:
            Sampling(**{name: given})
        except ValueError as error:
            raise ValueError(str(error).removeprefix(f"{name}: ")) from None

    return check


def _to_switch(text: str) -> object:
    return _SWITCH.get(text.strip().lower(), text)


def _to_texts(text: str) -> object:
    return [one for one in text.split(os.pathsep) if one.strip()]


def _to_list(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _to_number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


class Setting(NamedTuple):
    """A setting. name: as in the file, with its table; its last part is the name of the option.

    allowed: its values, or a check that raises ValueError for an invalid one. reads: parses a text: that of
    the environment variable, or one that the user typed.
    """

    name: str
    default: object
    allowed: tuple[str, ...] | Check
    help: str
    reads: Callable[[str], object] = str

    @property
    def choices(self) -> tuple[object, ...]:
        """All values, if they can be listed."""
        if isinstance(self.allowed, tuple):
            return self.allowed
        return (True, False) if isinstance(self.default, bool) else ()

    def check(self, value: object) -> None:
        """Raise ValueError for an invalid value."""
        if not isinstance(self.allowed, tuple):
            self.allowed(value)
        elif value not in self.allowed:
            raise ValueError(f"must be one of {', '.join(self.allowed)} (got {value!r:.40})")

    @property
    def option(self) -> str:
        """The name without its table."""
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"ROPECHAT_{self.option.upper()}"

    def of_environment(self, environ: Mapping[str, str] | None = None) -> object | None:
        """The value of the environment variable; None if unset or empty. Raises SettingsError."""
        text = (os.environ if environ is None else environ).get(self.variable)
        if not text:
            return None
        value = self.reads(text)
        try:
            self.check(value)
        except ValueError as error:
            raise SettingsError(f"{self.variable}: {error}") from None
        return value


SETTINGS = (
    Setting("model", "last", _text, "the model, as for -m; last: the one that the chat opened last"),
    Setting("model_folders", [], _texts, f"more folders with models ({os.pathsep} between two)", _to_texts),
    Setting("dtype", "auto", DTYPES, "type of the weights"),
    Setting("kv_dtype", "auto", KV_DTYPES, "type of the KV cache"),
    Setting("speculative", True, _switch, "draft tokens where it is faster", _to_switch),
    Setting("draft", None, _text, "a small model with the same tokenizer that drafts tokens, as for --draft"),
    Setting("threads", None, _count, "number of threads; unset: the physical cores", _to_number),
    Setting("context", None, _count, "maximum tokens of a conversation; unset: the model's", _to_number),
    Setting("when_full", "ask", WHEN_FULL, "what to do with a question that exceeds the context"),
    Setting("store", True, _switch, "store chats; false is --incognito", _to_switch),
    Setting(
        "read_ahead", True, _switch, "prefill chats, files and long pastes before they are sent", _to_switch
    ),
    Setting(
        *("kv_disk_gb", 4, _gigabytes),
        "disk space for the KV caches of chats, in GB; 0 saves none",
        _to_number,
    ),
    Setting("theme", "auto", THEMES, "colours of the chat"),
    Setting("tint", "surprisal", TINTS, "which number tints tokens"),
    Setting("view", "tokens", VIEWS, "tokens as they came, or Markdown as prose"),
    Setting("inspector", False, _switch, "show the inspector beside a wide chat from the start", _to_switch),
    Setting("tips", True, _switch, "show a line of help below the composer", _to_switch),
    Setting("overview", True, _switch, "show chats and branches at the left of a wide screen", _to_switch),
    Setting("follow", True, _switch, "scroll while the model writes", _to_switch),
    Setting("mouse", True, _switch, "use the mouse in the chat; F8 toggles it", _to_switch),
    *(
        Setting(f"sampling.{name}", getattr(DEFAULTS, name), _sampling(name), one.help, _to_number)
        for name, one in SAMPLER_SETTINGS.items()
    ),
    Setting("sampling.think", DEFAULTS.think, THINK, THINK_HELP),
    Setting(
        "sampling.dry_sequence_breakers",
        list(DEFAULTS.dry_sequence_breakers),
        _sampling("dry_sequence_breakers"),
        "DRY: texts that end a repetition (in the environment: a JSON list)",
        _to_list,
    ),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
