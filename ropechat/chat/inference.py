"""The thread that owns the engine.

Requests arrive in a queue; events leave through a deque that the UI drains, so neither waits for the other.
The thread is a daemon: quitting never waits for a forward pass.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread, get_native_id
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.answering import AnswerWriter, answer, prefix_steps
from ropechat.chat.context import keep_last
from ropechat.chat.errors import explain
from ropechat.chat.reading_ahead import ReadingAhead
from ropechat.conversation import Message, Role
from ropechat.errors import RopechatError
from ropechat.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.engine.engine import Engine

UNUSED = "this model's chat template does not use this variable; it changes nothing"
PLACEHOLDER_MESSAGES = (Message(Role.USER, "Hi"),)  # the question before a text whose tokens the UI asks for
NICE_INCREMENT = 5  # than the thread that draws
WRITE_LIMIT_S = 1.0  # seconds at the end for what is kept on disk


class Inference:
    """Runs one request after another on its own thread."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wake: Callable[[], None] = lambda: None
    ) -> None:
        """wake: called from the thread after a first token and after each request."""
        self._requests: SimpleQueue[ev.Request | ev.ReadAhead | ev.SaveKv | None] = SimpleQueue()
        self._events: deque[ev.EngineEvent] = deque()
        self._pending = 0  # requests not yet answered; only touched under the lock
        self._lock = Lock()
        self._engine: Engine | None = None
        self._running: ev.Reply | None = None
        self._latest_count = -1
        self._latest_ahead: ev.ReadAhead | None = None
        self._left: ev.SaveKv | None = None  # the chat that was left last, unless its KV cache is saved
        self._closing = Event()
        self._clock = clock
        self._wake = wake
        self._ahead = ReadingAhead(self._events.append, wake, clock)
        self._thread = Thread(target=self._run, name="ropechat-inference", daemon=True)

    @property
    def busy(self) -> bool:
        """Whether a request is unanswered or an event is not drained yet."""
        return self._pending > 0 or bool(self._events)

    def start(self) -> None:
        """Start the thread, which also serves the requests that were submitted earlier."""
        self._thread.start()

    def submit(self, request: ev.Request) -> None:
        """Queue a request; returns at once."""
        if isinstance(request, ev.Count):
            self._latest_count = request.serial
        with self._lock:
            self._pending += 1
        self._requests.put(request)
        if not isinstance(request, ev.Count):  # counting takes no longer than ending does
            self._ahead.interrupt()

    def read_ahead(self, request: ev.ReadAhead) -> None:
        """Read this while no request waits; returns at once."""
        self._latest_ahead = request
        self._requests.put(request)

    def save_kv(self, request: ev.SaveKv) -> None:
        """Save the KV cache of a chat that is being closed; returns at once."""
        self._left = request
        self._requests.put(request)

    def drain(self) -> list[ev.EngineEvent]:
        """All events since the last call, oldest first."""
        events = self._events
        return [events.popleft() for _ in range(len(events))]

    def cancel(self, request: ev.Reply) -> None:
        """Stop a reply, queued or running; what it produced stays."""
        request.cancelled.set()
        with self._lock:
            engine = self._engine if self._running is request else None
        if engine is not None:
            engine.cancel()

    def shutdown(self, limit: float = 0.5) -> bool:
        """Cancel everything and wait at most `limit` seconds; False if a thread is still at work.

        The KV cache of the chat is saved, for at most `WRITE_LIMIT_S`.
        """
        self._closing.set()
        with self._lock:
            running = self._running
        if running is not None:
            self.cancel(running)
        self._requests.put(None)
        self._ahead.interrupt()
        if self._thread.is_alive():
            self._thread.join(limit)
        return not self._thread.is_alive() and self._ahead.writer.close(WRITE_LIMIT_S)

    def _run(self) -> None:
        _give_way()
        while (request := self._next()) is not None and not self._closing.is_set():
            if isinstance(request, ev.ReadAhead | ev.SaveKv):
                self._look_ahead(request)
                continue
            try:
                self._serve(request)
            except (
                BaseException
            ) as error:  # a Rust panic is not an Exception, but the UI must learn of it, too
                self._events.append(_failure(request, error))
            finally:
                with self._lock:
                    self._pending -= 1
                self._wake()
        engine, self._engine = self._engine, None
        if engine is not None:
            self._ahead.leave(engine, self._left)
            engine.close()

    def _look_ahead(self, request: ev.ReadAhead | ev.SaveKv) -> None:
        if isinstance(request, ev.SaveKv):
            if self._engine is not None:
                self._ahead.leave(self._engine, request)
            if request is self._left:
                self._left = None
        elif request is self._latest_ahead:
            self._ahead.begin(request)

    def _next(self) -> ev.Request | ev.ReadAhead | ev.SaveKv | None:
        """The next request; until it arrives, text is read ahead."""
        while True:
            try:
                return self._requests.get(timeout=self._ahead.wait)
            except Empty:
                self._ahead.advance(self._engine)

    def _serve(self, request: ev.Request) -> None:
        if isinstance(request, ev.Load):
            self._load(request)
            return
        if isinstance(request, ev.Call):
            request.done(_result_of(request, self._engine))
            return
        if self._engine is None:
            error = RuntimeError("no model is loaded")
            if isinstance(request, ev.Reply):
                AnswerWriter(request).end(None, error)
            raise error
        if isinstance(request, ev.Reply):
            self._ahead.stop()
            self._reply(self._engine, request)
        elif isinstance(request, ev.Preview):
            self._preview(self._engine, request)
        elif isinstance(request, ev.Encode):
            ids = tuple(tuple(self._engine.reply_ids(PLACEHOLDER_MESSAGES, text)) for text in request.texts)
            self._events.append(ev.TextsEncoded(request.serial, ids))
        elif request.serial == self._latest_count:
            self._events.append(_counted(self._engine, request))

    def _load(self, request: ev.Load) -> None:
        """Close the old model before the new one is loaded: both may not fit in memory."""
        try:
            request.check()
        except Exception as error:
            self._events.append(ev.LoadFailed(error, kept=self._engine is not None))
            return
        with self._lock:
            old, self._engine = self._engine, None
        self._ahead.stop()
        if old is not None:
            self._ahead.save(old)
            old.close()
            del old
        engine = request.load()
        with self._lock:
            self._engine = engine
        self._events.append(ev.ModelLoaded(describe(engine)))
        engine.prompts.on_note = self._note
        for name in engine.prompts.unused():
            self._events.append(ev.Notice(f"{name}: {UNUSED}"))

    def _note(self, text: str) -> None:
        """Report a note about a prompt, also about one that is read ahead without a receiver of events."""
        self._events.append(ev.Notice(text))
        self._wake()

    def _reply(self, engine: Engine, request: ev.Reply) -> None:
        with self._lock:
            self._running = request
        emit, reason = self._events.append, None
        steps = answer(
            engine,
            request,
            emit,
            clock=self._clock,
            before=lambda ids: self._ahead.take(engine, ids, request.kv_location),
        )
        try:
            next(steps)
            self._wake()  # the first token is drawn without waiting for a frame
            while True:
                next(steps)
        except StopIteration as end:
            reason = end.value
        finally:
            with self._lock:
                self._running = None
        if reason is not None:
            emit(ev.Finished(request.serial, reason, engine.kv_bytes))

    def _preview(self, engine: Engine, request: ev.Preview) -> None:
        """Generate a preview; it ends early when another request waits."""
        given = prefix_steps(engine, request, 0)
        found = given[-1:]
        if not (found and found[0].id in engine.stop_ids):
            think, budget = request.thinking
            greedy = Sampling(temperature=0, max_tokens=request.count, think=think, thinking_budget=budget)
            for step in engine.reply(request.messages, greedy, prefix=[step.id for step in given]):
                if self._pending > 1 or self._closing.is_set():
                    break
                found.append(step)
                if len(found) > request.count:  # tokens of a thought do not count for max_tokens
                    break
        self._events.append(ev.PreviewReady(request.serial, tuple(found)))


def _give_way() -> None:
    """Lower the priority of this thread, and of those that the engine starts, below the one that draws.

    Only Linux has priorities of threads. On idle cores it costs nothing.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            thread = get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE_INCREMENT)


def _result_of(request: ev.Call, engine: Engine | None) -> object:
    """The result of a job, or its exception."""
    if engine is None:
        return RuntimeError("no model is loaded")
    try:
        return request.job(engine)
    except BaseException as error:  # a Rust panic is not an Exception
        return error


def _counted(engine: Engine, request: ev.Count) -> ev.PromptCounted:
    messages = request.messages
    ids = engine.prompt_ids(messages, thinking=request.thinking)
    tokens = len(ids)
    if tokens >= engine.context and messages[-1].role is Role.USER:
        least = len(engine.prompt_ids(keep_last(messages), thinking=request.thinking))
        if least >= engine.context:
            return ev.PromptCounted(request.serial, least, alone=True)
    return ev.PromptCounted(request.serial, tokens, False, *engine.prefill_estimate(ids))


def describe(engine: Engine) -> ev.ModelInfo:
    """What the UI shows of an engine."""
    dtype, thoughts = str(engine.facts.get("dtype", "")), engine.prompts.thoughts
    return ev.ModelInfo(
        *(engine.name, dtype, engine.context, engine.has_chat_template, dict(engine.facts)),
        *(engine.token_bytes, engine.rope_spec),
        own_sampling=engine.own_sampling,
        own_without_thinking=engine.recommended("off"),
        thinks=engine.thinks,
        has_effort=thoughts is not None and thoughts.format.has_effort,
        repeats_thoughts=engine.thinks and _repeats_thoughts(engine),
    )


def _repeats_thoughts(engine: Engine) -> bool:
    """Whether the chat template renders the thought of an earlier answer."""
    asked = Message(Role.USER, "a")
    with suppress(RopechatError):
        bare, thought = (
            engine.prompt_ids([asked, Message(Role.ASSISTANT, "b", text), asked]) for text in ("", "c")
        )
        return bare != thought
    return False


def _failure(request: ev.Request, error: BaseException) -> ev.EngineEvent:
    if isinstance(request, ev.Call):  # of `done`, which takes the errors of the job itself
        return ev.Notice(f"internal error: {type(error).__name__}: {error}")
    if isinstance(request, ev.Load):
        return ev.LoadFailed(error)
    if isinstance(request, ev.Count):
        return ev.PromptCounted(request.serial, -1)
    if isinstance(request, ev.Encode):
        return ev.TextsEncoded(request.serial, ())
    if isinstance(request, ev.Preview):
        return ev.PreviewReady(request.serial, (), explain(error))
    return ev.Failed(request.serial, error)
