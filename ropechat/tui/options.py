"""The settings of the chat app: theme, tint, keys and the like."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class SettingRow(NamedTuple):
    """A setting as a line of its dialog. origin: where the value comes from; choices: all values, if few."""

    name: str
    value: object
    origin: str
    help: str
    choices: tuple[object, ...] = ()


class SettingsEditor(Protocol):
    """Shows and changes the settings file. Each method raises RopechatError."""

    def rows(self) -> list[SettingRow]:
        """Every setting."""

    def change(self, name: str, value: object) -> str:
        """Write a value, None for the default; returns the path of the file."""

    def parse(self, name: str, text: str) -> object:
        """The value of a typed text; None for an empty one."""


@dataclass(frozen=True)
class ChatOptions:
    """See `ropechat config` for each. theme, tint, view, when_full: names. keys: changed keys by command id.

    model_folders: more folders with models. settings: where changed settings are written; None: nowhere.
    fixed: sampling settings that the command line gave, which a resumed chat does not change.
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
    settings: SettingsEditor | None = None
    fixed: frozenset[str] = frozenset()
