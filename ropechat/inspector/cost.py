"""What a view costs and how exact it is, in words, before it is computed."""

from typing import TYPE_CHECKING

from ropechat.util.text import format_duration

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine


def told_seconds(engine: "Engine", tokens: int) -> str:
    """How long it takes to read so many tokens; "" for less than a second, and while that is not known."""
    rate = engine.speed.prefill
    return "" if not rate or tokens < rate else f", about {format_duration(tokens / rate)}"


def exactness(engine: "Engine") -> str:
    """How far the numbers may be from the model's own: "" for f32 weights and keys.

    Measured: at most 0.69 nats of a logprob for a Q4_1 model, 0.08 for bf16 weights (docs/inspect.md).
    """
    dtype, kv_dtype = engine.facts["dtype"], engine.facts["kv_dtype"]
    if dtype == kv_dtype == "f32":
        return ""
    far = "0.7" if "q" in dtype or "q" in kv_dtype else "0.1"
    types = "--dtype f32 --kv-dtype f32"
    return f"; {dtype} weights: logprobs up to about {far} nats from the model's own ({types})"
