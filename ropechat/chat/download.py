"""Downloads of models while the chat goes on, one at a time: planned, running, paused, done."""

from __future__ import annotations

import time
from enum import StrEnum
from threading import Event, Thread
from typing import TYPE_CHECKING

from ropechat.chat.errors import explain

if TYPE_CHECKING:
    from pathlib import Path

    from ropechat.models.hub.names import HubName
    from ropechat.models.hub.plan import DownloadPlan
    from ropechat.models.hub.transfer import DownloadProgress


class Stage(StrEnum):
    """The stage of a download."""

    ASKING = "asking"  # the Hub for the list of files
    PLANNED = "planned"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def works(self) -> bool:
        """Whether a thread of the download runs."""
        return self in (Stage.ASKING, Stage.RUNNING, Stage.PAUSING)


class _HaltedError(Exception):
    """The download was halted; received parts stay on disk."""


class Download:
    """The download of one model. Its figures may be read at any time; its threads are daemons."""

    def __init__(self, name: HubName) -> None:
        self.name = name
        self.stage = Stage.ASKING
        self.plan: DownloadPlan | None = None
        self.path: Path | None = None
        self.error = ""
        self.share = 0.0
        self.words: list[str] = []
        self._halt, self._drop = Event(), False
        self._begin(self._ask)

    def _begin(self, work: object) -> None:
        Thread(target=self._guarded, args=(work,), name="ropechat-download", daemon=True).start()

    def _guarded(self, work: object) -> None:
        assert callable(work)
        try:
            work()
        except _HaltedError:
            self._halted()
        except Exception as error:
            self.error, self.stage = explain(error), Stage.FAILED

    def _ask(self) -> None:
        from ropechat.models.download import make_plan

        self.plan = make_plan(self.name)
        self.share = self.plan.here / self.plan.total if self.plan.total else 1.0
        self.stage = Stage.PLANNED

    def start(self) -> None:
        """Start or resume; does nothing while it runs."""
        if self.plan is not None and not self.stage.works and self.stage is not Stage.DONE:
            self.stage, self.error = Stage.RUNNING, ""
            self._halt.clear()
            self._begin(self._fetch)

    def pause(self) -> None:
        """Pause; received parts stay on disk, also when the program ends."""
        if self.stage is Stage.RUNNING:
            self.stage = Stage.PAUSING
            self._halt.set()

    def cancel(self) -> None:
        """Stop, and delete the received parts."""
        self._drop = True
        if self.stage is Stage.RUNNING:
            self.pause()
        elif self.stage is not Stage.PAUSING:
            self._halted()

    def _halted(self) -> None:
        from ropechat.models.hub.partial import discard

        if self._drop and self.plan is not None:
            discard(self.plan)
        self.stage = Stage.CANCELLED if self._drop else Stage.PAUSED

    def _fetch(self) -> None:
        from ropechat.models.download import fetch
        from ropechat.models.hub.progress import RateMeter, to_wait

        assert self.plan is not None
        speed, seen = RateMeter(time.monotonic), 0.0

        def look(progress: DownloadProgress) -> None:
            nonlocal seen
            if self._halt.is_set():
                raise _HaltedError
            if (now := time.monotonic()) - seen > 0.2 or progress.done == progress.total:
                seen, self.words = now, to_wait(progress, speed.update(progress.received)).words()
                self.share = progress.done / progress.total if progress.total else 1.0

        self.path = fetch(self.plan, look)
        self.share, self.stage = 1.0, Stage.DONE


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
