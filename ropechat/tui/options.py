"""The settings of the chat app: theme, tint, keys and the like."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ropechat.settings.file import SettingsFile


@dataclass(frozen=True)
class ChatOptions:
    """See `ropechat config` for each. theme, tint, view, when_full: names. keys: changed keys by command id.

    model_folders: more folders with models. settings: where changed settings are written; None: nowhere.
    fixed: sampling settings that the command line gave, which a resumed chat does not change. note: about the
    model that is opened first. remember(model, name): called when a model that a person chose is loaded, with
    its name for -m and that of its answers.
    """

    theme: str = "auto"
    tint: str = "surprisal"
    view: str = "tokens"
    follow: bool = True
    mouse: bool = True
    overview: bool = True
    inspector: bool = False
    tips: bool = False
    when_full: str = "ask"
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    model_folders: Sequence[Path] = ()
    settings: SettingsFile | None = None
    fixed: frozenset[str] = frozenset()
    note: str = ""
    remember: Callable[[str, str], None] = lambda model, name: None
