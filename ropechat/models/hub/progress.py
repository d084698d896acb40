"""The rate of a download, and a description of its progress."""

import time
from collections import deque
from collections.abc import Callable

from ropechat.models.hub.transfer import DownloadProgress
from ropechat.util.text import format_bytes, format_duration

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


def describe_progress(progress: DownloadProgress, rate: float) -> list[str]:
    """Describe progress: bytes done and total, rate in bytes/s, time left, largest file in progress."""
    done, total = progress.done, progress.total
    parts = [f"{format_bytes(done)} of {format_bytes(total)}", f"{format_bytes(int(rate))}/s"]
    if rate > 0 and done < total:
        parts.append(f"ETA {format_duration((total - done) / rate)}")
    running = [one for one in progress.files if one.state == "running" and one.file.size]
    if running:
        one = max(running, key=lambda one: one.file.size)
        parts.append(f"{one.file.name} {100 * one.done // one.file.size} %")
    return parts
