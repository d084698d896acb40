"""An answer that the user draws: what can come, what is recorded, what is kept."""

from __future__ import annotations

import math
import sqlite3
import time
from typing import TYPE_CHECKING, Any

import pytest
from stores import done

from ropechat.chat import stepping
from ropechat.chat.recorder import ConversationRecorder
from ropechat.chat.session import Session
from ropechat.chat.stepping import Lexicon, Spot, candidates_at, next_tokens, record, search
from ropechat.conversation import Message, NodeState, Role, unscored_step
from ropechat.engine.engine import Engine
from ropechat.errors import RequestError
from ropechat.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.store.store import Store
    from ropechat.trace import Step

ASKED = (Message(Role.USER, "Hi?"),)
DRAWS = Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=7, max_tokens=6)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("builtin", threads=1)


def spot(engine: Engine, *steps: Step, sampling: Sampling = DRAWS) -> Spot:
    return Spot(engine.name, ASKED, sampling, steps)


def test_taking_each_draw_is_the_models_answer(engine: Engine) -> None:
    answer = [step for step in engine.reply(ASKED, DRAWS, top_k=stepping.RECORDED) if not step.finish_reason]
    taken: list[Step] = []
    for expected in answer:
        place = candidates_at(engine, spot(engine, *taken))
        assert place is not None
        assert place.drawn.id == expected.id
        taken.append(record(engine, place, place.drawn.id))
        mass = pytest.approx(expected.row.top_mass)
        assert taken[-1].row is not None
        assert taken[-1].row.top_mass == mass
        assert taken[-1]._replace(row=expected.row, candidates=()) == expected._replace(candidates=())
        assert {one[:-1] for one in taken[-1].candidates} == {one[:-1] for one in expected.candidates}


def test_what_follows_a_candidate_is_what_comes_once_it_is_taken(engine: Engine) -> None:
    place = candidates_at(engine, spot(engine))
    assert place is not None
    ids = [one.id for one in place.explanation.candidates[:5]]
    found = next_tokens(engine, place, ids)
    for id in ids:
        after = candidates_at(engine, spot(engine, record(engine, place, id)))
        assert after is not None
        assert found[id].top == after.drawn.top[: stepping.NEXT_TOKENS]
        assert found[id].entropy == after.drawn.entropy


def test_any_token_is_found_and_recorded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "LISTED", 4)
    monkeypatch.setattr(stepping, "SEARCHED", 5)
    place, lexicon = candidates_at(engine, spot(engine)), Lexicon(engine)
    assert place is not None
    logits = engine.logits(place.ids)[-1].astype(float)
    logprobs = logits - logits.max() - math.log(sum(map(math.exp, logits - logits.max())))
    for words in ("the", "Ca"):
        found = search(engine, place, lexicon, words)
        texts = [engine.token_bytes(one.id).decode() for one in found]
        assert len(found) > stepping.LISTED
        fold = str.casefold if words.islower() else str
        assert all(fold(text).startswith((words, f" {words}")) for text in texts)
        assert any(text[0] != " " for text in texts)
        for one in (found[0], found[-1]):
            step = record(engine, place, one.id)
            assert (step.id, step.u) == (one.id, None)
            assert step.text == step.bytes.decode()
            assert step.logprob == one.logprob == pytest.approx(logprobs[one.id])
            assert step.rank == one.rank == 1 + int((logits > logits[one.id]).sum())
            assert [outcome.id for outcome in step.candidates if outcome.id == one.id]
    assert search(engine, place, lexicon, "no token has this") == []


def test_an_end_ends_it(engine: Engine) -> None:
    place = candidates_at(engine, spot(engine))
    assert place is not None
    end = min(engine.stop_ids)
    step = record(engine, place, end)
    assert step.finish_reason == "stop"
    assert candidates_at(engine, spot(engine, step)) is None
    assert end not in next_tokens(engine, place, [end])


def test_another_model_does_not_go_on(engine: Engine) -> None:
    with pytest.raises(RequestError, match="only other can go on"):
        candidates_at(engine, spot(engine)._replace(model="other"))


# --- what is kept ---


def typed(*ids: int) -> list[Step]:
    return [unscored_step(id, 0)._replace(text=f" {id}", bytes=b" %d" % id) for id in ids]


def session_on(store: Store | None) -> Session:
    session = Session("m", Sampling(seed=7), recorder=ConversationRecorder(store))
    turn = session.ask("Hi?")
    for step in typed(1, 2, 3):
        turn.answer.node.steps.append(step)
        if turn.request is not None and turn.request.recorder is not None:
            turn.request.recorder.add(step)
    session.tree.end(turn.answer.node.id, NodeState.DONE, "stop")
    if turn.request is not None and turn.request.recorder is not None:
        turn.request.recorder.end(NodeState.DONE, "stop", model="m")
    return session


def kept(store: Store, session: Session) -> Any:
    return done(store.load(session.recorder.id)).tree


def test_a_token_is_on_disk_at_once_and_stays_if_the_program_is_killed(
    opened: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropechat.store.writer.FLUSH_SECONDS", 1e6)
    store = opened()
    session = session_on(store)
    made = session.step(node=session.turns[0].node or "", index=2)
    assert len(kept(store, session)) == 2
    for step in typed(8, 9):
        made.take(step)
    assert made.node is not None
    id, path = made.node.id, store.path
    query = "SELECT count(*) FROM chunk JOIN node ON node.id = node WHERE node = ? AND given = 4"
    until = time.monotonic() + 60
    while sqlite3.connect(path).execute(query, (id,)).fetchone() != (3,):  # those given, and each of two
        assert time.monotonic() < until
        time.sleep(0.01)
    with sqlite3.connect(path) as other:  # as if the program had gone
        other.execute("UPDATE node SET owner = NULL WHERE id = ?", (id,))
    node = kept(opened(), session)[id]
    assert (node.state, node.text, node.prefix_length) == (NodeState.STOPPED, " 1 2 8 9", 4)
    assert node.origin.index == 2


def test_what_is_taken_back_is_gone_and_an_end_is_as_of_any_answer(store: Store) -> None:
    session = session_on(store)
    first = session.turns[0].node or ""
    made = session.step(node=first, index=2)
    for step in typed(7, 8):
        made.take(step)
    assert made.take_back()
    made.take(typed(9)[0])
    node = session.end_stepping()
    assert node is not None
    again = kept(store, session)[node.id]
    assert (again.text, again.prefix_length, again.state) == (" 1 2 7 9", 4, NodeState.STOPPED)
    assert (again.origin.node, again.origin.index, again.origin.kind) == (first, 2, "fork")
    assert [step.id for step in again.steps] == [1, 2, 7, 9]
    session.show()
    assert session.last is not None
    assert session.last.node == node.id
    assert not session.generating


def test_back_to_where_it_began_leaves_nothing(store: Store) -> None:
    session = session_on(store)
    first = session.turns[0].node or ""
    made = session.step(node=first, index=2)
    made.take(typed(7)[0])
    assert made.take_back()
    assert list(kept(store, session).nodes) == list(session.tree.nodes)
    assert session.tree.current == first
    assert made.take_back()  # into what the first answer has
    made.take(typed(6)[0])
    node = session.end_stepping()
    assert node is not None
    assert node.text == " 1 6"
    assert node.origin is not None
    assert node.origin.index == 1
    again = session.step()
    assert not again.take_back()
    assert session.end_stepping() is None
    assert len(session.tree) == 3


def test_a_question_without_a_token_is_taken_back(store: Store) -> None:
    session = session_on(store)
    session.step("And?")
    assert len(session.tree) == 3
    assert session.end_stepping() is None
    assert len(kept(store, session)) == 2
    session.step("And?").take(typed(5)[0]._replace(finish_reason="stop"))
    session.clear()
    [chat] = done(store.conversations())
    last = [*done(store.load(chat.id)).tree.nodes.values()][-1]
    assert (last.text, last.state, last.finish_reason) == (" 5", NodeState.DONE, "stop")
