"""An answer that the user draws, token by token: the candidates of the next one, and what was taken so far.

`candidates_at`, `next_tokens`, `search` and `record` compute with the engine, in its thread. A `Stepping`
keeps what was taken: each token is in the chat and on disk when it is taken, in an answer of its own whose
tokens are all given, as those before a fork are. Those that the sampler would have drawn have their u, others
have none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ropechat.chat import events as ev
from ropechat.chat.answering import prefix_steps
from ropechat.conversation import NodeState, Origin, replace_token
from ropechat.errors import RequestError
from ropechat.inspector.explain import Candidate, explain
from ropechat.trace import Pair, Step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ropechat.chat.recorder import ConversationRecorder
    from ropechat.conversation import ConversationTree, Message, Node, OriginKind
    from ropechat.engine.engine import Engine
    from ropechat.inspector.explain import Explanation
    from ropechat.sampling import Sampling
    from ropechat.store.store import AnswerWriter
    from ropechat.trace import FinishReason, TokenDistribution

RECORDED = 20  # candidates that are stored with a token, as in other answers
LISTED = 200  # candidates of a place whose way through the stages is known: the likeliest
SEARCHED = 1000  # tokens, the likeliest, that a search lists if they have the text
NEXT_TOKENS = 6  # tokens that are listed after each candidate
OTHERS = 60  # tokens beyond the likeliest that a search finds at most, the shortest


class Spot(NamedTuple):
    """Where a token is to be chosen: after `steps` of an answer to `messages`."""

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Place:
    """What can come at a spot. ids: of the prompt and the answer so far; drawn: what the sampler would draw,
    with the LISTED likeliest; explanation: of its candidates."""

    spot: Spot
    ids: tuple[int, ...]
    drawn: Step
    explanation: Explanation
    vocab_size: int

    @property
    def entropy(self) -> float:
        """Of the raw distribution, in bits."""
        return self.drawn.entropy / math.log(2)


def candidates_at(engine: Engine, spot: Spot) -> Place | None:
    """What can come next; None after a token that ends the answer. Raises as `Engine.reply`."""
    _check(engine, spot)
    given = [step.id for step in spot.steps]
    if given and given[-1] in engine.stop_ids:
        return None
    steps = engine.reply(spot.messages, spot.sampling, prefix=given, top_k=LISTED)
    try:
        drawn = next(steps, None)
    finally:
        steps.close()
    if drawn is None:
        raise RequestError("the draw was cancelled")
    prompt = engine.prompt_ids(spot.messages, thinking=spot.sampling.thinking)
    size = int(engine.facts.get("vocab_size", 0))
    return Place(spot, (*prompt, *given), drawn, explain(drawn, spot.sampling), size)


def _check(engine: Engine, spot: Spot) -> None:
    if engine.name != spot.model:
        raise RequestError(f"another model is loaded: only {spot.model} can go on here")


def next_tokens(engine: Engine, place: Place, candidates: Iterable[int]) -> dict[int, TokenDistribution]:
    """What would come after each candidate, from one batch; candidates that end the answer are left out."""
    _check(engine, place.spot)
    wanted = [id for id in candidates if id not in engine.stop_ids]
    if len(place.ids) + 1 >= engine.context:
        return {}
    rows = engine.next_distributions(
        [[*place.ids, id] for id in wanted], top_k=NEXT_TOKENS, window=max(1, len(wanted))
    )
    return dict(zip(wanted, rows, strict=True))


class Lexicon:
    """The texts of a model's vocabulary."""

    def __init__(self, engine: Engine) -> None:
        size = int(engine.facts.get("vocab_size", 0))
        self._texts = [engine.token_bytes(id).decode("utf-8", "replace") for id in range(size)]
        self._folded = [text.casefold() for text in self._texts]

    def find(self, words: str) -> list[int]:
        """The ids whose text begins with `words`, with or without a space before it; else has it inside.

        Without a capital letter, case does not matter. The shortest come first.
        """
        texts = self._texts if words != words.casefold() else self._folded
        begins = (words, f" {words}")
        found = [id for id, text in enumerate(texts) if text.startswith(begins)]
        found = found or [id for id, text in enumerate(texts) if words in text]
        return sorted(found, key=lambda id: (len(texts[id]), id))


def search(engine: Engine, place: Place, lexicon: Lexicon, words: str) -> list[Candidate]:
    """The tokens with this text, the likeliest first: those among the likeliest, and the shortest others.

    After the sampler's stages, the probability of those that a place does not list is not known. Raises as
    `Engine.score`.
    """
    _check(engine, place.spot)
    found = lexicon.find(words)
    wanted = set(found)
    known = {one.id: one for one in place.explanation.candidates}
    [row] = engine.next_distributions([place.ids], top_k=SEARCHED)
    for rank, (id, logprob) in enumerate(row.top, 1):
        known.setdefault(id, Candidate(id, logprob, rank, None))
    others = [id for id in found if id not in known][:OTHERS]
    chosen = [one for one in known.values() if one.id in wanted]
    if others:
        trace = engine.score(Pair(place.ids, others[:1]), top_k=0, look_up=others)
        rows = zip(others, trace.tokens[-1].looked_up, strict=True)
        more = [Candidate(id, logprob, rank, None) for id, (logprob, rank) in rows]
        chosen += sorted(more, key=lambda one: one.rank)
    return chosen


def record(engine: Engine, place: Place, id: int) -> Step:
    """The record of a token that is taken at a place. Raises as `Engine.score`."""
    _check(engine, place.spot)
    drawn, spot = place.drawn, place.spot
    if id == drawn.id or id in dict(drawn.top):
        taken = replace_token(drawn, id)
    else:
        sampling = None if spot.sampling.grammar is not None else spot.sampling
        score = engine.score(Pair(place.ids, (id,)), top_k=RECORDED, sampling=sampling).tokens[-1]
        taken = replace_token(drawn, id)._replace(
            logprob=score.logprob or 0.0, rank=score.rank or 0, candidates=score.candidates
        )
    if id != drawn.id:
        taken = taken._replace(interval=None)
    prefix = ev.AssistantPrefix((*spot.steps, _shortened(taken)))
    request = ev.Preview(spot.messages, prefix, 0, thinking=spot.sampling.thinking)
    step = prefix_steps(engine, request, len(place.ids) - len(spot.steps))[-1]
    return step._replace(finish_reason="stop" if id in engine.stop_ids else None)


def _shortened(step: Step) -> Step:
    """The record with as many candidates as other answers have."""
    top, row = step.top[:RECORDED], step.row
    kept = {step.id, *(id for id, _ in top)}
    return step._replace(
        top=top,
        row=row
        and row._replace(top=top, top_mass=min(1.0, math.fsum(math.exp(logprob) for _, logprob in top))),
        candidates=tuple(one for one in step.candidates if one.id in kept),
    )


class Stepping:
    """An answer in the making. Its node is in the tree, and on disk, while it is longer than where it began.

    spot: where it begins; source: the answer that begins with its steps, None without steps. asked: whether
    the question is there for this answer only. prompt_tokens: of what comes before the answer.
    """

    def __init__(
        self,
        tree: ConversationTree,
        recorder: ConversationRecorder,
        question: str,
        spot: Spot,
        source: Node | None = None,
        *,
        asked: bool = False,
    ) -> None:
        self._tree, self._recorder = tree, recorder
        self.question, self.asked = question, asked
        self.spot, self.prompt_tokens = spot, 0
        self.node: Node | None = None
        self.ended = False
        self._source, self._start = source, len(spot.steps)
        self._kind: OriginKind = (
            "continue" if source is not None and len(source.steps) == self._start else "fork"
        )
        self._before = tree.current
        self._writer: AnswerWriter | None = None

    def take(self, step: Step) -> None:
        """Add a token; from now on it is in the chat, and soon on disk."""
        given = self.spot.steps
        if self.node is None:
            origin = None if self._source is None else Origin(self._source.id, self._start, self._kind)
            self.node = self._tree.answer(self.question, self.spot.model, self.spot.sampling, origin)
            self._writer = self._recorder.record(self.node)
            self._tree.add_prefix(self.node.id, given)
            if self._writer is not None:
                self._writer.begin(given, len(given))
        self.spot = self.spot._replace(steps=(*given, step))
        self._tree.add_prefix(self.node.id, (step,))
        if self._writer is not None:
            self._writer.add_now(step, len(self.spot.steps))

    def take_back(self) -> bool:
        """Remove the last token; False without one. Those before where it began stay in their own answer."""
        if not self.spot.steps:
            return False
        self.spot = self.spot._replace(steps=self.spot.steps[:-1])
        left = len(self.spot.steps)
        if self.node is not None and left > self._start:
            self._tree.take_back(self.node.id)
            if self._writer is not None:
                self._writer.replace(self.spot.steps)
            return True
        self._drop()
        if left < self._start:
            self._start, self._kind = left, "fork"
            self._source = self._source if left else None
        return True

    def _drop(self) -> None:
        """Remove the node, which has nothing of its own."""
        if self.node is None:
            return
        if self._writer is not None:
            self._writer.drop()
        self._recorder.remove(self._tree.remove(self.node.id))
        self._tree.follow(self._before)
        self._recorder.point(self._before)
        self.node = self._writer = None

    def end(self) -> Node | None:
        """End the answer as it is; None if it has no token of its own."""
        node = self.node
        if self.ended or node is None:
            self.ended = True
            return node
        self.ended, node.prompt_tokens = True, self.prompt_tokens
        complete = node.steps[-1].finish_reason == "stop"
        state = NodeState.DONE if complete else NodeState.STOPPED
        reason: FinishReason = "stop" if complete else "cancelled"
        self._tree.end(node.id, state, reason)
        if self._writer is not None:
            self._writer.end(
                state,
                reason,
                model=node.model,
                prefix_length=len(node.steps),
                prompt_tokens=node.prompt_tokens,
                sampling=node.sampling,
            )
        return node
