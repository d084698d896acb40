"""What this session knows about an answer in addition to its node: times of its tokens and its prefill."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ropechat.conversation import Node, NodeState, Role, surprisal_bits, thought_length

if TYPE_CHECKING:
    from ropechat.chat import events as ev

RATE_WINDOW_S = 2.0


@dataclass
class Thought:
    """What the model thought before an answer. tokens: without markers. bits: their surprisal in all.

    read: tokens of the answer that are counted, markers included; all of the thought once `ended`. seconds:
    from the first token to the last; None: not known.
    """

    tokens: int = 0
    bits: float = 0.0
    read: int = 0
    ended: bool = False
    seconds: float | None = None


@dataclass
class Answer:
    """The timings of an answer. Its node holds everything else: tokens, state, figures that are stored.

    asked: when this session asked for it (seconds, monotonic); None for an answer that was loaded.
    """

    node: Node
    asked: float | None = None
    started: bool = False  # the prompt fits and the model reads it
    stopping: bool = False  # the user stopped it; the model may not know yet
    prefilled: int = 0  # tokens of the prompt that are computed
    first_at: float | None = None
    last_at: float | None = None
    error: BaseException | None = None
    read_from: float | None = None  # when reading the prompt began
    reused: int | None = None  # tokens of the prompt that were in the KV cache; None: not known
    fed: int = 0  # tokens of the prompt, including the prefix of the answer
    kv_bytes: int = 0  # allocated when the answer ended
    _recent: deque[float] = field(default_factory=deque)
    _bits: float = 0.0  # sum over the first `_counted` tokens
    _counted: int = 0
    _thought: Thought = field(default_factory=Thought)

    @classmethod
    def missing(cls, question: str) -> Answer:
        """The placeholder for a question that has no answer."""
        return cls(Node("", question, Role.ASSISTANT, state=NodeState.STOPPED))

    @property
    def live(self) -> bool:
        """Whether this session may still add tokens. Another program may be writing a loaded one."""
        return self.asked is not None and self.node.state is NodeState.STREAMING

    @property
    def drawn(self) -> int:
        """The number of tokens that the model drew: those that the answer began with do not count."""
        waiting = self.live and not self.started
        return 0 if waiting else len(self.node.steps) - self.node.prefix_length

    @property
    def total_bits(self) -> float:
        """The surprisal of all tokens; each call adds only the tokens that are new."""
        steps = self.node.steps
        if self._counted > len(steps):
            self._bits, self._counted = 0.0, 0
        self._bits += sum(map(surprisal_bits, steps[self._counted :]))
        self._counted = len(steps)
        return self._bits

    @property
    def thought(self) -> Thought | None:
        """What is known of the thought; None if there is none. Each call counts only tokens that are new."""
        found, steps = self._thought, self.node.steps
        found.seconds = self.node.thought_seconds if found.seconds is None else found.seconds
        if found.read > len(steps):
            found = self._thought = Thought()
        if not found.ended and found.read < len(steps):
            new = steps[found.read :]
            count = thought_length(new)
            own = [step for step in new[:count] if step.channel == "thought"]
            found.tokens += len(own)
            found.bits += sum(map(surprisal_bits, own))
            found.read, found.ended = found.read + count, count < len(new)
        return found if found.read or self.node.final_reasoning else None

    @property
    def thinking(self) -> bool:
        """Whether the thought is being written."""
        return self.live and (found := self.thought) is not None and not found.ended

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from the question to the first token."""
        if self.asked is None:
            return self.node.first_after
        return None if self.first_at is None else self.first_at - self.asked

    @property
    def seconds(self) -> float:
        """Seconds from the question to the last token."""
        if self.asked is None:
            return self.node.ended_after or 0.0
        return 0.0 if self.last_at is None else self.last_at - self.asked

    @property
    def bits_per_token(self) -> float | None:
        """Mean surprisal."""
        return self.total_bits / len(self.node.steps) if self.node.steps else None

    @property
    def rate(self) -> float | None:
        """Tokens per second: of the last two seconds while writing, of the whole answer after it."""
        if (first := self.time_to_first_token) is None:
            return None
        if self.live and len(self._recent) > 3:
            count, span = len(self._recent) - 1, self._recent[-1] - self._recent[0]
        else:
            count, span = self.drawn - 1, self.seconds - first
        return count / span if count > 0 and span > 0 else None

    @property
    def prefill_rate(self) -> float | None:
        """Tokens of the prompt per second that were computed, up to the first token drawn."""
        if self.read_from is None or self.first_at is None or self.reused is None:
            return None
        span, count = self.first_at - self.read_from, self.fed - self.reused
        return count / span if count > 0 and span > 0 else None

    def record_prefill(self, done: int, total: int, at: float) -> None:
        """Take in that `done` of `total` prompt tokens are computed."""
        if self.read_from is None:
            self.read_from, self.reused, self.fed = at, done, total
        self.prefilled = done

    def record_token(self, at: float, *, thinks: bool = False) -> None:
        """Record that the model drew a token. thinks: it belongs to a thought."""
        self.first_at = at if self.first_at is None else self.first_at
        self.last_at = at
        if thinks:
            self._thought.seconds = at - self.first_at
        self._recent.append(at)
        while at - self._recent[0] > RATE_WINDOW_S:
            self._recent.popleft()


@dataclass
class Turn:
    """A question and its answer. request: what this session asked the model; None for a loaded turn."""

    question_node: Node
    answer: Answer
    request: ev.Reply | None = None

    @property
    def question(self) -> str:
        return self.question_node.text

    @property
    def asked(self) -> str:
        """The id of the question's node."""
        return self.question_node.id

    @property
    def node(self) -> str | None:
        """The id of the answer's node; None without an answer."""
        return self.answer.node.id or None
