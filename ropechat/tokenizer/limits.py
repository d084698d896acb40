"""Limits of a tokenizer that works in a process of its own, shared by that process and its client."""

MAX_MEMORY_BYTES = 768 << 20
"""Address space in addition to that of the idle process."""
MAX_REPLY_BYTES = 128 << 20
LOAD_SECONDS = 6.0
"""CPU time for building the tokenizer."""
WALL_SECONDS = 60.0
"""For a process that is stopped or starved; any other one reaches a limit of CPU time first."""


def cpu_seconds(request_bytes: int) -> float:
    """Limit of CPU time for a text: ordinary ones take less than a second per MB."""
    return round(2 + 1.5e-6 * request_bytes, 1)
