"""Reading ahead: what will be sent is read before, gives way to everything, and is not read twice."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from fakes import FakeEngine
from live_chat import Program, expected

from ropechat.chat import events as ev
from ropechat.chat.inference import Inference
from ropechat.conversation import Message, Role
from ropechat.engine.engine import Engine
from ropechat.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GREEDY = Sampling(temperature=0, max_tokens=6, seed=0)
LONG = " ".join(["The cat sat on the mat and saw the big red dog run home."] * 30)
ASKED = (Message(Role.USER, "Tell me a story about a girl and a dog and a long way home."),)


@pytest.fixture
def engine() -> FakeEngine:
    """Reads one token of a prompt at a time."""
    made = FakeEngine("Yes.")
    made.read_step = 1
    return made


@pytest.fixture
def thread(engine: FakeEngine) -> Iterator[Inference]:
    """A thread with that engine."""
    made = Inference()
    made.start()
    made.submit(ev.Load(lambda: engine))
    until(lambda: not made._pending)
    made.drain()
    yield made
    engine.read_gate.set()
    made.shutdown(2.0)


def until(condition: Callable[[], bool], limit: float = 60) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_it_reads_to_the_end_and_then_rests(thread: Inference, engine: FakeEngine) -> None:
    thread.read_ahead(ev.ReadAhead(ASKED))
    until(lambda: thread._ahead.wait is None and bool(engine.read))
    (text,) = engine.read
    assert (text.done, text.total, text.closed) == (text.total, len(engine.prompt_ids(ASKED)), True)
    steps = text.steps
    time.sleep(0.05)
    assert text.steps == steps
    assert all(isinstance(event, ev.ReadSoFar) for event in thread.drain())


def test_a_question_interrupts_it_and_it_does_not_go_on(thread: Inference, engine: FakeEngine) -> None:
    engine.read_gate.clear()
    thread.read_ahead(ev.ReadAhead(ASKED))
    until(lambda: bool(engine.read))
    thread.submit(ev.Reply(ASKED, Sampling(), serial=1))
    until(lambda: thread._pending == 0)
    (text,) = engine.read
    assert text.cancelled.is_set()
    assert text.closed
    assert engine.cancels == 0, "the question itself is not cancelled"
    assert any(isinstance(event, ev.Finished) for event in thread.drain())


def test_other_work_goes_first_and_then_it_goes_on(thread: Inference, engine: FakeEngine) -> None:
    engine.read_gate.clear()
    thread.read_ahead(ev.ReadAhead(ASKED))
    until(lambda: bool(engine.read))
    done = threading.Event()
    thread.submit(ev.Call(lambda engine: 5, lambda result: done.set()))
    assert done.wait(60)
    engine.read_gate.set()
    until(lambda: thread._ahead.wait is None)
    first, second = engine.read
    assert first.cancelled.is_set()
    assert second.done == second.total


def test_counting_a_draft_does_not_interrupt_it(thread: Inference, engine: FakeEngine) -> None:
    thread.read_ahead(ev.ReadAhead(ASKED))
    for serial in range(20):
        thread.submit(ev.Count(ASKED, serial))
    until(lambda: thread._ahead.wait is None and not thread._pending)
    assert [text.cancelled.is_set() for text in engine.read] == [False]
    assert any(isinstance(event, ev.PromptCounted) for event in thread.drain())


def test_only_the_newest_text_is_read(thread: Inference, engine: FakeEngine) -> None:
    engine.read_gate.clear()
    thread.read_ahead(ev.ReadAhead(ASKED))
    until(lambda: bool(engine.read))
    for count in range(2, 6):
        thread.read_ahead(ev.ReadAhead(ASKED * count))
    engine.read_gate.set()
    until(lambda: thread._ahead.wait is None and thread._requests.empty())
    assert [text.total for text in engine.read] == [len(engine.prompt_ids(ASKED)) * n for n in (1, 5)]


def test_a_fault_ends_it_quietly(thread: Inference, engine: FakeEngine) -> None:
    class Panic(BaseException):
        """Like PanicException: no Exception."""

    def fail(ids: Any) -> Any:
        raise Panic

    engine.begin_prefill = fail  # type: ignore[method-assign]
    thread.read_ahead(ev.ReadAhead(ASKED))
    until(lambda: thread._requests.empty() and thread._ahead.wait is None)
    thread.submit(ev.Reply(ASKED, Sampling(), serial=1))
    until(lambda: thread._pending == 0)
    assert any(isinstance(event, ev.Finished) for event in thread.drain())


# --- with the built-in model ---


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    made: list[Program] = []

    def start(**options: Any) -> Program:
        made.append(Program("builtin", None, GREEDY, load={"cache": "off"}, **options))
        return made[-1]

    yield start
    for one in made:
        one.inference.shutdown(10.0)


def rows(one: Program, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on: how many tokens each pass of reading ahead adds."""
    from ropechat.engine.prefill import Prefill

    added: list[int] = []
    plain = Prefill.step

    def step(self: Prefill) -> bool:
        before = self.done
        goes_on = plain(self)
        added.append(self.done - before)
        return goes_on

    monkeypatch.setattr(Prefill, "step", step)
    return added


def test_a_draft_that_was_read_is_not_read_again(program: Callable[..., Program]) -> None:
    one = program()
    one.read_ahead(LONG)
    ids = one.engines[0].prompt_ids(one.session.messages(LONG))
    request, steps = one.answer(one.session.ask(LONG))
    assert one.prompt == len(ids)
    assert one.cached == len(ids) - 1
    assert steps == expected(Engine.load("builtin", context=2048, cache="off"), request)


def test_what_follows_a_long_draft_is_read_alone(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = program()
    added = rows(one, monkeypatch)
    one.read_ahead(LONG)
    assert sum(added) > 300
    added.clear()
    one.read_ahead(LONG + " What did the cat see?")
    assert 0 < sum(added) < 20
    added.clear()
    one.read_ahead(LONG + " What did the cat see?")
    assert sum(added) == 0


def test_the_answer_is_read_once(program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch) -> None:
    one = program()
    one.answer(one.session.ask(LONG))
    added = rows(one, monkeypatch)
    one.read_ahead()
    assert sum(added) < 40, "only what ends an answer and begins a question"
    added.clear()
    one.read_ahead()
    assert sum(added) == 0
    one.answer(one.session.ask("And then?"))
    assert one.prompt - one.cached < 20


def test_a_short_draft_is_not_read(program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch) -> None:
    one = program()
    one.read_ahead()
    added = rows(one, monkeypatch)
    one.read_ahead("What did the cat see?")
    assert sum(added) == 0


def test_a_setting_turns_it_off(program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch) -> None:
    one = program(reads_ahead=False)
    added = rows(one, monkeypatch)
    one.read_ahead(LONG)
    assert added == []
    one.answer(one.session.ask(LONG))
    assert one.cached == 0
    one.chat.reads_ahead = True
    one.read_ahead()
    assert added


def test_a_question_in_the_middle_takes_what_was_read(program: Callable[..., Program]) -> None:
    one = program()
    one.chat.read_ahead(LONG)
    one.until(lambda: one.inference._ahead._prefill is not None)
    request, steps = one.answer(one.session.ask(LONG))
    assert steps == expected(Engine.load("builtin", context=2048, cache="off"), request)
    read = [event for event in one.seen if isinstance(event, ev.ReadSoFar)]
    assert all(event.done <= event.total for event in read)
    assert one.session.read_ahead is None
    assert one.inference._ahead.wait is None


def test_progress_is_told_and_ends(program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropechat.chat.reading_ahead.REPORT_INTERVAL_S", 0.0)
    one = program()
    one.read_ahead(LONG)
    one.pump()
    told = [(event.done, event.total) for event in one.seen if isinstance(event, ev.ReadSoFar)]
    assert told == sorted(told)
    assert one.session.read_ahead is None


def test_a_file_is_read_while_its_question_is_written(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropechat.chat.draft import attach

    one = program()
    block = f"\n\nnotes.txt:\n```\n{LONG}\n```"
    one.read_ahead(attach("@notes.txt", block))
    added = rows(one, monkeypatch)
    one.read_ahead(attach("@notes.txt What did the cat see?", block))
    assert 0 < sum(added) < 20
    one.answer(one.session.ask(attach("@notes.txt What did the cat see?", block)))
    assert one.cached == one.prompt - 1
