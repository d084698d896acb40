"""A chat as a tree: every question and answer is a node, and nothing that was said is ever overwritten.

Regenerating, editing, forking at a token and going on with an answer all add a node beside the old one. A
node that has ended never changes. Plain data: no files, no threads, no clock but the one that is given.
"""

import dataclasses
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ropechat.conversation import Message, Role
from ropechat.sampling import MAX_SEED, SEED_BITS, Sampling
from ropechat.trace import FinishReason, Step

Change = Literal["fork", "edit", "continue"]


class State(StrEnum):
    """Where a node stands. Only a streaming one changes."""

    STREAMING = "streaming"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Origin:
    """The node that another was made from: they have the first `index` tokens in common.

    change: fork (another token was put at `index`), edit (somebody wrote it), continue (written on).
    """

    node: str
    index: int
    change: Change


@dataclass
class Node:
    """A system text, a question or an answer.

    parent: the node that it follows; None at the beginning. written: the text, but of an answer that is
    streaming: that grows with its tokens. steps: the tokens of an answer; the first `given` were not
    drawn here. model, sampling, prompt_tokens, finish_reason, error: of an answer. created: in seconds since
    1970. first_after, ended_after: seconds from the request to the first and the last token drawn.
    start: of a question that did not fit: the node at which what the model reads for it, and later, begins.
    """

    id: str
    parent: str | None
    role: Role
    written: str = ""
    state: State = State.DONE
    created: float = 0.0
    steps: list[Step] = field(default_factory=list)
    origin: Origin | None = None
    given: int = 0
    model: str = ""
    sampling: Sampling | None = None
    prompt_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: str = ""
    first_after: float | None = None
    ended_after: float | None = None
    start: str | None = None

    @property
    def text(self) -> str:
        """What is said, not cleaned."""
        return self.written or "".join(step.text for step in self.steps)

    @property
    def counts(self) -> bool:
        """Does the model read it again? An answer that broke off before its first token is left out."""
        return self.role is not Role.ASSISTANT or bool(self.steps or self.written) or self.state is State.DONE

    @property
    def bits(self) -> float:
        """Surprisal of the tokens that have a logprob, in bits; a sum."""
        return math.fsum(map(bits, self.steps))

    @property
    def scored(self) -> int:
        """Tokens that have a logprob: those that somebody typed have none."""
        return sum(not math.isnan(step.logprob) for step in self.steps)

    @property
    def ppl(self) -> float:
        """Perplexity of the answer; NaN without tokens."""
        count = self.scored
        return math.nan if not count else 2.0 ** min(1023.0, self.bits / count)


def bits(step: Step) -> float:
    """Surprisal of a step's token in bits, under the raw distribution; 0 for a token that has no logprob."""
    return 0.0 if math.isnan(step.logprob) else max(0.0, -step.logprob / math.log(2.0))


def typed(id: int, position: int) -> Step:
    """The record of a token that was not drawn and that no row was read out for: logprob NaN, rank 0."""
    return Step(id, b"", "", math.nan, 0, math.nan, (), None, position, None, (), None)


def forced(drawn: Step, id: int) -> Step:
    """The record of `id` in the place of a drawn token: scored under the same row, where that names it."""
    if id == drawn.id:
        return drawn._replace(finish_reason=None)
    logprob = dict(drawn.top).get(id, math.nan)
    rank = 1 + sum(other > logprob for _, other in drawn.top) if not math.isnan(logprob) else 0
    return drawn._replace(id=id, bytes=b"", text="", logprob=logprob, rank=rank, finish_reason=None, u=None)


def _new_id() -> str:
    return secrets.token_hex(8)


class Tree:
    """The nodes of one chat and the path that is shown; with one writer."""

    def __init__(self, new_id: Callable[[], str] = _new_id, clock: Callable[[], float] = time.time) -> None:
        self.nodes: dict[str, Node] = {}
        self.current: str | None = None  # the last node of the path that is shown
        self._children: dict[str | None, list[str]] = {None: []}
        self._new_id = new_id
        self._clock = clock

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, id: str) -> Node:
        return self.nodes[id]

    # --- reading ---

    def children(self, id: str | None) -> list[Node]:
        """What follows a node (None: how the chat begins), oldest first."""
        return [self.nodes[child] for child in self._children[id]]

    def siblings(self, id: str) -> list[Node]:
        """A node and those that stand beside it, oldest first."""
        return self.children(self.nodes[id].parent)

    def place(self, id: str) -> tuple[int, int]:
        """(n, of): the node is the n-th of its siblings, counted from 1."""
        beside = self._children[self.nodes[id].parent]
        return beside.index(id) + 1, len(beside)

    def path(self, id: str | None = None) -> list[Node]:
        """From the beginning to a node; without one to the current."""
        found: list[Node] = []
        at = self.current if id is None else id
        while at is not None:
            found.append(self.nodes[at])
            at = found[-1].parent
        return found[::-1]

    def leaves(self) -> list[Node]:
        """The last nodes of all branches, in the order of `walk`."""
        return [node for node, _ in self.walk() if not self._children[node.id]]

    def walk(self) -> Iterator[tuple[Node, int]]:
        """(node, depth) of every node, each before what follows it."""
        waiting = [(id, 0) for id in reversed(self._children[None])]
        while waiting:
            id, depth = waiting.pop()
            yield self.nodes[id], depth
            waiting += [(child, depth + 1) for child in reversed(self._children[id])]

    def read(self, id: str | None = None) -> list[Node]:
        """What the model reads: the path to a node, without questions that were never answered on the way."""
        found: list[Node] = []
        for node in self.path(id):
            unanswered = node.role is Role.USER or not node.counts
            if unanswered and found and found[-1].role is Role.USER:
                found.pop()
            if node.counts:
                found.append(node)
        return found

    def messages(self, id: str | None = None) -> tuple[Message, ...]:
        """`read` as messages."""
        return tuple(Message(node.role, node.text) for node in self.read(id))

    # --- growing ---

    def restore(self, node: Node) -> None:
        """Put in a node that was made elsewhere. Raises KeyError without its parent, ValueError twice."""
        if node.id in self.nodes:
            raise ValueError(f"node {node.id} is there already")
        self._children[node.parent].append(node.id)
        self._children[node.id] = []
        self.nodes[node.id] = node

    def _grow(self, parent: str | None, role: Role, **fields: object) -> Node:
        node = Node(self._new_id(), parent, role, created=self._clock(), **fields)  # type: ignore[arg-type]
        self.restore(node)
        self.current = node.id
        return node

    def follow(self, id: str | None) -> None:
        """What is written next follows this node, or (None) begins the chat anew beside all that is there."""
        self.current = id

    def write(self, role: Role, text: str) -> Node:
        """Add a text at the end of the current path."""
        return self._grow(self.current, role, written=text)

    def answer(self, question: str, model: str, sampling: Sampling, origin: Origin | None = None) -> Node:
        """Begin an answer to a node: a first one, or one beside those that are there."""
        return self._grow(
            question, Role.ASSISTANT, state=State.STREAMING, model=model, sampling=sampling, origin=origin
        )

    def rewrite(self, id: str, text: str) -> Node:
        """Write another question (or system text) beside a node; what followed the old one stays with it."""
        old = self.nodes[id]
        return self._grow(old.parent, old.role, written=text, origin=Origin(id, 0, "edit"))

    def end(self, id: str, state: State, reason: FinishReason | None = None, error: str = "") -> None:
        """An answer ended: it changes no more. Raises ValueError when it had ended before."""
        node = self.nodes[id]
        if node.state is not State.STREAMING or state is State.STREAMING:
            raise ValueError(f"node {id} is {node.state}; only a streaming one ends")
        node.state, node.finish_reason, node.error = state, reason, error
        node.written = node.text

    def add(self, id: str, step: Step) -> None:
        """One more token of a streaming answer. Raises ValueError when it has ended."""
        self._streaming(id).steps.append(step)

    def give(self, id: str, steps: Sequence[Step]) -> None:
        """The tokens that a streaming answer begins with, which were not drawn for it. Raises as `add`."""
        node = self._streaming(id)
        node.steps += steps
        node.given += len(steps)

    def _streaming(self, id: str) -> Node:
        node = self.nodes[id]
        if node.state is not State.STREAMING:
            raise ValueError(f"node {id} is {node.state}; only a streaming one grows")
        return node

    # --- moving ---

    def go(self, id: str) -> Node:
        """Show the branch through a node: from there on the newest."""
        at = self.nodes[id].id
        while self._children[at]:
            at = self._children[at][-1]
        self.current = at
        return self.nodes[at]

    def step(self, id: str, by: int) -> Node | None:
        """Show the sibling `by` places further; None where there is none."""
        beside = self._children[self.nodes[id].parent]
        index = beside.index(id) + by
        if not 0 <= index < len(beside):
            return None
        self.go(beside[index])
        return self.nodes[beside[index]]

    def remove(self, id: str) -> list[str]:
        """Take out a node with all that follows it; their ids, each before its parent's."""
        gone: list[str] = []
        waiting = [id]
        while waiting:
            gone.append(waiting.pop())
            waiting += self._children.pop(gone[-1])
        parent = self.nodes[id].parent
        self._children[parent].remove(id)
        for each in gone:
            del self.nodes[each]
        if self.current in gone:
            left = self._children[parent]
            self.current = self.go(left[-1]).id if left else parent
        return gone[::-1]


def resumed(node: Node, index: int) -> Sampling:
    """The settings with which an answer, forked at `index` to the same token, repeats its rest."""
    used = node.sampling or Sampling()
    left = used.max_tokens - (index + 1 - node.given)
    return dataclasses.replace(used, max_tokens=max(1, left))


def unended(node: Node) -> Sequence[Step]:
    """The tokens with which the continuation of an answer begins: all but the one that ended it."""
    return node.steps[:-1] if node.steps and node.steps[-1].finish_reason == "stop" else node.steps


def added_nothing(node: Node) -> bool:
    """Is this the continuation of an answer which the model ended again at once?"""
    continued = node.origin is not None and node.origin.change == "continue"
    return (
        continued and node.finish_reason == "stop" and not any(step.text for step in node.steps[node.given :])
    )


def fresh(sampling: Sampling, number: int) -> Sampling:
    """The settings of answer `number` (from 0) to a question: each its own seed, 0 the one asked for.

    Seeds stay below 2^53 where the one asked for is.
    """
    if sampling.seed is None:
        seed = secrets.randbits(SEED_BITS)
    else:
        seeds = 1 << SEED_BITS if sampling.seed >> SEED_BITS == 0 else MAX_SEED + 1
        seed = (sampling.seed + number) % seeds
    return dataclasses.replace(sampling, seed=seed)


def shared(left: Sequence[Step], right: Sequence[Step]) -> int:
    """How many tokens two answers begin with in common."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one.id != other.id:
            break
        count += 1
    return count
