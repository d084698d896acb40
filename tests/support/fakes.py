"""Stand-ins for the engine: deterministic, with a speed, a gate and faults to order."""

from __future__ import annotations

import math
import time
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import simulated_time

from ropechat.engine.engine import SpelledToken
from ropechat.errors import CancelledError
from ropechat.models.speed import Speed
from ropechat.sampling import AUTO
from ropechat.tokenizer import EncodedToken
from ropechat.trace import Score, Step, TokenDistribution, TokenScore, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ropechat.conversation import Message
    from ropechat.sampling import Sampling, Thinking
    from ropechat.trace import Channel, Pair

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the big, green park. "
    "One day, she saw a shiny red ball under a tree.\n\nThe ball was stuck between two roots, and Lily "
    'pulled with all her might. A small mouse looked up and said, "Please be gentle, that is my roof!" '
    "Lily was surprised. She had never met a mouse that could talk.\n\n"
    '"I am sorry," said Lily. "May I build you a better roof?" '
    "The mouse smiled and showed her a heap of acorn caps.\n"
)


STOP = 4000
END = 4001  # closes a thought


def pieces(text: str) -> list[bytes]:
    """A toy tokenization: short pieces of words with their leading blank; their joined bytes are the text."""
    found: list[str] = []
    word = ""
    for character in text:
        if character in " \n" or len(word) >= 5:
            found.append(word)
            word = ""
        word += character
    found.append(word)
    return [piece.encode("utf-8", "surrogatepass") for piece in found if piece]


class Gate:
    """A `threading.Event` that says to `changed` when it is set."""

    def __init__(self, changed: simulated_time.Condition, is_set: bool = False) -> None:
        self.changed, self._is_set = changed, is_set

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self.changed:
            self._is_set = True
            self.changed.notify()

    def clear(self) -> None:
        self._is_set = False


class FakePrompts:
    """Has nothing to say by itself."""

    def __init__(self) -> None:
        self.on_note: Callable[[str], None] = lambda text: None
        self.told_in_vain: list[str] = []
        self.thoughts: Any = None

    def unused(self) -> list[str]:
        return self.told_in_vain

    def encode_long(
        self, text: str, special: str = "text", bos: str = "auto"
    ) -> Iterator[list[EncodedToken]]:
        """The toy tokens with their places."""
        ends = list(accumulate(map(len, pieces(text))))
        yield [EncodedToken(7, (start, end), "text") for start, end in pairwise([0, *ends])]


class FakePrefill:
    """A text that is read ahead."""

    def __init__(self, total: int, step: int, gate: Gate) -> None:
        self.done, self.total = 0 if step else total, total
        self.steps, self.closed, self.cancelled = 0, False, Gate(gate.changed)
        self._step, self._gate = step, gate

    def take(self, path: Path) -> str | None:
        return None

    def step(self) -> bool:
        """One step, unless everything is read; a closed gate holds it."""
        with self._gate.changed:
            self._gate.changed.wait_for(lambda: self._gate.is_set() or self.cancelled.is_set())
        if self.done >= self.total or self.cancelled.is_set():
            return False
        self.steps += 1
        self.done = min(self.total, self.done + self._step)
        return self.done < self.total

    def keep(self) -> None:
        """Nothing."""

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    """Answers with a script, one toy token at a time."""

    def __init__(
        self,
        script: str | Sequence[str] = STORY,
        *,
        name: str = "fake-1m",
        context: int = 512,
        has_chat_template: bool = True,
        rate: float = 0.0,
        prefill: float = 0.0,
        fail_after: int | None = None,
        error: BaseException | None = None,
        facts: Mapping[str, Any] | None = None,
        thought: str = "",
    ) -> None:
        self.name = name
        self.context = context
        self.has_chat_template = has_chat_template
        self.facts: Mapping[str, Any] = facts or {"dtype": "f32"}
        self.thought = thought  # before each script, between its markers
        self.own_sampling: Mapping[str, float] = {}
        self.own_without_thinking: Mapping[str, float] = {}
        self.scripts = [script] if isinstance(script, str) else list(script)
        self.asked: list[tuple[Message, ...]] = []
        self.settings: list[Sampling] = []
        self.rate = rate  # tokens per second; 0: as fast as it goes
        self.prefill = prefill  # seconds
        self.prefill_rate = 0.0  # tokens per second that `reading` expects; 0: not known
        self.fail_after = fail_after
        self.error = error or RuntimeError("broken on purpose")
        self._changed = simulated_time.Condition()
        self.gate = Gate(self._changed, True)  # closed: the answer waits before each token
        self.closed = False
        self.prompts = FakePrompts()
        self.reused = 0  # tokens of a prompt that are in the cache
        self.kv_bytes = 0
        self.stop_ids = frozenset({STOP})
        self.prefixes: list[list[int]] = []
        self.read_step = 0  # tokens of a step of `begin_prefill`; 0: everything is cached
        self.read_gate = Gate(self._changed, True)  # closed: a step waits, until it is cancelled
        self.read: list[FakePrefill] = []
        self.cancels = 0
        self.rows = 0  # that `score_many` computed
        self.hold_at = 0  # the row before which `score_many` closes the gate
        self.speed = Speed(prefill=100.0)
        self.tokenizer = SimpleNamespace(control_ids=frozenset())
        self._cancelled = Gate(self._changed)

    def recommended(self, think: str = "auto") -> Mapping[str, float]:
        """The settings of its maker."""
        return self.own_without_thinking if think == "off" else self.own_sampling

    @property
    def thinks(self) -> bool:
        return bool(self.thought)

    @property
    def closing_ids(self) -> list[int]:
        return [END] if self.thought else []

    def prompt_ids(
        self, messages: Sequence[Message], template_vars: Any = None, thinking: Thinking = AUTO
    ) -> list[int]:
        """One id for each toy token."""
        overhead = 4 if self.has_chat_template else 0
        return [7] * sum(len(pieces(message.content)) + overhead for message in messages)

    @property
    def cache_key(self) -> str | None:
        """Nothing goes to disk."""
        return None

    def certain_ids(self, messages: Sequence[Message], thinking: Thinking = AUTO) -> list[int]:
        """Those of the messages."""
        return self.prompt_ids(messages)

    def begin_prefill(self, ids: Sequence[int]) -> FakePrefill:
        """Read by `read_step` tokens at a time; without a step, everything is cached."""
        made = FakePrefill(len(ids), self.read_step, self.read_gate)
        self.read.append(made)
        return made

    def reply(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        prefix: Sequence[int] = (),
        top_k: int = 0,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Iterator[Step]:
        """The next script, cut by max_tokens, the context, cancelling or the fault that was ordered."""
        self._cancelled.clear()
        self.asked.append(tuple(messages))
        self.settings.append(sampling)
        self.prefixes.append(list(prefix))
        used = len(self.prompt_ids(messages))
        yield from self._steps(used, len(prefix), sampling, top_k, on_prefill)

    @property
    def _script(self) -> list[bytes]:
        said = pieces(self.scripts[min(len(self.asked), len(self.scripts)) - 1])
        return [b"<think>", *pieces(self.thought), b"</think>", *said] if self.thought else said

    def _channel(self, id: int) -> Channel:
        """Of a toy token of the script."""
        end = 1 + len(pieces(self.thought)) if self.thought else -1
        return "answer" if id > end and id != END else "marker" if id in (0, end, END) else "thought"

    def rope_spec(self, length: int = 0) -> dict[str, Any]:
        """Two layers with one rope of four pairs."""
        layer = {"rope": 0, "window": None, "attention_scale": 1.0}
        rope = {"theta": 1e4, "rotary_dim": 8, "interleaved": False, "rope_type": "default"}
        rope |= {"inv_freq": [1.0, 0.1, 0.01, 0.001], "attention_factor": 1.0}
        sizes = dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_hidden_layers"), 2)
        return {
            **sizes,
            **{"model_type": "llama", "position": "none", "max_position_embeddings": 512},
            **{"head_dim": 8, "widest_head_dim": 8, "hidden_size": 16, "attention_multiplier": 0.35},
            **{
                "attn_logit_softcapping": None,
                "query_scaling": None,
                "layers": [layer, layer],
                "ropes": [rope],
            },
        }

    def token_bytes(self, id: int) -> bytes:
        """The toy token of the newest script; ids beyond it are words of their own, from 5000 on bytes."""
        if id in (STOP, END):
            return b"</think>" if id == END else b""
        if id >= 5000:
            return bytes([id - 5000])
        script = self._script  # a thread that begins an answer replaces it
        return script[id] if id < len(script) else f" word{id}".encode()

    def spell(
        self,
        messages: Sequence[Message],
        ids: Sequence[int],
        after: Sequence[int] = (),
        thinking: Thinking = AUTO,
    ) -> list[SpelledToken]:
        """Whole characters only: good enough for scripts in ASCII."""
        channels = [self._channel(id) for id in ids]
        if after and self._channel(after[-1]) == "thought":  # which goes on until its marker
            end = channels.index("marker") if "marker" in channels else len(ids)
            channels[:end] = ["thought"] * end
        return [
            SpelledToken(
                data,
                data.decode() if channel == "answer" else "",
                data.decode() if channel == "thought" else "",
                channel,
            )
            for data, channel in zip(map(self.token_bytes, ids), channels, strict=True)
        ]

    def next_distributions(
        self, prompts: Iterable[Sequence[int]], *, top_k: int = 20, window: int = 16
    ) -> Iterator[TokenDistribution]:
        """The ids from 0 on, each half as likely as the one before."""
        for ids in prompts:
            top = tuple((id, -(1 + id) * math.log(2)) for id in range(top_k))
            yield TokenDistribution(len(ids) - 1, top, 0.0, 2 * math.log(2), 1.0)

    def reply_ids(self, messages: Sequence[Message], text: str, thinking: Thinking = AUTO) -> list[int]:
        """The ids of the newest script as far as the text is the same, then one for each character."""
        data, ids = text.encode(), []
        for id, token in enumerate(self._script):
            if not data.startswith(token):
                break
            ids.append(id)
            data = data[len(token) :]
        return ids + [5000 + byte for byte in data]

    @property
    def window(self) -> int:
        return self.context

    def score_many(
        self, items: Sequence[Pair], *, top_k: int = 0, window: int = 16, special: str = "", bos: str = ""
    ) -> Iterator[tuple[int, Score]]:
        """The first token costs 60 bits, less 0.1 for each token of the context; the gate holds each item."""
        self._cancelled.clear()
        for number, pair in enumerate(items):
            self.rows += 1
            if self.rows == self.hold_at:
                self.gate.clear()
            if self._wait(0.0):
                raise CancelledError("cancelled")
            before, row = len(pair.context), TokenDistribution(0, (), 1.0, 1.0, 0.0)
            tokens = []
            for at, id in enumerate(pair.continuation):
                logprob = 0.0 if at else -(60 - before / 10) * math.log(2)
                data = self.token_bytes(int(id))
                token = TokenScore(
                    before + at, int(id), data, data.decode(), (0, 1), "text", logprob, 1, 1.0, row
                )
                tokens.append(token)
            trace = Trace(tuple(tokens), row, {"tokens": before + len(tokens), "text": ""})
            yield number, Score(tokens[0].logprob or 0.0, len(tokens), 1, True, trace)

    def trace_facts(self, top_k: int) -> dict[str, Any]:
        """Nothing that a screen shows."""
        return {"model": self.name, "top_k": top_k}

    def _steps(
        self,
        used: int,
        given: int,
        sampling: Sampling,
        top_k: int,
        on_prefill: Callable[[int, int], None] | None,
    ) -> Iterator[Step]:
        chunks = 10
        if on_prefill is not None:
            on_prefill(min(self.reused, used), used)
        for chunk in range(1, chunks + 1):
            if self._wait(self.prefill / chunks):
                return
            if on_prefill is not None:
                on_prefill(used * chunk // chunks, used)
        tokens = self._script
        held = b""
        closed = bool(self.thought and given and self.prefixes[-1][-1] == END)
        if closed:  # the thought was ended early
            tokens = tokens[tokens.index(b"</think>") + 1 :]
            tokens = [*[b""] * given, *tokens]
        for index, token in list(enumerate(tokens))[given:]:
            if self.fail_after == index:
                raise self.error
            if self._wait(1 / self.rate if self.rate else 0.0):
                return
            held += token
            try:
                text, held = held.decode("utf-8", "surrogatepass"), b""
            except UnicodeDecodeError:
                text = ""
            reason = (
                "context"
                if used + index + 1 >= self.context
                else "length"
                if index + 1 - given >= sampling.max_tokens
                else "stop"
                if index + 1 == len(tokens)
                else None
            )
            step = fake_step(index, token, text, reason, used + index, top_k)
            channel = "answer" if closed else self._channel(index)
            if channel != "answer":
                step = step._replace(text="", reasoning=text if channel == "thought" else "", channel=channel)
            yield step
            if reason is not None:
                return

    def prefill_estimate(self, ids: Sequence[int]) -> tuple[int, float | None]:
        """All of a prompt is read, at the rate of `prefill_rate`."""
        return len(ids), len(ids) / self.prefill_rate if self.prefill_rate else None

    def cancel(self) -> None:
        """Stop what runs."""
        self.cancels += 1
        self._cancelled.set()

    def close(self) -> None:
        """Nothing to give back."""
        self.closed = True

    def _wait(self, seconds: float) -> bool:
        """Wait for the time and for the gate; True if cancelled."""
        end = time.monotonic() + seconds
        with self._changed:
            while (left := end - time.monotonic()) > 0 or not self.gate.is_set():
                if self._cancelled.is_set():
                    return True
                self._changed.wait(left if left > 0 else None)
        return self._cancelled.is_set()


def fake_step(
    index: int, token: bytes, text: str, reason: Any = None, position: int = 0, top_k: int = 0
) -> Step:
    """A step whose surprisal is a fixed function of its bytes: mostly small, now and then large."""
    draw = ((sum(token) * 2654435761 + index * 40503) >> 7) % 1000 / 1000
    bits = 0.05 + 10.0 * draw**8 + 0.6 * draw
    logprob = -bits * math.log(2)
    top = tuple((number, logprob - 0.3 * number) for number in range(top_k))
    row = TokenDistribution(position, top, 10.0, bits * 0.8, 0.9) if top_k else None
    return Step(
        id=index,
        bytes=token,
        text=text,
        logprob=logprob,
        rank=1 + int(bits),
        entropy=bits * 0.8,
        top=top,
        finish_reason=reason,
        position=position,
        row=row,
        stages=(),
        u=None,
    )
