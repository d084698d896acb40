"""Prompts as a Ray Data transformation: `ds.map_batches(Answer, ...)`.

    from ropechat.adapters.ray import Answer

    ds = ray.data.read_json("prompts.jsonl")
    ds = ds.map_batches(
        Answer,
        fn_constructor_kwargs={"model": "org/name", "seed": 1, "sampling": {"max_tokens": 64}},
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=8,
        batch_size=64,
    )

Seeds depend on the row's id, so a row draws the same tokens in any block, order and number of actors.
Without an id they depend on the row's content: then equal rows draw the same.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropechat.batch.line import LineError, parse_request, read_id
from ropechat.batch.output import Sink
from ropechat.batch.reader import BatchRow
from ropechat.batch.runner import compute_rows
from ropechat.batch.spec import BatchSpec, PromptOptions
from ropechat.engine.spec import ModelSpec
from ropechat.errors import RequestError
from ropechat.sampling import Sampling

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Column = npt.NDArray[np.generic]


class Answer:
    """Adds columns to a batch: text, finish_reason, prompt_tokens, completion_tokens, row_seed and error.

    And confidence and allowed, how sure an answer is that had to match choices or a schema; NaN for others.

    A batch has the columns prompt (text) or messages (lists of {"role", "content"}), and maybe id and those
    of a batch file's row (max_tokens, temperature, stop ...), which override `sampling`. A failed row has its
    error; the others are answered. model: as for `Engine.load`, on each node. sampling: fields of `Sampling`.
    seed: of the run. raw, system, fail_below: as `ropechat batch`; an unsure row has its text and an error.
    window: rows per forward pass. options: of `Engine.load`; threads default to the CPUs that Ray gives to
    the actor.
    """

    def __init__(
        self,
        model: str = "builtin",
        *,
        sampling: Mapping[str, Any] | None = None,
        seed: int = 0,
        raw: bool = False,
        system: str | None = None,
        window: int = 16,
        fail_below: float | None = None,
        **options: Any,
    ) -> None:
        threads = options.pop("threads", None) or _assigned_cpus()
        spec = ModelSpec(model, threads=threads, raw=raw, **options)
        self._engine, self._seed = spec.load(), seed
        drawn, prompts = Sampling(**(sampling or {})), PromptOptions(raw, system)
        self._spec = BatchSpec(
            Path(), spec, prompts=prompts, sampling=drawn, window=window, fail_below=fail_below
        )

    def __call__(self, batch: "dict[str, Column]") -> "dict[str, Column]":
        """Answer the rows of a batch."""
        import numpy as np

        size = len(next(iter(batch.values()), ()))
        rows = [self._row(index, batch) for index in range(size)]
        kept = _Kept(size)
        compute_rows(self._engine, rows, kept, self._spec, self._seed, total=size, early_stop=False)
        made = {
            name: np.array([found(record) for record in kept.records]) for name, found in _COLUMNS.items()
        }
        return {**batch, **made}

    @staticmethod
    def _row(index: int, batch: "dict[str, Column]") -> BatchRow:
        fields = {name: _plain(column[index]) for name, column in batch.items()}
        fields = {name: value for name, value in fields.items() if value is not None}
        own = _content_id(fields)  # the index is a place in this block only
        try:
            id = read_id(fields, index) if {"id", "custom_id"} & fields.keys() else own
            return BatchRow(index, index, id, parse_request(fields))
        except LineError as fault:
            return BatchRow(index, index, own, error=RequestError(str(fault)))


_COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "text": lambda record: record.get("text", ""),
    "finish_reason": lambda record: record.get("finish_reason") or "",
    "prompt_tokens": lambda record: record.get("usage", {}).get("prompt_tokens", 0),
    "completion_tokens": lambda record: record.get("usage", {}).get("completion_tokens", 0),
    "confidence": lambda record: _number(record.get("confidence")),
    "allowed": lambda record: _number(record.get("allowed")),
    "row_seed": lambda record: record.get("seed", 0),
    "error": lambda record: "" if record["ok"] else record["error"]["message"],
}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


class _Kept(Sink):
    """Keeps the records by row."""

    def __init__(self, size: int) -> None:
        self.records: list[Mapping[str, Any]] = [{} for _ in range(size)]

    def begin(self, row: BatchRow, samples: int) -> list[int]:
        """One answer per row."""
        return [0]

    def write(self, row: BatchRow, record: Mapping[str, Any]) -> None:
        self.records[row.index] = record


def _content_id(fields: Mapping[str, Any]) -> str:
    """An id that only equal rows share."""
    text = json.dumps(fields, sort_keys=True, default=str)
    return f"row-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def _plain(value: Any) -> Any:
    """A cell as a value of JSON."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def _assigned_cpus() -> int | None:
    """The CPUs that Ray gives to this actor; None outside an actor."""
    import ray

    if not ray.is_initialized():
        return None
    return int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0)) or None
