"""What the user chose of the chat's looks and manners: the settings that are the app's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class ChatOptions:
    """What `settings` says of each. theme, tint, when_full: names; keys: other ones, by command id."""

    theme: str = "auto"
    tint: str = "surprisal"
    follow: bool = True
    mouse: bool = True
    overview: bool = True
    when_full: str = "ask"
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
