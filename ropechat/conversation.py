"""The vocabulary of a chat: messages, and the tree of all its questions and answers.

Regenerating, editing, forking at a token and continuing an answer add a sibling of the old node; nothing is
overwritten, and a node that has ended never changes. Plain data: no files, no threads.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ropechat.sampling import MAX_SEED, SEED_BITS, Sampling
from ropechat.trace import FinishReason, Step

OriginKind = Literal["fork", "edit", "continue"]
MARK = "◦"
"""What stands for a marker between thought and answer, where thoughts are shown."""


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    """The result of a tool. Only batch prompts contain it."""


@dataclass(frozen=True)
class Message:
    """One turn of a conversation. reasoning: what the assistant thought before its answer, else ""."""

    role: Role
    content: str
    reasoning: str = ""


class NodeState(StrEnum):
    """The state of a node. Only a streaming node changes."""

    STREAMING = "streaming"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Origin:
    """The node that another was made from: they have the first `index` tokens in common.

    kind: fork (the token at `index` was replaced), edit (the user wrote the text) or continue.
    """

    node: str
    index: int
    kind: OriginKind


@dataclass
class Node:
    """A system prompt, a question or an answer.

    parent: the previous node; None for the first. final_text, final_reasoning: text and thought; empty while
    an answer streams, as they then come from its tokens. created: in seconds since 1970. context_start: of a
    question that did not fit in the context, the first node that is part of its prompt and of later ones.

    Of an answer: steps, its tokens, the first `prefix_length` of which were given rather than generated;
    model, sampling, prompt_tokens, finish_reason and error; first_after and ended_after, the seconds from the
    request to the first and to the last generated token; thought_seconds, from the first to the last token of
    a thought.
    """

    id: str
    parent: str | None
    role: Role
    final_text: str = ""
    state: NodeState = NodeState.DONE
    created: float = 0.0
    steps: list[Step] = field(default_factory=list)
    origin: Origin | None = None
    prefix_length: int = 0
    model: str = ""
    sampling: Sampling | None = None
    prompt_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: str = ""
    first_after: float | None = None
    ended_after: float | None = None
    thought_seconds: float | None = None
    context_start: str | None = None
    final_reasoning: str = ""

    @property
    def text(self) -> str:
        """The text, of an answer without its thought; not cleaned for a terminal."""
        return self.final_text or "".join(step.text for step in self.steps)

    @property
    def reasoning(self) -> str:
        """What the model thought before its answer; "" if it did not."""
        return self.final_reasoning or "".join(step.reasoning for step in self.steps)

    @property
    def message(self) -> Message:
        """The node as a message of a prompt."""
        return Message(self.role, self.text, self.reasoning.strip())

    @property
    def in_context(self) -> bool:
        """Whether later prompts contain the node: all but an answer stopped before its first token."""
        is_question = self.role is not Role.ASSISTANT
        return is_question or bool(self.steps or self.final_text) or self.state is NodeState.DONE

    @property
    def bits(self) -> float:
        """Sum of the surprisals of the tokens that have a logprob, in bits."""
        return math.fsum(map(surprisal_bits, self.steps))

    @property
    def scored(self) -> int:
        """Number of tokens that have a logprob; tokens that the user typed have none."""
        return sum(not math.isnan(step.logprob) for step in self.steps)

    @property
    def ppl(self) -> float:
        """Perplexity of the answer; NaN without scored tokens."""
        count = self.scored
        return math.nan if not count else 2.0 ** min(1023.0, self.bits / count)


def surprisal_bits(step: Step) -> float:
    """Surprisal of a token in bits, under the raw distribution; 0 for a token without a logprob."""
    return 0.0 if math.isnan(step.logprob) else max(0.0, -step.logprob / math.log(2.0))


def spoken(step: Step) -> str:
    """What a token says where thoughts are shown: its text, that of the thought, or the sign of a marker."""
    return step.reasoning + (MARK if step.channel == "marker" else "") + step.text


def thought_length(steps: Sequence[Step]) -> int:
    """The number of tokens before the answer: of the thought, and of the markers around it."""
    return next((count for count, step in enumerate(steps) if step.channel == "answer"), len(steps))


def unscored_step(id: int, position: int) -> Step:
    """The record of a token that was neither generated nor scored: logprob NaN, rank 0."""
    return Step(id, b"", "", math.nan, 0, math.nan, (), None, position, None, (), None)


def replace_token(drawn: Step, id: int) -> Step:
    """The record of `id` in place of a generated token, with its logprob where the top ids include it."""
    if id == drawn.id:
        return drawn._replace(finish_reason=None)
    logprob = dict(drawn.top).get(id, math.nan)
    rank = 1 + sum(other > logprob for _, other in drawn.top) if not math.isnan(logprob) else 0
    return drawn._replace(id=id, bytes=b"", text="", logprob=logprob, rank=rank, finish_reason=None, u=None)


def _new_id() -> str:
    import secrets  # here: generating without a chat needs no ids

    return secrets.token_hex(8)


class ConversationTree:
    """The nodes of one chat and the path on screen. Not thread-safe: one thread writes."""

    def __init__(self, new_id: Callable[[], str] = _new_id, clock: Callable[[], float] = time.time) -> None:
        self.nodes: dict[str, Node] = {}
        self.current: str | None = None  # the last node of the path on screen
        self._children: dict[str | None, list[str]] = {None: []}
        self._new_id = new_id
        self._clock = clock

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, id: str) -> Node:
        return self.nodes[id]

    # --- reading ---

    def children(self, id: str | None) -> list[Node]:
        """The nodes that follow a node (None: the first nodes), oldest first."""
        return [self.nodes[child] for child in self._children[id]]

    def siblings(self, id: str) -> list[Node]:
        """The children of a node's parent, the node included, oldest first."""
        return self.children(self.nodes[id].parent)

    def continued(self, id: str) -> str | None:
        """The answer that continues this one, which is then only its beginning; None if more follows this."""
        if self._children[id]:
            return None
        beside = self._children[self.nodes[id].parent]
        return next((other for other in beside if _continues(self.nodes[other], id)), None)

    def sibling_position(self, id: str) -> tuple[int, int]:
        """(n, count): the node is the n-th of its siblings, from 1."""
        siblings = self._children[self.nodes[id].parent]
        return siblings.index(id) + 1, len(siblings)

    def path(self, id: str | None = None) -> list[Node]:
        """The nodes from the first to `id`, or to the current node."""
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
        """Yield (node, depth) for every node, parents before children."""
        waiting = [(id, 0) for id in reversed(self._children[None])]
        while waiting:
            id, depth = waiting.pop()
            yield self.nodes[id], depth
            waiting += [(child, depth + 1) for child in reversed(self._children[id])]

    def context_nodes(self, id: str | None = None) -> list[Node]:
        """The nodes of the prompt that ends with `id`: its path without unanswered questions."""
        found: list[Node] = []
        for node in self.path(id):
            unanswered = node.role is Role.USER or not node.in_context
            if unanswered and found and found[-1].role is Role.USER:
                found.pop()
            if node.in_context:
                found.append(node)
        return found

    def messages(self, id: str | None = None) -> tuple[Message, ...]:
        """`context_nodes` as messages."""
        return tuple(node.message for node in self.context_nodes(id))

    # --- adding nodes and tokens ---

    def restore(self, node: Node) -> None:
        """Add a stored node. Raises KeyError if its parent is missing, ValueError if its id is in use."""
        if node.id in self.nodes:
            raise ValueError(f"node {node.id}: the id is in use")
        self._children[node.parent].append(node.id)
        self._children[node.id] = []
        self.nodes[node.id] = node

    def _grow(self, parent: str | None, role: Role, **fields: object) -> Node:
        node = Node(self._new_id(), parent, role, created=self._clock(), **fields)  # type: ignore[arg-type]
        self.restore(node)
        self.current = node.id
        return node

    def follow(self, id: str | None) -> None:
        """Make `id` the parent of the next node; None starts a new branch at the root."""
        self.current = id

    def write(self, role: Role, text: str) -> Node:
        """Add a text at the end of the current path."""
        return self._grow(self.current, role, final_text=text)

    def answer(self, question: str, model: str, sampling: Sampling, origin: Origin | None = None) -> Node:
        """Start an answer to a node, in addition to existing ones."""
        return self._grow(
            question, Role.ASSISTANT, state=NodeState.STREAMING, model=model, sampling=sampling, origin=origin
        )

    def rewrite(self, id: str, text: str) -> Node:
        """Add another version of a question or system prompt; the answers stay with the old one."""
        old = self.nodes[id]
        return self._grow(old.parent, old.role, final_text=text, origin=Origin(id, 0, "edit"))

    def end(self, id: str, state: NodeState, reason: FinishReason | None = None, error: str = "") -> None:
        """End a streaming answer. Raises ValueError if it has ended."""
        if state is NodeState.STREAMING:
            raise ValueError("state: must be done, stopped or failed (got streaming)")
        node = self._streaming(id)
        node.state, node.finish_reason, node.error = state, reason, error
        node.final_text, node.final_reasoning = node.text, node.reasoning

    def add(self, id: str, step: Step) -> None:
        """Append a token to a streaming answer. Raises ValueError if it has ended."""
        self._streaming(id).steps.append(step)

    def add_prefix(self, id: str, steps: Sequence[Step]) -> None:
        """Append tokens that were not generated to a streaming answer. Raises ValueError if it has ended."""
        node = self._streaming(id)
        node.steps += steps
        node.prefix_length += len(steps)

    def take_back(self, id: str) -> None:
        """Remove the last token, which was not generated, of a streaming answer. Raises ValueError if it has
        ended."""
        node = self._streaming(id)
        del node.steps[-1:]
        node.prefix_length = min(node.prefix_length, len(node.steps))

    def _streaming(self, id: str) -> Node:
        node = self.nodes[id]
        if node.state is not NodeState.STREAMING:
            raise ValueError(f"node {id}: must be streaming (got {node.state})")
        return node

    # --- changing the path on screen ---

    def go(self, id: str) -> Node:
        """Show the branch through a node, following the newest child at each step. Return its last node."""
        at = self.nodes[id].id
        while self._children[at]:
            at = self._children[at][-1]
        self.current = at
        return self.nodes[at]

    def step(self, id: str, by: int) -> Node | None:
        """Show the sibling `by` positions after a node and return it, or None at the end."""
        siblings = self._children[self.nodes[id].parent]
        index = siblings.index(id) + by
        if not 0 <= index < len(siblings):
            return None
        self.go(siblings[index])
        return self.nodes[siblings[index]]

    def remove(self, id: str) -> list[str]:
        """Remove a node and all its descendants; return their ids, children before parents."""
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


def _continues(node: Node, id: str) -> bool:
    return node.origin is not None and node.origin.kind == "continue" and node.origin.node == id


def remaining_sampling(node: Node, index: int) -> Sampling:
    """The settings that regenerate an answer after its token `index`: as used, with max_tokens reduced."""
    used = node.sampling or Sampling()
    of_thought = sum(step.channel != "answer" for step in node.steps[node.prefix_length : index + 1])
    left = used.max_tokens - (index + 1 - node.prefix_length) + of_thought
    return dataclasses.replace(used, max_tokens=max(1, left))


def steps_to_continue(node: Node) -> Sequence[Step]:
    """The tokens with which the continuation of an answer starts: all except a final end-of-turn token."""
    return node.steps[:-1] if node.steps and node.steps[-1].finish_reason == "stop" else node.steps


def is_empty_continuation(node: Node) -> bool:
    """Whether the node continues an answer, but the model ended it without adding text."""
    continued = node.origin is not None and node.origin.kind == "continue"
    added = node.steps[node.prefix_length :]
    return (
        continued and node.finish_reason == "stop" and not any(step.text or step.reasoning for step in added)
    )


def with_seed(sampling: Sampling, number: int) -> Sampling:
    """The settings of answer `number` (from 0) to a question: the given seed plus `number`, or a random seed.

    Seeds stay below 2^53 if the given one is.
    """
    if sampling.seed is None:
        import secrets  # here: generating without a chat needs no random seed

        seed = secrets.randbits(SEED_BITS)
    else:
        seeds = 1 << SEED_BITS if sampling.seed >> SEED_BITS == 0 else MAX_SEED + 1
        seed = (sampling.seed + number) % seeds
    return dataclasses.replace(sampling, seed=seed)


def common_prefix_length(left: Sequence[Step], right: Sequence[Step]) -> int:
    """Number of tokens that two answers have in common at their start."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one.id != other.id:
            break
        count += 1
    return count
