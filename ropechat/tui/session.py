"""The state of a chat, without a widget: turns, what the model does, and the figures on the screen."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from ropechat.conversation import Message, Role
from ropechat.tree import State as NodeState
from ropechat.tree import Tree, fresh
from ropechat.tree import bits as bits
from ropechat.tui import events as ev
from ropechat.tui.keeper import Keeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.sampling import Sampling
    from ropechat.store.rows import Chat
    from ropechat.trace import FinishReason, Step
    from ropechat.tree import Node, Origin

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
    given: int = 0  # tokens that it began with: they were not drawn
    _recent: deque[float] = field(default_factory=deque)

    written: str = ""  # the text where there are no records

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
            asked=0.0,
            state=states[node.state],
            steps=node.steps,
            prompt_tokens=node.prompt_tokens,
            first_at=node.first_after,
            last_at=node.ended_after,
            total_bits=node.bits,
            reason=node.finish_reason,
            given=node.given,
            written=node.written,
        )

    @property
    def text(self) -> str:
        """The raw text, not cleaned."""
        return "".join(step.text for step in self.steps) if self.steps else self.written

    @property
    def counts(self) -> bool:
        """Is this turn fed to the model again? One that broke off before its first token is not."""
        return bool(self.text) or self.state is State.DONE

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

    def add(self, step: Step, at: float, *, given: bool = False) -> None:
        """Take in one token."""
        self.steps.append(step)
        self.total_bits += bits(step)
        if given:
            self.given += 1
            return
        self.first_at = at if self.first_at is None else self.first_at
        self.last_at = at
        self._recent.append(at)
        while at - self._recent[0] > RATE_WINDOW:
            self._recent.popleft()


@dataclass
class Turn:
    """A question and its answer. asked, node: their nodes. request: what the model was asked, if now."""

    question: str
    answer: Answer
    asked: str
    node: str | None
    request: ev.Reply | None = None


class Session:
    """One chat with one model: the branch of its tree that is shown, as turns. The only writer of both."""

    def __init__(
        self,
        model: str,
        sampling: Sampling,
        system: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        keeper: Keeper | None = None,
    ) -> None:
        self.model = model
        self.sampling = sampling
        self.system = system
        self.info: ev.ModelInfo | None = None
        self.load_error: BaseException | None = None
        self.keeper = keeper or Keeper(None)
        self.tree = Tree()
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
        """The chat's name, or its first words."""
        first = " ".join(self.turns[0].question.split()) if self.turns else "new chat"
        return self.keeper.title or first

    def messages(self, draft: str = "") -> tuple[Message, ...]:
        """What the model would be fed: system text, all turns that count, and the draft."""
        found = self.tree.messages()
        if not self.tree.nodes and self.system:
            found = (Message(Role.SYSTEM, self.system),)
        return (*found, Message(Role.USER, draft)) if draft else found

    # --- what the user does; a turn that comes back has a request to be submitted ---

    def ask(self, question: str) -> Turn:
        """Add a question."""
        if not self.tree.nodes and self.system:
            self.keeper.keep(self.tree.write(Role.SYSTEM, self.system), question)
        node = self.tree.write(Role.USER, question)
        self.keeper.keep(node, question)
        return self.answer(node.id)

    def rewrite(self, node: str, question: str) -> Turn:
        """Ask something else in the place of a question; the old one stays beside it."""
        made = self.tree.rewrite(node, question)
        self.keeper.keep(made, question)
        return self.answer(made.id)

    def answer(
        self,
        question: str,
        opening: ev.Opening | None = None,
        origin: Origin | None = None,
        sampling: Sampling | None = None,
    ) -> Turn:
        """Begin an answer to a question, beside those that it has."""
        used = sampling or fresh(self.sampling, len(self.tree.children(question)))
        messages = self.tree.messages(question)
        node = self.tree.answer(question, self.info.name if self.info else self.model, used, origin)
        asked = self._clock()
        request = ev.Reply(
            messages,
            used,
            self._next(),
            opening=opening,
            saved=self.keeper.saved,
            recorder=self.keeper.record(node),
            asked=asked,
        )
        self.show()
        assert self.last is not None
        self.last.answer = Answer(asked)
        self.last.request = request
        return self.last

    def count(self, draft: str) -> ev.Count:
        """A request for the size of the prompt with this draft."""
        return ev.Count(self.messages(draft), self._next())

    def preview(self, node: str, opening: ev.Opening) -> ev.Preview:
        """A request to look ahead from the middle of an answer."""
        question = self.tree[node].parent
        assert question is not None
        return ev.Preview(self.tree.messages(question), opening, self._next())

    def stop(self) -> Turn | None:
        """Mark the running answer as stopping; None when none runs or it is stopping already."""
        turn = self.last
        if turn is None or not turn.answer.state.live or turn.answer.state is State.STOPPING:
            return None
        turn.answer.state = State.STOPPING
        return turn

    def withdraw(self) -> Turn:
        """Take back the newest turn, which was never answered; other answers to its question stay."""
        turn = self.turns[-1]
        assert turn.node is not None
        alone = len(self.tree.siblings(turn.node)) == 1
        self.keeper.remove(self.tree.remove(turn.asked if alone else turn.node))
        self.show()
        return turn

    def show(self) -> None:
        """Make the turns those of the current path."""
        kept = {turn.node: turn for turn in self.turns if turn.node}
        self.turns = []
        for node in self.tree.path():
            if node.role is Role.USER:
                self.turns.append(Turn(node.text, Answer(0.0, State.STOPPED), node.id, None))
            elif node.role is Role.ASSISTANT and self.turns:
                if node.id in kept:
                    self.turns[-1] = kept[node.id]
                else:
                    self.turns[-1].node, self.turns[-1].answer = node.id, Answer.of(node)
        self.draft_tokens = None

    def go(self, node: str) -> None:
        """Show the branch through a node."""
        self.tree.go(node)
        self.keeper.point(self.tree.current)
        self.show()

    def clear(self) -> None:
        """Begin anew."""
        self.keeper.begin()
        self.tree = Tree()
        self.turns.clear()
        self.draft_tokens = None

    def open(self, chat: Chat) -> None:
        """Show a chat that was kept."""
        self.keeper.begin(chat.id, chat.title)
        self.tree = chat.tree
        self.turns.clear()
        self.show()

    # --- what the inference thread reports ---

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
            case ev.Previewed():
                return True
            case _:
                turn = self.last
                if turn is None or turn.request is None or turn.request.serial != event.serial:
                    return False
                self._progress(turn, event)
        return True

    def _progress(self, turn: Turn, event: ev.Happening) -> None:
        assert turn.node is not None
        answer, node = turn.answer, self.tree[turn.node]
        match event:
            case ev.Started(_, prompt_tokens):
                answer.prompt_tokens = node.prompt_tokens = prompt_tokens
                node.model = self.info.name if self.info else node.model  # it was asked before it was loaded
                self._advance(answer, State.READING)
            case ev.Prefilled(_, done, _):
                answer.prefilled = done
            case ev.Produced(_, step, at, given):
                self._advance(answer, State.READING if given else State.WRITING)
                answer.add(step, at, given=given)
                self.tree.add(node.id, step, given=given)
            case ev.Finished(_, reason):
                answer.reason = reason
                answer.state = State.STOPPED if reason == "cancelled" else State.DONE
                self._ended(answer, node)
                self.draft_tokens = answer.prompt_tokens + len(answer.steps) if answer.counts else None
            case ev.Failed(_, error):
                answer.error = error
                answer.state = State.FAILED
                self._ended(answer, node)

    def _ended(self, answer: Answer, node: Node) -> None:
        states = {State.STOPPED: NodeState.STOPPED, State.FAILED: NodeState.FAILED}
        error = "" if answer.error is None else str(answer.error)
        self.tree.end(node.id, states.get(answer.state, NodeState.DONE), answer.reason, error)
        node.first_after, node.ended_after = answer.time_to_first_token, answer.seconds or None

    @staticmethod
    def _advance(answer: Answer, state: State) -> None:
        if answer.state is not State.STOPPING:
            answer.state = state

    def _next(self) -> int:
        self._serial += 1
        return self._serial
