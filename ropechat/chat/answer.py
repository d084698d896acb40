"""An answer as the screen shows it, and the question it belongs to: states, tokens, figures."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from ropechat.conversation import Node, NodeState, Role, surprisal_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.chat import events as ev
    from ropechat.trace import FinishReason, Step

RATE_WINDOW_S = 2.0  # seconds


class State(StrEnum):
    """Where an answer stands."""

    WAITING = "waiting"
    READING = "reading"
    WRITING = "writing"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def live(self) -> bool:
        """More may come."""
        return self in (State.WAITING, State.READING, State.WRITING, State.STOPPING)


@dataclass
class Answer:
    """How an answer comes about. What it says, and whether the model reads it again, its node alone knows."""

    node: Node
    asked: float = 0.0
    state: State = State.WAITING
    prefilled: int = 0
    first_at: float | None = None
    last_at: float | None = None
    total_bits: float = 0.0  # `node.bits`, summed up as the tokens come
    error: BaseException | None = None
    read_from: float | None = None  # when reading the prompt began
    reused: int | None = None  # tokens of the prompt that were in the KV cache; None: not known
    fed: int = 0  # tokens of the prompt, with those that the answer began with
    kv_bytes: int = 0  # allocated when the answer ended
    _recent: deque[float] = field(default_factory=deque)

    @classmethod
    def of(cls, node: Node) -> Answer:
        """What is known of an answer that was kept."""
        states = {
            NodeState.STREAMING: State.STOPPED,  # another program writes it
            NodeState.DONE: State.DONE,
            NodeState.STOPPED: State.STOPPED,
            NodeState.FAILED: State.FAILED,
        }
        return cls(
            node,
            state=states[node.state],
            first_at=node.first_after,
            last_at=node.ended_after,
            total_bits=node.bits,
        )

    @classmethod
    def missing(cls, question: str) -> Answer:
        """What stands for the answer to a question that has none."""
        return cls.of(Node("", question, Role.ASSISTANT, state=NodeState.STOPPED))

    @property
    def steps(self) -> list[Step]:
        """The tokens with their records."""
        return self.node.steps

    @property
    def given(self) -> int:
        """Tokens that it began with: they were not drawn."""
        return self.node.prefix_length

    @property
    def prompt_tokens(self) -> int:
        """Tokens that were read before it."""
        return self.node.prompt_tokens

    @property
    def reason(self) -> FinishReason | None:
        """Why it ended; None before that."""
        return self.node.finish_reason

    @property
    def written(self) -> str:
        """The text where there are no records."""
        return self.node.final_text

    @property
    def text(self) -> str:
        """The raw text, not cleaned."""
        return self.node.text

    @property
    def counts(self) -> bool:
        """Is this turn fed to the model again?"""
        return self.node.in_context

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from the question to the first token."""
        return None if self.first_at is None else self.first_at - self.asked

    @property
    def seconds(self) -> float:
        """Seconds from the question to the last token."""
        return 0.0 if self.last_at is None else self.last_at - self.asked

    @property
    def bits_per_token(self) -> float | None:
        """Mean surprisal."""
        return self.total_bits / len(self.steps) if self.steps else None

    @property
    def rate(self) -> float | None:
        """Tokens per second: of the last two seconds while writing, of the whole answer after it."""
        if self.first_at is None or self.last_at is None:
            return None
        if self.state.live and len(self._recent) > 3:
            count, span = len(self._recent) - 1, self._recent[-1] - self._recent[0]
        else:
            count, span = len(self.steps) - self.given - 1, self.last_at - self.first_at
        return count / span if count > 0 and span > 0 else None

    @property
    def prefill_rate(self) -> float | None:
        """Tokens of the prompt per second that were computed, up to the first token drawn."""
        if self.read_from is None or self.first_at is None or self.reused is None:
            return None
        span, count = self.first_at - self.read_from, self.fed - self.reused
        return count / span if count > 0 and span > 0 else None

    def read(self, done: int, total: int, at: float) -> None:
        """So much of the prompt is read."""
        if self.read_from is None:
            self.read_from, self.reused, self.fed = at, done, total
        self.prefilled = done

    def give(self, steps: Sequence[Step]) -> None:
        """Count the tokens that it begins with; its node has them."""
        self.total_bits += sum(map(surprisal_bits, steps))

    def add(self, step: Step, at: float) -> None:
        """Count one token that came; its node has it."""
        self.total_bits += surprisal_bits(step)
        self.first_at = at if self.first_at is None else self.first_at
        self.last_at = at
        self._recent.append(at)
        while at - self._recent[0] > RATE_WINDOW_S:
            self._recent.popleft()


@dataclass
class Turn:
    """A question and its answer. asked, node: their nodes. request: what the model was asked, if now."""

    question: str
    answer: Answer
    asked: str
    node: str | None
    request: ev.Reply | None = None
