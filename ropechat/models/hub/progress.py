"""How fast a download is, and what is said of it while it runs."""

import time
from collections import deque
from collections.abc import Callable

from ropechat.models.hub.transfer import DownloadProgress
from ropechat.util.text import format_bytes, format_duration

_RATE_WINDOW_S = 10.0  # the rate is a mean over the last ones


class RateMeter:
    """Bytes per second, from looks at how many came so far."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: deque[tuple[float, int]] = deque([(now(), 0)])

    def update(self, received: int) -> float:
        """The rate, now that so many bytes came."""
        now = self._now()
        self._seen.append((now, received))
        while len(self._seen) > 2 and now - self._seen[0][0] > _RATE_WINDOW_S:
            self._seen.popleft()
        begun, before = self._seen[0]
        return (received - before) / (now - begun) if now > begun else 0.0


def describe_progress(progress: DownloadProgress, rate: float) -> list[str]:
    """How much of how much, the rate (in bytes per second), the time left, and the file that comes now."""
    done, total = progress.done, progress.total
    parts = [f"{format_bytes(done)} of {format_bytes(total)}", f"{format_bytes(int(rate))}/s"]
    if rate > 0 and done < total:
        parts.append(f"ETA {format_duration((total - done) / rate)}")
    running = [one for one in progress.files if one.state == "running" and one.file.size]
    if running:
        one = max(running, key=lambda one: one.file.size)
        parts.append(f"{one.file.name} {100 * one.done // one.file.size} %")
    return parts
