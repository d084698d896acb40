"""A chat with a real model and without a screen: what a user does, one thing after the other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ropechat.chat import events as ev
from ropechat.chat import inference
from ropechat.chat.live import LiveChat
from ropechat.engine.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ropechat.chat.answer import Turn
    from ropechat.sampling import Sampling
    from ropechat.store.store import Store
    from ropechat.trace import Step

LIMIT_S = 60.0
inference.WRITE_LIMIT_S = LIMIT_S  # a busy machine syncs slowly, and timing never decides a test


class Program:
    """One start of the program. seen: all events; cached: tokens of the newest prompt that were cached."""

    def __init__(
        self,
        model: str | Path,
        store: Store | None,
        sampling: Sampling,
        system: str | None = None,
        **options: Any,
    ) -> None:
        self.options = {"cache": "auto", "context": 2048, "threads": 1} | options.pop("load", {})
        self.engines: list[Engine] = []
        self.seen: list[ev.EngineEvent] = []
        self.cached = self.prompt = 0
        self.chat = LiveChat(lambda: self._load(model), str(model), sampling, system, store, **options)
        self.session, self.inference = self.chat.session, self.chat.inference
        self.inference.start()
        self.until(lambda: self.session.info is not None)

    def _load(self, model: str | Path) -> Any:
        self.engines.append(Engine.load(model, **self.options))
        return self.engines[-1]

    def pump(self) -> None:
        """Apply what the thread reported."""
        for event in self.inference.drain():
            self.seen.append(event)
            if isinstance(event, ev.Prefilled) and not self.prompt:
                self.cached, self.prompt = event.done, event.total
            self.session.apply(event)

    def until(self, condition: Callable[[], bool]) -> None:
        """Pump until something is true."""
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end
            self.pump()
            time.sleep(0.0005)
        self.pump()

    def read_ahead(self, draft: str = "") -> None:
        """Read what comes before the next question, to the end."""
        ahead = self.inference._ahead
        self.chat.read_ahead(draft)
        self.until(lambda: self.inference._requests.empty() and ahead._request is None)

    def answer(self, turn: Turn) -> tuple[ev.Reply, list[Step]]:
        """Have a turn answered: its request and the steps."""
        assert turn.request is not None
        self.cached = self.prompt = 0
        self.chat.submit(turn.request)
        self.until(lambda: not self.session.generating)
        assert turn.answer.error is None, turn.answer.error
        return turn.request, list(turn.answer.node.steps)

    def open(self, chat: str) -> None:
        """Show a stored chat."""
        store = self.session.recorder.store
        assert store is not None
        self.chat.save_kv()
        self.session.open(store.load(chat).result(60))

    def new(self) -> None:
        """Begin a new chat."""
        self.chat.save_kv()
        self.session.clear()

    def close(self) -> None:
        """End the program, as the app does."""
        self.chat.leave()
        assert self.inference.shutdown(10.0)


def expected(engine: Engine, request: ev.Reply) -> list[Step]:
    """What an engine that reads everything answers."""
    given: Mapping[str, Any] = {"top_k": request.top_k}
    return list(engine.reply(request.messages, request.sampling, **given))
