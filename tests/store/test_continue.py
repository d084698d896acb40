"""Answers that begin with the tokens of others: what was drawn is what a store gives back."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from chats import record
from stores import done

from ropechat.chat import events as ev
from ropechat.chat.inference import Inference, describe
from ropechat.chat.recorder import ConversationRecorder
from ropechat.chat.session import Session
from ropechat.conversation import (
    ConversationTree,
    NodeState,
    Origin,
    Role,
    is_empty_continuation,
    replace_token,
    steps_to_continue,
)
from ropechat.engine.engine import SpelledToken
from ropechat.errors import FileAccessError, InternalError
from ropechat.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ropechat.conversation import Node
    from ropechat.store.store import Store
    from ropechat.trace import Step

STOP = 0


class Drawing:
    """An engine that draws a random number of tokens and then ends, breaks off, or is stopped.

    between: called before each token.
    """

    name, context, has_chat_template, kv_bytes = "drawing", 100_000, True, 0
    stop_ids = frozenset({STOP})
    thinks, prompts = False, SimpleNamespace(thoughts=None)
    own_sampling: ClassVar[dict[str, float]] = {}
    recommended = staticmethod(lambda think: {})

    def __init__(self, draw: random.Random, between: Callable[[], None]) -> None:
        self.draw, self.between = draw, between
        self.facts: dict[str, Any] = {}
        self.drawn: list[Step] = []

    def prompt_ids(self, messages: Sequence[Any], **_: Any) -> list[int]:
        return [1] * 5

    def rope_spec(self, length: int = 0) -> dict[str, Any]:
        return {}

    def token_bytes(self, id: int) -> bytes:
        return f" w{id}".encode() if id != STOP else b""

    def spell(self, messages: Any, ids: Sequence[int], *_: Any) -> list[SpelledToken]:
        spoken = map(self.token_bytes, ids)
        return [SpelledToken(data, data.decode(), "", "answer") for data in spoken]

    def reply(self, messages: Any, sampling: Any, *, prefix: Sequence[int] = (), **_: Any) -> Iterator[Step]:
        self.drawn, draw = [], self.draw
        reason = draw.choice(("stop", "stop", "length", None, "broken"))
        count = draw.choice((0, 0, 1, 2, draw.randrange(100)))
        for place in range(count + (reason in ("stop", "length"))):
            self.between()
            step = record(draw, "", 5 + len(prefix) + place)
            id = step.top[0][0] + 1
            if reason == "stop" and place == count:
                id = STOP
            ended = reason if place == count else None
            data = self.token_bytes(id)
            self.drawn.append(
                step._replace(id=id, bytes=data, text=data.decode(), finish_reason=ended)  # type: ignore[arg-type]
            )
            yield self.drawn[-1]
        if reason == "broken":
            raise InternalError("broken on purpose")

    def cancel(self) -> None:
        """What stops by itself needs none."""


def same(one: ConversationTree, other: ConversationTree) -> None:
    """Are two trees the same, token for token?"""
    assert list(one.nodes) == list(other.nodes)
    for id, node in one.nodes.items():
        assert other[id].steps == node.steps, (node.origin, len(other[id].steps), len(node.steps))
        assert dataclasses.replace(other[id], final_text=node.final_text) == node
        assert other[id].text == node.text


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_continues_forks_and_stops_come_back(opened: Callable[[], Store], seed: int) -> None:
    draw, store = random.Random(seed), opened()

    def flush_now_and_then() -> None:
        if draw.random() < 0.1:
            done(store.conversations())  # what waits is written first: a chunk ends here

    engine = Drawing(draw, flush_now_and_then)
    inference = Inference()
    inference._engine = engine  # type: ignore[assignment]
    session = Session("drawing", Sampling(seed=1), recorder=ConversationRecorder(store))
    session.apply(ev.ModelLoaded(describe(engine)))  # type: ignore[arg-type]

    def answer(turn: Any) -> None:
        """Have it written, and compare what stands in the tree with what was drawn."""
        given = [step.id for step in turn.request.prefix.steps] if turn.request.prefix else []
        engine.drawn = []
        try:
            inference._serve(turn.request)
        except InternalError as error:
            inference._events.append(ev.Failed(turn.request.serial, error))
        for event in inference.drain():
            session.apply(event)
        node = session.tree[turn.node]
        assert node.state is not NodeState.STREAMING
        assert [step.id for step in node.steps[: node.prefix_length]] == given
        assert node.steps[node.prefix_length :] == engine.drawn

    answer(session.ask("What is a token?"))
    for _ in range(draw.randrange(4, 12)):
        nodes = [node for node in session.tree.nodes.values() if node.steps]
        deed = draw.choice(("continue", "continue", "continue", "fork", "regenerate"))
        if deed == "regenerate" or not nodes:
            answer(session.answer(session.turns[0].asked))
            continue
        node = nodes[-1] if draw.random() < 0.6 else draw.choice(nodes)
        answer(_continued(session, node) if deed == "continue" else _forked(draw, session, node))
    id = session.recorder.id
    assert store.close(10)
    assert store.trouble is None
    chat = done(opened().load(id))
    assert chat.damaged == ()
    same(session.tree, chat.tree)


def _continued(session: Session, node: Node) -> Any:
    steps = steps_to_continue(node)
    origin = Origin(node.id, len(steps), "continue")
    return session.answer(node.parent or "", ev.AssistantPrefix(tuple(steps)), origin)


def _forked(draw: random.Random, session: Session, node: Node) -> Any:
    index = draw.randrange(len(node.steps))
    id = draw.choice(node.steps[index].top)[0]
    prefix = ev.AssistantPrefix((*node.steps[:index], replace_token(node.steps[index], id)))
    return session.answer(node.parent or "", prefix, Origin(node.id, index, "fork"))


def test_an_answer_that_ended_is_continued_twice(opened: Callable[[], Store]) -> None:
    """The second continuation begins where a chunk of the first one does."""
    store, tree, draw = opened(), ConversationTree(), random.Random(1)
    question = tree.write(Role.USER, "q")
    done(store.add_node("c", "t", question))
    end = record(draw, "", 28)._replace(id=STOP, finish_reason="stop")

    def write(given: Sequence[Step], drawn: Sequence[Step], origin: Origin | None) -> Node:
        node = tree.answer(question.id, "m", Sampling(seed=1), origin)
        recorder = store.record_answer("c", node)
        recorder.begin(given, len(given))
        tree.add_prefix(node.id, given)
        for step in drawn:
            tree.add(node.id, step)
            recorder.add(step)
        tree.end(node.id, NodeState.DONE, "stop")
        done(recorder.end(NodeState.DONE, "stop", prefix_length=len(given)))
        return node

    node = write((), [*(record(draw, f"w{place}", place) for place in range(1, 28)), end], None)
    for _ in range(3):
        node = write(steps_to_continue(node), [end], Origin(node.id, 27, "continue"))
        assert is_empty_continuation(node)
    assert store.trouble is None
    same(tree, done(opened().load("c")).tree)


def test_a_row_that_is_there_already_is_not_called_a_deletion(
    opened: Callable[[], Store],
) -> None:
    store, tree = opened(), ConversationTree()
    question = tree.write(Role.USER, "q")
    done(store.add_node("c", "t", question))
    with pytest.raises(FileAccessError, match=r"a bug in ropechat: UNIQUE constraint failed: node\.id"):
        done(store.add_node("c", "t", question))
    assert "deleted" not in (store.trouble or "")


def test_what_adds_nothing() -> None:
    tree, draw = ConversationTree(), random.Random(1)
    question = tree.write(Role.USER, "q")
    end = record(draw, "", 2)._replace(id=STOP, finish_reason="stop")
    word = record(draw, "word", 1)

    def made(origin: Origin | None, drawn: Sequence[Step], reason: Any = "stop") -> Node:
        node = tree.answer(question.id, "m", Sampling(seed=1), origin)
        tree.add_prefix(node.id, [word])
        for step in drawn:
            tree.add(node.id, step)
        tree.end(node.id, NodeState.DONE, reason)
        return node

    before = Origin("x", 1, "continue")
    assert is_empty_continuation(made(before, [end]))
    assert not is_empty_continuation(made(before, [word, end]))
    assert not is_empty_continuation(made(before, [], "cancelled"))
    assert not is_empty_continuation(made(Origin("x", 1, "fork"), [end]))
    assert not is_empty_continuation(made(None, [end]))
