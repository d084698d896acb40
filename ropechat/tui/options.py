"""The settings of the chat app: theme, tint, keys and the like."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class ChatOptions:
    """See `ropechat config` for each. theme, tint, when_full: names. keys: changed keys by command id."""

    theme: str = "auto"
    tint: str = "surprisal"
    follow: bool = True
    mouse: bool = True
    overview: bool = True
    when_full: str = "ask"
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
