"""The tree of continuations: the likeliest paths of tokens after a text, best first.

The tree has the paths of highest probability, whatever the size of a pass: a node is added when no other open
path is likelier, so its nodes are in the order of their probability, and a search that is stopped early has
the first of them. While the next row is computed, so are those of the open paths that are likely to be added
next.

Leaves (nodes without children) and the rests of the other nodes (what their children do not cover) are
disjoint and complete: their probabilities sum to 1.

Two paths with the same bytes are one text in two tokenizations. The likelier one goes on; the other is joined
to it: it stays as a leaf, and the probability of the text is the sum of both (rule "same text").
"""

import bisect
import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ropechat.errors import CancelledError, ContextFullError, RequestError
from ropechat.trace import Step

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.trace import TokenDistribution

    Known = dict[tuple[int, ...], TokenDistribution]
    """Rows by the path that they follow."""

ROWS = 16
"""Paths in a forward pass."""
MAX_DEPTH = 200
"""The depth that a page or a table can show."""
_LIKELY = 1 / 256
"""Rows are computed ahead for open paths of at least this share of the probability of the best one."""
_AHEAD = 8 * ROWS
"""Nodes by which the search may go ahead of the tree to find these."""


@dataclass
class TreeNode:
    """A path of tokens after the prompt. Node 0 is the prompt itself; `id` is then -1.

    logprob: of its last token after those before it; path_logprob: the sum (math.fsum) of those of the path,
    as `Engine.rank` has it; both raw, in nats. rank: of its token among the candidates, from 1. entropy: of
    the token after it, in nats; None if that was not needed. is_end: its token ends a text. is_given: the
    prompt, which was cut at a position, goes on with these tokens. joined: the likelier node with the same
    text; twins: those joined to this one.
    """

    parent: int | None
    depth: int
    id: int = -1
    bytes: bytes = b""
    logprob: float = 0.0
    path_logprob: float = 0.0
    rank: int = 0
    entropy: float | None = None
    is_end: bool = False
    is_given: bool = False
    joined: int | None = None
    children: list[int] = field(default_factory=list)
    twins: list[int] = field(default_factory=list)

    @property
    def prob(self) -> float:
        """The probability of the path."""
        return math.exp(self.path_logprob)


@dataclass(frozen=True)
class Limits:
    """Where a tree ends: at so many nodes without the root, tokens of a path, candidates of a node, or when
    the complete paths (of full depth, or at the end of a text) have together this probability."""

    nodes: int = 40
    depth: int = 8
    top_k: int = 5
    mass: float = 1.0

    def check(self) -> None:
        """Raise RequestError for a limit that is none."""
        for name in ("nodes", "depth", "top_k"):
            if (value := getattr(self, name)) < 1:
                raise RequestError(f"{name}: must be at least 1 (got {value})")
        if self.depth > MAX_DEPTH:
            raise RequestError(f"depth: must be at most {MAX_DEPTH} (got {self.depth})")
        if not 0.0 < self.mass <= 1.0:
            raise RequestError(f"mass: must be above 0 and at most 1 (got {self.mass})")


@dataclass
class Tree:
    """The likeliest continuations of a prompt. meta: model, types, the prompt and the limits.

    nodes: the root, then by falling probability. computed: rows of the model. stopped: whether the search was
    ended before a limit.
    """

    meta: Mapping[str, Any]
    nodes: list[TreeNode]
    computed: int = 0
    stopped: bool = False

    def path(self, index: int) -> list[TreeNode]:
        """The nodes from the root's child to this one."""
        found, at = list[TreeNode](), self.nodes[index]
        while at.parent is not None:
            found.append(at)
            at = self.nodes[at.parent]
        return found[::-1]

    def text(self, index: int) -> bytes:
        """The bytes of a path."""
        return b"".join(node.bytes for node in self.path(index))

    def steps(self, index: int, position: int) -> list[Step]:
        """A path as records of an answer, whose first token is at this position; texts and settings are open.

        The candidates of a token are those in the tree.
        """
        made = list[Step]()
        for node in self.path(index):
            before = self.nodes[node.parent or 0]
            beside = tuple((self.nodes[one].id, self.nodes[one].logprob) for one in before.children)
            entropy = math.nan if before.entropy is None else before.entropy
            facts = (node.id, node.bytes, "", node.logprob, node.rank, entropy, beside, None)
            made.append(Step(*facts, position + len(made), None, (), None))
        return made

    def rest(self, index: int) -> float:
        """The probability of a node that its children do not cover; 0 for a leaf."""
        node = self.nodes[index]
        if not node.children:
            return 0.0
        covered = math.fsum(math.exp(self.nodes[child].logprob) for child in node.children)
        return node.prob * max(0.0, 1.0 - covered)

    @property
    def mass(self) -> float:
        """The probability of all leaves together."""
        return math.fsum(node.prob for node in self.nodes if not node.children)

    @property
    def remainder(self) -> float:
        """The probability of what the tree does not have: `mass` + `remainder` is 1."""
        return math.fsum(map(self.rest, range(len(self.nodes))))

    def text_prob(self, index: int) -> float:
        """The probability of the node's text: of its path, and of those that are joined to it."""
        return math.fsum(self.nodes[one].prob for one in (index, *self.nodes[index].twins))


class _Open(NamedTuple):
    """A path that may become the next node: best first, ties by its ids. logprobs: of its tokens."""

    cost: float
    ids: tuple[int, ...]
    parent: int
    logprobs: tuple[float, ...]
    rank: int


class _Rows:
    """The distributions after paths, computed in passes of several."""

    def __init__(self, engine: "Engine", prompt: Sequence[int], top_k: int, known: "Known | None") -> None:
        self._engine, self._prompt, self._top_k = engine, prompt, top_k
        self._known: Known = {} if known is None else known

    @property
    def computed(self) -> int:
        return len(self._known)

    def known(self, ids: tuple[int, ...]) -> "TokenDistribution | None":
        """The row after a path, if it was computed."""
        return self._known.get(ids)

    def compute(self, paths: Sequence[tuple[int, ...]]) -> "TokenDistribution":
        """Compute the rows after paths together; return the first."""
        rows = self._engine.next_distributions(
            [[*self._prompt, *path] for path in paths], top_k=self._top_k, window=ROWS
        )
        self._known.update(zip(paths, rows, strict=True))
        return self._known[paths[0]]


class _Search:
    """A search in progress."""

    def __init__(
        self,
        engine: "Engine",
        prompt: Sequence[int],
        given: Sequence[int],
        limits: Limits,
        tree: Tree,
        rows: "Known | None",
    ) -> None:
        self._engine, self._given, self._limits, self._tree = engine, tuple(given), limits, tree
        self._rows = _Rows(engine, prompt, limits.top_k, rows)
        self._open: list[_Open] = []  # best first; no more than there are nodes left
        self._texts: dict[tuple[bytes | int, ...], int] = {}
        self._complete = 0.0

    def run(self, on_node: Callable[[int], None], is_stopped: Callable[[], bool]) -> None:
        """Add nodes until a limit."""
        self._expand(0, (), ())
        while self._open and len(self._tree.nodes) <= self._limits.nodes and not is_stopped():
            best = self._open.pop(0)
            index = self._add(best)
            node = self._tree.nodes[index]
            on_node(index)
            if self._is_complete(best.ids):
                self._complete += node.prob
                if self._complete >= self._limits.mass:
                    return
            elif node.joined is None and len(self._tree.nodes) <= self._limits.nodes:
                self._expand(index, best.ids, best.logprobs)
        self._tree.stopped = is_stopped()

    def _is_complete(self, ids: tuple[int, ...]) -> bool:
        return len(ids) == self._limits.depth or ids[-1] in self._engine.stop_ids

    def _add(self, path: _Open) -> int:
        nodes, index = self._tree.nodes, len(self._tree.nodes)
        data = self._engine.token_bytes(path.ids[-1])
        node = TreeNode(
            path.parent, len(path.ids), path.ids[-1], data, path.logprobs[-1], -path.cost, path.rank
        )
        node.is_end = node.id in self._engine.stop_ids
        node.is_given = path.ids == self._given[: len(path.ids)]
        first = self._texts.setdefault(self._key(path.ids), index)
        if first != index:
            node.joined = first
            nodes[first].twins.append(index)
        nodes.append(node)
        nodes[path.parent].children.append(index)
        return index

    def _key(self, ids: tuple[int, ...]) -> tuple[bytes | int, ...]:
        """The text of a path, in which a control token is none but itself."""
        parts: list[bytes | int] = [b""]
        control = self._engine.tokenizer.control_ids | self._engine.stop_ids
        for id in ids:
            data, last = self._engine.token_bytes(id), parts[-1]
            if id in control or not data or not isinstance(last, bytes):
                parts += [id, b""]
            else:
                parts[-1] = last + data
        return tuple(parts)

    def _expand(self, index: int, ids: tuple[int, ...], logprobs: tuple[float, ...]) -> None:
        """Open the children of a node."""
        node = self._tree.nodes[index]
        row = self._rows.known(ids) or self._rows.compute([ids, *self._likely(node.path_logprob)])
        self._tree.computed = self._rows.computed
        node.entropy = row.entropy
        for path in self._below(ids, logprobs, index, row):
            bisect.insort(self._open, path)
        del self._open[self._left :]

    @property
    def _left(self) -> int:
        """How many nodes may still be added."""
        return self._limits.nodes + 1 - len(self._tree.nodes)

    @staticmethod
    def _below(
        ids: tuple[int, ...], logprobs: tuple[float, ...], index: int, row: "TokenDistribution"
    ) -> Iterator[_Open]:
        """The paths that are one token longer. index: of their node."""
        for rank, (id, logprob) in enumerate(row.top, 1):
            path = (*logprobs, logprob)
            yield _Open(0.0 - math.fsum(path), (*ids, id), index, path, rank)

    def _likely(self, best: float) -> list[tuple[int, ...]]:
        """Paths whose rows are likely to be needed soon: the search goes on as far as rows are known."""
        found, ahead = list[tuple[int, ...]](), self._open[: self._left]
        for _ in range(min(self._left, _AHEAD)):
            if not ahead or len(found) == ROWS - 1:
                break
            path = heapq.heappop(ahead)
            if -path.cost < best + math.log(_LIKELY):
                break
            if self._is_complete(path.ids):
                continue
            if (row := self._rows.known(path.ids)) is None:
                found.append(path.ids)
                continue
            for below in self._below(path.ids, path.logprobs, path.parent, row):
                heapq.heappush(ahead, below)
        return found


def grow(
    engine: "Engine",
    prompt: Sequence[int],
    limits: Limits | None = None,
    *,
    given: Sequence[int] = (),
    meta: Mapping[str, Any] | None = None,
    on_node: Callable[[int], None] = lambda index: None,
    is_stopped: Callable[[], bool] = lambda: False,
    rows: "Known | None" = None,
) -> Tree:
    """The tree of continuations of these ids.

    given: what really follows, marked in the tree. on_node(index): called for each node. is_stopped: asked
    before each node; what is there then is returned, as after `Engine.cancel` from another thread. rows: of
    an earlier tree of the same ids with the same `top_k`, which are not computed again; new ones are added.
    Raises RequestError, ContextFullError, and as `Engine.next_distributions`.
    """
    limits = limits or Limits()
    limits.check()
    if len(prompt) + limits.depth > engine.context + 1:
        raise ContextFullError(
            f"prompt: {len(prompt):,} tokens and a depth of {limits.depth:,} exceed the context of "
            f"{engine.context:,}; shorten it, or load the model with a larger context"
        )
    tree = Tree({**engine.trace_facts(limits.top_k), **(meta or {})}, [TreeNode(None, 0)])
    try:
        _Search(engine, prompt, given, limits, tree, rows).run(on_node, is_stopped)
    except CancelledError:
        tree.stopped = True
    return tree
