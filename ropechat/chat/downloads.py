"""The download of the chat: at most one runs at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.chat.download import Download, Stage

if TYPE_CHECKING:
    from ropechat.models.hub.names import HubName


class Downloads:
    """The downloads of the chat, one at a time. current: the newest, also after its end."""

    def __init__(self) -> None:
        self.current: Download | None = None

    @property
    def running(self) -> Download | None:
        """The download that is running or about to pause."""
        current = self.current
        return current if current is not None and current.stage in (Stage.RUNNING, Stage.PAUSING) else None

    def plan(self, name: HubName) -> None:
        """Ask the Hub what a model consists of; replaces the current download."""
        self.current = Download(name)

    def pause(self) -> None:
        """Pause the current download; received parts stay on disk."""
        if self.current is not None:
            self.current.pause()
