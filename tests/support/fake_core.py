"""A stand-in for ropechat.engine._core: a bigram model in NumPy that keeps the stub's promises.

Logits of the next token depend on the last token only (a fixed table), so a test can recompute every number.
"""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ropechat.errors import CancelledError, ContextFullError, ModelFileError, NonFiniteError, RequestError

__version__ = "0.0.fake"
CHUNK = 4


def table(vocab_size: int) -> np.ndarray:
    """Logits [last id, next id]: greedy walks last + 1, with a spread that makes ranks meaningful."""
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(vocab_size, vocab_size)).astype(np.float32)
    for last in range(vocab_size):
        logits[last, (last + 1) % vocab_size] = 6.0
    return logits


class CancelToken:
    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()


class Progress:
    """Nothing is ever waited for."""

    def read(self) -> None:
        return None


def _event(kind: str, sequence: int, position: int, **given: Any) -> SimpleNamespace:
    empty: dict[str, Any] = {"id": None, "logprob": None, "rank": None, "row": None, "stages": [], "u": None}
    empty |= {"candidates": [], "interval": None, "looked_up": [], "drafted": False, "channel": "answer"}
    return SimpleNamespace(
        kind=kind,
        sequence=sequence,
        position=position,
        **{**empty, "finish_reason": None, "done": 0, "total": 0, **given},
    )


class Engine:
    steps: int = 0
    log: list[list[int]]

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.table = table(facts["vocab_size"])
        self.sequences: dict[int, dict[str, Any]] = {}
        self.log = []
        self._next = 0
        self.before_step: Any = None
        self.poison: int | None = None  # a token that makes a pass over it raise NonFiniteError

    @staticmethod
    def load(
        directory: str,
        *,
        dtype: str = "auto",
        kv_dtype: str = "auto",
        threads: int | None = None,
        context: int | None = None,
        prefix_bytes: int | None = None,
        speculative: str = "auto",
        draft: str | None = None,
        pack_cache: Path | None = None,
        pack_smallest: int | None = None,
        before_packing: Any = None,
        progress: Any = None,
    ) -> "Engine":
        return Engine(
            check(directory)
            | {
                "dtype": "f32" if dtype == "auto" else dtype,
                "kv_dtype": "f32" if kv_dtype == "auto" else kv_dtype,
                "context": context or 64,
                "context_is_stated": context is not None,
                "weight_bytes": 1000,
            }
        )

    def finish_pack(self, seconds: float) -> bool:
        return True

    def _row(self, last: int, top_k: int) -> SimpleNamespace:
        logits = self.table[last].astype(np.float64)
        lse = float(np.log(np.exp(logits - logits.max()).sum()) + logits.max())
        logprobs = logits - lse
        top = np.lexsort((np.arange(len(logits)), -logits))[:top_k]
        probabilities = np.exp(logprobs)
        return SimpleNamespace(
            logsumexp=lse,
            entropy=float(-(probabilities * logprobs).sum()),
            varentropy=None,
            top_ids=[int(i) for i in top],
            top_logprobs=[float(logprobs[i]) for i in top],
            top_mass=float(probabilities[top].sum()),
        )

    def _judge(self, last: int, id: int) -> dict[str, Any]:
        logits = self.table[last].astype(np.float64)
        lse = self._row(last, 0).logsumexp
        return {"logprob": float(logits[id] - lse), "rank": 1 + int((logits > logits[id]).sum())}

    def _add(self, ids: Any, **state: Any) -> int:
        ids = list(ids)
        for id in ids:
            if not 0 <= id < self.facts["vocab_size"]:
                raise RequestError(f"id: {id}; below {self.facts['vocab_size']} is allowed")
        rows = len(ids) - (state.get("next") is False)
        if rows > self.facts["context"]:
            raise ContextFullError(f"{len(ids)} tokens; the context holds {self.facts['context']}")
        self._next += 1
        self.sequences[self._next] = {"ids": ids, "prompt": len(ids), "done": 0, "over": False, **state}
        return self._next

    def generate(self, ids: Any, sampling: Any, **options: Any) -> int:
        drawn = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
        return self._add(ids, options=options | drawn, made=0)

    def score(self, ids: Any, *, readout_top_k: int, start: int = 0, read_next: bool = True) -> int:
        number = self._add(ids, score=True, top_k=readout_top_k, start=start, next=read_next)
        self.sequences[number]["prompt"] -= not read_next
        return number

    def look_up(self, sequence: int, ids: Any) -> None:
        self.sequences[sequence]["look_up"] = list(ids)

    def step(self, sequences: Any, cancel: CancelToken) -> list[Any]:
        if self.before_step is not None:
            self.before_step()
        if cancel.cancelled:
            raise CancelledError("cancelled")
        live = [number for number in sequences if not self.sequences[number]["over"]]
        self.log.append(live)
        if any(self.poison in self.sequences[number]["ids"] for number in live):
            raise NonFiniteError("NaN in the logits")
        return [event for number in live for event in self._advance(number)]

    def _advance(self, number: int) -> list[Any]:
        state = self.sequences[number]
        start = state["done"]
        events = []
        if start < state["prompt"]:
            state["done"] = end = min(start + CHUNK, state["prompt"])
            if "score" in state:
                events.append(_event("prefill", number, end - 1, done=end, total=state["prompt"]))
                events += self._scores(number, start, end)
                return events
            events.append(_event("prefill", number, end - 1, done=end, total=state["prompt"]))
            if end < state["prompt"]:
                return events
        events.append(self._sample(number))
        return events

    def _scores(self, number: int, start: int, end: int) -> list[Any]:
        state = self.sequences[number]
        ids, events = state["ids"], []
        last = len(ids) - 1
        compared = [last] if end == last and not state["next"] else []
        for i in [*range(max(start, state["start"]), end), *compared]:
            given = (
                {}
                if i == 0
                else {"row": self._row(ids[i - 1], state["top_k"]), **self._judge(ids[i - 1], ids[i])}
            )
            if i:
                judged = [self._judge(ids[i - 1], id) for id in state.get("look_up", ())]
                given["looked_up"] = [(one["logprob"], one["rank"]) for one in judged]
            events.append(_event("score", number, i, id=ids[i], **given))
        if end == len(ids):
            events.append(_event("next", number, end - 1, row=self._row(ids[-1], state["top_k"])))
        state["over"] = end == state["prompt"]
        return events

    def _sample(self, number: int) -> Any:
        state = self.sequences[number]
        options, last, position = state["options"], state["ids"][-1], len(state["ids"])
        row = self._row(last, options["readout_top_k"])
        if options["temperature"] == 0:
            id, u, stages = int(self.table[last].argmax()), None, []
        else:
            u = float(np.random.default_rng([options["seed"], options["stream"], position]).random())
            weights = np.exp(self.table[last].astype(np.float64) / options["temperature"])
            id = int(np.searchsorted(np.cumsum(weights) / weights.sum(), u))
            stages = [
                SimpleNamespace(name="temperature", kept=len(weights), mass=1.0, entropy=1.0, value=None)
            ]
        state["ids"].append(id)
        state["made"] += 1
        reason = None
        if id in options["stop_ids"]:
            reason = "stop"
        elif state["made"] >= options["max_tokens"]:
            reason = "length"
        elif len(state["ids"]) >= self.facts["context"]:
            reason = "context"
        state["over"] = reason is not None
        judged = self._judge(last, id)
        return _event(
            "token", number, position, id=id, row=row, u=u, stages=stages, finish_reason=reason, **judged
        )

    def reused(self, sequence: int) -> int:
        return 0

    def free(self, sequence: int) -> None:
        del self.sequences[sequence]

    def logits(self, ids: Any, cancel: CancelToken, *, start_position: int = 0) -> np.ndarray:
        if cancel.cancelled:
            raise CancelledError("cancelled")
        return self.table[list(ids)].copy()


def read_config(directory: str) -> dict[str, Any]:
    return check(directory)


def packed_types(directory: str) -> dict[str, int]:
    return {"f32": facts(json.loads((Path(directory) / "config.json").read_text()))["weight_bytes"]}


def free_memory() -> int | None:
    return 16 * 10**9


def exit_when_cut(*, screen: bool = False) -> None:
    pass


def check(directory: str) -> dict[str, Any]:
    path = Path(directory) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: {error}") from None
    return facts(config)


def gguf_metadata(path: str) -> dict[str, Any]:
    """Of a file that holds JSON."""
    return dict(json.loads(Path(path).read_text()))


def facts(config: dict[str, Any]) -> dict[str, Any]:
    eos = config.get("eos_token_id")
    return {
        "model_type": "llama",
        "vocab_size": config["vocab_size"],
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_id": eos if isinstance(eos, list) else [] if eos is None else [eos],
        "dtype": "f32",
        "threads": 1,
        "isa": "scalar",
        "context": 64,
        "context_is_stated": False,
        "usable_length": config.get("max_position_embeddings", 64),
        **dict.fromkeys(
            (
                *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
                *("head_dim", "widest_head_dim", "kv_token_bytes"),
            ),
            1,
        ),
        "max_position_embeddings": config.get("max_position_embeddings", 64),
        "num_parameters": 67_600,
        "quantization": "",
        "weight_bytes": 0,
        "warnings": [],
        "notes": ["dtype: f32, as stored (0 bytes)"],
        "from_pack": False,
        "packing_seconds": 0.0,
    }
