"""The rate of a download, and how far it is."""

import time
from collections import deque
from collections.abc import Callable

from ropechat.models.hub.transfer import DownloadProgress
from ropechat.util.progress import Progress, Wait

_RATE_WINDOW_S = 10.0  # the rate is the mean over this time


class RateMeter:
    """Computes bytes per second from repeated counts of received bytes."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: deque[tuple[float, int]] = deque([(now(), 0)])

    def update(self, received: int) -> float:
        """Add a count of received bytes and return the current rate."""
        now = self._now()
        self._seen.append((now, received))
        while len(self._seen) > 2 and now - self._seen[0][0] > _RATE_WINDOW_S:
            self._seen.popleft()
        begun, before = self._seen[0]
        return (received - before) / (now - begun) if now > begun else 0.0


def to_wait(progress: DownloadProgress, rate: float) -> Wait:
    """How far a download is: at this rate (bytes per second), with the largest file in progress."""
    done, total = progress.done, progress.total
    if progress.stage != "downloading":
        return Wait(Progress(progress.stage, done, total, "bytes"))
    running = [one for one in progress.files if one.state == "running" and one.file.size]
    notes: tuple[str, ...] = ()
    if running:
        one = max(running, key=lambda one: one.file.size)
        notes = (f"{one.file.name} {100 * one.done // one.file.size} %",)
    left = (total - done) / rate if rate > 0 and done < total else None
    return Wait(Progress("downloading", done, total, "bytes"), rate, left, notes=notes)
