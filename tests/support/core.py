"""Short ways to ask the compiled engine: every row it produces, by position."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ropechat.engine._core import CancelToken, Event, Row
from ropechat.engine._core import Engine as Core
from ropechat.errors import CancelledError
from ropechat.sampling import DEFAULTS

GREEDY: dict[str, Any] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "seed": 0,
}
Rows = dict[int, tuple[Any, ...]]  # position -> everything that a row says, exactly


def load(
    directory: Path,
    *,
    threads: int | None = 1,
    context: int | None = 512,
    dtype: str = "f32",
    kv_dtype: str = "auto",
    prefix_bytes: int | None = None,
    speculative: str = "auto",
) -> Core:
    return Core.load(
        str(directory),
        dtype=dtype,
        kv_dtype=kv_dtype,
        threads=threads,
        context=context,
        prefix_bytes=prefix_bytes,
        speculative=speculative,
    )


def logits(engine: Core, ids: Sequence[int]) -> np.ndarray:
    """[T, V]"""
    return engine.logits(ids, CancelToken())


def add(engine: Core, ids: Sequence[int], max_tokens: int, **sampling: Any) -> int:
    """A sequence to be continued, whose rows are read out over the whole vocabulary."""
    vocab = engine.facts["vocab_size"]
    asked = {"logit_bias": (), "stream": 0} | GREEDY | sampling
    draw = {name: asked.pop(name) for name in ("seed", "stream")}
    options = {name: asked.pop(name) for name in ("stop_ids", "grammar", "reply_start") if name in asked}
    settings: Any = SimpleNamespace(**{**vars(DEFAULTS), "max_tokens": max_tokens, **asked})
    return engine.generate(ids, settings, readout_top_k=vocab, **draw, **options)


def add_score(engine: Core, ids: Sequence[int]) -> int:
    return engine.score(ids, readout_top_k=engine.facts["vocab_size"])


def say(row: Row) -> tuple[Any, ...]:
    """What a row says, to be compared bit for bit."""
    return row.logsumexp, row.entropy, tuple(row.top_ids), tuple(row.top_logprobs)


def logits_of(row: Row) -> np.ndarray:
    """The logits again: a logit is its logprob plus the log-sum-exp.  # [V]"""
    out = np.full(max(row.top_ids) + 1, np.nan)
    out[row.top_ids] = np.array(row.top_logprobs) + row.logsumexp
    return out


def drain(engine: Core, sequences: Sequence[int]) -> Iterator[Event]:
    """Step until all sequences are finished; every event."""
    while events := engine.step(sequences, CancelToken()):
        yield from events


def score(engine: Core, *prompts: Sequence[int]) -> list[Rows]:
    """All prompts scored in the same steps, then freed."""
    return scored(engine, {add_score(engine, ids): ids for ids in prompts})


def scored(engine: Core, sequences: Mapping[int, Sequence[int]]) -> list[Rows]:
    """The rows of sequences (number: ids), by the position they speak about; then these are freed."""
    rows: dict[int, Rows] = {sequence: {} for sequence in sequences}
    for event in drain(engine, list(sequences)):
        if event.row is not None:
            at = len(sequences[event.sequence]) if event.kind == "next" else event.position
            assert at not in rows[event.sequence], "a row was reported twice"
            rows[event.sequence][at] = say(event.row)
    for sequence in sequences:
        engine.free(sequence)
    return [rows[sequence] for sequence in sequences]


def generate(
    engine: Core, ids: Sequence[int], max_tokens: int, **sampling: Any
) -> tuple[list[int], Rows, int]:
    """(new ids, rows, reused prompt tokens) of one sequence, alone."""
    sequence = add(engine, ids, max_tokens, **sampling)
    tokens = [event for event in drain(engine, [sequence]) if event.kind == "token"]
    reused = engine.reused(sequence)
    engine.free(sequence)
    return [event.id for event in tokens], {event.position: say(event.row) for event in tokens}, reused


def generate_with_cancels(engine: Core, sequence: int, count: int) -> tuple[list[int], int]:
    """(ids until there are `count`, how many were drafted), with two cancelled steps before each."""
    cancelled, found, drafted = CancelToken(), [], 0
    cancelled.cancel()
    while len(found) < count:
        for _ in range(2):
            with pytest.raises(CancelledError):
                engine.step([sequence], cancelled)
        events = [event for event in engine.step([sequence], CancelToken()) if event.kind == "token"]
        found += [event.id for event in events]
        drafted += sum(event.drafted for event in events)
    return found, drafted
