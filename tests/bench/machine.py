"""Whether another program uses the processors (Linux only; other systems always answer no)."""

import os
import platform
import time
from pathlib import Path

IDLE = 0.1
"""Processors in use below which the machine counts as idle."""
DISTURBED = 0.2
"""Processors that others may use during a measurement."""
TICKS = 0.04
"""Seconds of processor that may be nobody's: `busy_seconds` counts in hundredths, and asking takes time."""

_STAT = Path("/proc/stat")
_PER_SECOND = os.sysconf("SC_CLK_TCK")


def processor_name() -> str:
    """What the processor calls itself."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def busy_seconds() -> float:
    """Seconds that the processors have worked since the machine began, for anybody."""
    if not _STAT.exists():
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, _STAT.read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _PER_SECOND


def wait_for_quiet(patience: float) -> None:
    """Return when the machine is idle, or after `patience` seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before = busy_seconds()
        time.sleep(0.3)
        if (busy_seconds() - before) / 0.3 < IDLE:
            return
