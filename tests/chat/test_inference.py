"""The inference thread: whatever happens on it becomes an event, and nothing waits for it."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from fakes import STORY, FakeEngine

from ropechat.chat import events as ev
from ropechat.chat.inference import NICE_INCREMENT, Inference
from ropechat.conversation import Message, Role
from ropechat.errors import ContextFullError
from ropechat.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED = (Message(Role.USER, "Tell me a story."),)


class Panic(BaseException):
    """Like PanicException: no Exception."""


@pytest.fixture
def thread() -> Iterator[Inference]:
    made = Inference()
    made.start()
    yield made
    made.shutdown(2.0)


def settle(thread: Inference, limit: float = 60) -> list[Any]:
    end, found = time.monotonic() + limit, []
    while thread.busy:
        assert time.monotonic() < end
        found += thread.drain()
        time.sleep(0.002)
    return found


def until(thread: Inference, kind: type, found: list[Any], limit: float = 60) -> None:
    end = time.monotonic() + limit
    while not any(isinstance(event, kind) for event in found):
        assert time.monotonic() < end
        found += thread.drain()
        time.sleep(0.002)


def request(**settings: Any) -> ev.Reply:
    return ev.Reply(ASKED, Sampling(**settings), serial=7)


def test_load_and_reply(thread: Inference) -> None:
    thread.submit(ev.Load(FakeEngine))
    thread.submit(request())
    found = settle(thread)
    assert isinstance(found[0], ev.ModelLoaded)
    assert isinstance(found[1], ev.Started)
    steps = [event.step for event in found if isinstance(event, ev.TokenGenerated)]
    assert "".join(step.text for step in steps) == STORY
    assert found[-1] == ev.Finished(7, "stop")
    assert all(len(step.top) == 20 for step in steps)


@pytest.mark.parametrize("error", [ValueError("no"), Panic("panic"), SystemExit(3), KeyboardInterrupt()])
def test_anything_raised_becomes_an_event(thread: Inference, error: BaseException) -> None:
    engine = FakeEngine(fail_after=3, error=error)
    thread.submit(ev.Load(lambda: engine))
    thread.submit(request())
    found = settle(thread)
    assert sum(isinstance(event, ev.TokenGenerated) for event in found) == 3
    assert found[-1] == ev.Failed(7, error)
    engine.fail_after = None  # the thread lives on
    thread.submit(request())
    assert settle(thread)[-1] == ev.Finished(7, "stop")


def test_a_receiver_that_fails_is_an_internal_error_and_the_thread_lives_on(thread: Inference) -> None:
    def done(result: Any) -> None:
        raise KeyError("row")

    thread.submit(ev.Load(FakeEngine))
    thread.submit(ev.Call(lambda engine: 5, done))
    thread.submit(request())
    found = settle(thread)
    assert ev.Notice("internal error: KeyError: 'row'") in found
    assert found[-1] == ev.Finished(7, "stop")


def test_a_failing_load_fails_what_waits_for_it(thread: Inference) -> None:
    error = Panic("no model")

    def load() -> Any:
        raise error

    thread.submit(ev.Load(load))
    thread.submit(request())
    found = settle(thread)
    assert found[0] == ev.LoadFailed(error)
    assert isinstance(found[1], ev.Failed)


def test_cancel_keeps_what_came_and_the_engine_usable(thread: Inference) -> None:
    engine = FakeEngine(rate=200)
    thread.submit(ev.Load(lambda: engine))
    running, found = request(), []
    thread.submit(running)
    until(thread, ev.TokenGenerated, found)
    thread.cancel(running)
    found += settle(thread)
    assert found[-1] == ev.Finished(7, "cancelled")
    assert engine.cancels >= 1
    engine.rate = 0
    thread.submit(request())
    assert settle(thread)[-1] == ev.Finished(7, "stop")


def test_cancel_during_prefill_and_while_queued(thread: Inference) -> None:
    engine = FakeEngine(prefill=60.0)
    thread.submit(ev.Load(lambda: engine))
    first, second, found = request(), request(), []
    thread.submit(first)
    thread.submit(second)
    until(thread, ev.Started, found)
    begun = time.monotonic()
    thread.cancel(second)
    thread.cancel(first)
    found += settle(thread)
    assert time.monotonic() - begun < 30
    assert found[-2:] == [ev.Finished(7, "cancelled")] * 2
    assert len(engine.asked) == 1  # the queued one never reached the engine


def test_a_prompt_that_fills_the_context_is_not_computed(thread: Inference) -> None:
    engine = FakeEngine(context=5)
    thread.submit(ev.Load(lambda: engine))
    thread.submit(request())
    found = settle(thread)
    assert found[-1] == ev.TooLong(7, len(engine.prompt_ids(ASKED)), 5)
    assert engine.asked == []


def test_context_full_error_ends_the_answer(thread: Inference) -> None:
    thread.submit(ev.Load(lambda: FakeEngine(fail_after=2, error=ContextFullError("full"))))
    thread.submit(request())
    assert settle(thread)[-1] == ev.Finished(7, "context")


def test_only_the_newest_count_is_made(thread: Inference) -> None:
    engine = FakeEngine(prefill=0.2)
    thread.submit(ev.Load(lambda: engine))
    thread.submit(request())
    for serial in (8, 9, 10):
        thread.submit(ev.Count(ASKED, serial))
    counts = [event for event in settle(thread) if isinstance(event, ev.PromptCounted)]
    tokens = len(engine.prompt_ids(ASKED))
    assert counts == [ev.PromptCounted(10, tokens, unread=tokens)]


def test_shutdown_is_quick_even_when_the_engine_is_stuck() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    engine.cancel = lambda: None  # type: ignore[method-assign]
    thread = Inference()
    thread.start()
    found: list[Any] = []
    thread.submit(ev.Load(lambda: engine))
    thread.submit(request())
    until(thread, ev.Started, found)
    begun = time.monotonic()
    assert not thread.shutdown(0.2)
    assert time.monotonic() - begun < 30
    engine._cancelled.set()


def test_shutdown_closes_the_engine() -> None:
    engine = FakeEngine()
    thread = Inference()
    thread.start()
    thread.submit(ev.Load(lambda: engine))
    settle(thread)
    assert thread.shutdown(60)
    assert engine.closed


def test_it_wakes_for_a_first_token_and_for_an_end() -> None:
    woken: list[list[type]] = []
    thread = Inference(wake=lambda: woken.append([type(event) for event in thread.drain()]))
    thread.start()
    thread.submit(ev.Load(FakeEngine))
    thread.submit(request())
    end = time.monotonic() + 60
    while len(woken) < 3:
        assert time.monotonic() < end
        time.sleep(0.002)
    loaded, first, last = woken
    assert loaded == [ev.ModelLoaded]
    assert first[-1] is ev.TokenGenerated
    assert first.count(ev.TokenGenerated) == 1
    assert last[-1] is ev.Finished
    thread.shutdown(2.0)


def test_what_it_computes_gives_way() -> None:
    seen: list[int] = []

    def load() -> FakeEngine:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return FakeEngine()

    thread = Inference()
    thread.start()
    thread.submit(ev.Load(load))
    settle(thread)
    thread.shutdown(2.0)
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert seen == [min(19, own + (NICE_INCREMENT if sys.platform == "linux" else 0))]
