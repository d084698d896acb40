"""The state of a chat, without a widget: turns, what the model does, and the figures on the screen."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from ropechat.conversation import Message, Role
from ropechat.tui import events as ev

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.sampling import Sampling
    from ropechat.trace import FinishReason, Step

RATE_WINDOW = 2.0  # seconds


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


def bits(step: Step) -> float:
    """Surprisal of a step's token in bits, under the raw distribution."""
    return max(0.0, -step.logprob / math.log(2.0))


@dataclass
class Answer:
    """What the model said: every token with its record."""

    asked: float
    state: State = State.WAITING
    steps: list[Step] = field(default_factory=list)
    prompt_tokens: int = 0
    prefilled: int = 0
    first_at: float | None = None
    last_at: float | None = None
    total_bits: float = 0.0
    reason: FinishReason | None = None
    error: BaseException | None = None
    _recent: deque[float] = field(default_factory=deque)

    @property
    def text(self) -> str:
        """The raw text, not cleaned."""
        return "".join(step.text for step in self.steps)

    @property
    def counts(self) -> bool:
        """Is this turn fed to the model again? One that broke off before its first token is not."""
        return bool(self.steps) or self.state is State.DONE

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
            count, span = len(self.steps) - 1, self.last_at - self.first_at
        return count / span if count > 0 and span > 0 else None

    def add(self, step: Step, at: float) -> None:
        """Take in one token."""
        self.steps.append(step)
        self.total_bits += bits(step)
        self.first_at = at if self.first_at is None else self.first_at
        self.last_at = at
        self._recent.append(at)
        while at - self._recent[0] > RATE_WINDOW:
            self._recent.popleft()


@dataclass
class Turn:
    """A question and its answer."""

    question: str
    answer: Answer
    request: ev.Reply


class Session:
    """One chat with one model. The only writer of its turns; the screen reads them."""

    def __init__(
        self,
        model: str,
        sampling: Sampling,
        system: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.sampling = sampling
        self.system = system
        self.info: ev.ModelInfo | None = None
        self.load_error: BaseException | None = None
        self.turns: list[Turn] = []
        self.draft_tokens: int | None = None  # tokens of the whole prompt, draft included; None: not known
        self._serial = 0
        self._clock = clock

    @property
    def last(self) -> Turn | None:
        """The newest turn."""
        return self.turns[-1] if self.turns else None

    @property
    def generating(self) -> bool:
        """Is an answer under way?"""
        return self.last is not None and self.last.answer.state.live

    @property
    def context(self) -> int | None:
        """Tokens the model can hold; None before it is loaded."""
        return self.info.context if self.info else None

    @property
    def used(self) -> int | None:
        """Tokens of the context that are taken now; None while that is not known."""
        if self.generating and self.last is not None:
            answer = self.last.answer
            return answer.prompt_tokens + len(answer.steps) if answer.prompt_tokens else None
        return self.draft_tokens

    @property
    def title(self) -> str:
        """The first words of the chat."""
        return " ".join(self.turns[0].question.split()) if self.turns else "new chat"

    def messages(self, draft: str = "") -> tuple[Message, ...]:
        """What the model would be fed: system text, all turns that count, and the draft."""
        found: list[Message] = [Message(Role.SYSTEM, self.system)] if self.system else []
        for turn in self.turns:
            if turn.answer.counts:
                found.append(Message(Role.USER, turn.question))
                found.append(Message(Role.ASSISTANT, turn.answer.text))
        if draft:
            found.append(Message(Role.USER, draft))
        return tuple(found)

    def ask(self, question: str) -> Turn:
        """Add a question; the turn's request is to be submitted."""
        request = ev.Reply(self.messages(question), self.sampling, self._next())
        turn = Turn(question, Answer(self._clock()), request)
        self.turns.append(turn)
        return turn

    def count(self, draft: str) -> ev.Count:
        """A request for the size of the prompt with this draft."""
        return ev.Count(self.messages(draft), self._next())

    def stop(self) -> Turn | None:
        """Mark the running answer as stopping; None when none runs or it is stopping already."""
        turn = self.last
        if turn is None or not turn.answer.state.live or turn.answer.state is State.STOPPING:
            return None
        turn.answer.state = State.STOPPING
        return turn

    def withdraw(self) -> Turn:
        """Take back the newest turn, which was never answered."""
        return self.turns.pop()

    def clear(self) -> None:
        """Begin anew."""
        self.turns.clear()
        self.draft_tokens = None

    def apply(self, event: ev.Happening) -> bool:
        """Take in one event; False if it belongs to something that is gone."""
        match event:
            case ev.Loaded(info):
                self.info = info
            case ev.LoadFailed(error):
                self.load_error = error
            case ev.Counted(serial, tokens):
                if serial != self._serial or tokens < 0:
                    return False
                self.draft_tokens = tokens
            case _:
                turn = self.last
                if turn is None or turn.request.serial != event.serial:
                    return False
                self._progress(turn.answer, event)
        return True

    def _progress(self, answer: Answer, event: ev.Happening) -> None:
        match event:
            case ev.Started(_, prompt_tokens):
                answer.prompt_tokens = prompt_tokens
                self._advance(answer, State.READING)
            case ev.Prefilled(_, done, _):
                answer.prefilled = done
            case ev.Produced(_, step, at):
                self._advance(answer, State.WRITING)
                answer.add(step, at)
            case ev.Finished(_, reason):
                answer.reason = reason
                answer.state = State.STOPPED if reason == "cancelled" else State.DONE
                self.draft_tokens = answer.prompt_tokens + len(answer.steps) if answer.counts else None
            case ev.Failed(_, error):
                answer.error = error
                answer.state = State.FAILED

    @staticmethod
    def _advance(answer: Answer, state: State) -> None:
        if answer.state is not State.STOPPING:
            answer.state = state

    def _next(self) -> int:
        self._serial += 1
        return self._serial
