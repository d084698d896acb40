"""What a view costs and how exact it is, in words, before it is computed."""

from typing import TYPE_CHECKING

from ropechat.util.text import format_duration

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

SHORT_WINDOW = 1024
"""The window that is offered for long texts."""
_LONG_S, _WORTH = 10.0, 0.7
"""Seconds, and the share of them, from which it is."""


def told_seconds(engine: "Engine", tokens: float) -> str:
    """How long it takes to read so many tokens; "" for less than a second, and while that is not known."""
    rate = engine.speed.prefill
    return "" if not rate or tokens < rate else f", about {format_duration(tokens / rate)}"


def exactness(engine: "Engine") -> str:
    """How far the numbers may be from the model's own: "" for f32 weights and keys.

    Measured: at most 1.0 bits of a surprisal for a Q4_1 model, 0.12 for bf16 weights (docs/inspect.md).
    """
    dtype, kv_dtype = engine.facts["dtype"], engine.facts["kv_dtype"]
    if dtype == kv_dtype == "f32":
        return ""
    far = "1 bit" if "q" in dtype or "q" in kv_dtype else "0.15 bits"
    types = "--dtype f32 --kv-dtype f32"
    return f"; {dtype} weights: surprisals up to about {far} from the model's own ({types})"


def told_windows(engine: "Engine", tokens: int | None, window: int, stride: int) -> str:
    """How long a text in windows takes, and in shorter windows, if that is worth a word; else ""."""
    if tokens is None or window <= SHORT_WINDOW:
        return ""

    def seconds(size: int, move: int) -> float:
        count = 1 + max(0, -(-(tokens - size) // move))
        return count * (engine.speed.seconds_to_read(0, min(size, tokens)) or 0.0)

    now, shorter = seconds(window, stride), seconds(SHORT_WINDOW, SHORT_WINDOW // 2)
    if now < _LONG_S or shorter > now * _WORTH:
        return ""
    return (
        f"; about {format_duration(now)}, with --window {SHORT_WINDOW} and less context for each token about "
        f"{format_duration(shorter)}"
    )
