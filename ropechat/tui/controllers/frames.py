"""Frames: events of the inference thread are handled and drawn at a limited rate."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from ropechat.chat import events as ev

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import App
    from textual.timer import Timer

    from ropechat.chat.live import LiveChat
    from ropechat.tui.controllers.transcript import TranscriptController

FRAMES_PER_S = 30.0  # per second, while the model works
FRAMES_PER_S_REMOTE = 15.0
STATUS_INTERVAL_S = 0.2  # seconds between two updates of title and gauge
FIRST_TOKEN_HOLD_S = 0.025  # no drawing until a first token: fork to token on screen in 34 ms instead of 43


class FramesController:
    """Passes tokens to the transcript and other events to `react`.

    react: handles each event other than a token; watch: called in each frame; refresh: updates the status.
    """

    def __init__(
        self,
        chat: LiveChat,
        app: App[Any],
        path: TranscriptController,
        react: Callable[[ev.EngineEvent], None],
        watch: Callable[[], None],
        refresh: Callable[[], None],
    ) -> None:
        self.chat, self.app, self.session, self.path = chat, app, chat.session, path
        self._react, self._watch, self._refresh = react, watch, refresh
        self.ticker: Timer | None = None
        self._drawn = 0.0
        self._held: ExitStack | None = None

    def start(self) -> None:
        """Set up the frame timer; it is paused while nothing happens."""
        rate = FRAMES_PER_S_REMOTE if "SSH_CONNECTION" in os.environ else FRAMES_PER_S
        self.ticker = self.app.set_interval(1 / rate, self.tick, pause=True)
        chat = self.chat
        chat.wake, chat.submitted, chat.stopped = self.wake, self._submitted, self._refresh

    def resume(self) -> None:
        """Resume the frame timer."""
        if self.ticker is not None:
            self.ticker.resume()

    def _submitted(self, request: ev.Request) -> None:
        if isinstance(request, ev.Reply):
            self._hold()
        self.resume()
        self._refresh()

    def wake(self) -> None:
        """Request a frame now; called from the inference thread.

        It uses the transcript's message queue, which is shorter than the app's.
        """
        with suppress(RuntimeError):  # the event loop is closed
            self.path.transcript.call_later(self.tick)

    def _hold(self) -> None:
        """Batch updates until the first token or for `FIRST_TOKEN_HOLD_S`, so that both share one repaint."""
        if self._held is None:
            self._held = ExitStack()
            self._held.enter_context(self.app.batch_update())
            self._held_size = self.app.size
            self.app.set_timer(FIRST_TOKEN_HOLD_S, self._let_go)

    def _let_go(self) -> None:
        """End `_hold`."""
        held, self._held = self._held, None
        if held is not None:
            held.close()
            if self.app.size == self._held_size:
                self.app.screen.check_idle()
            else:
                self.app.screen.refresh()

    def tick(self) -> None:
        """Handle all events since the last frame."""
        grown = 0  # serial of the request with tokens not drawn yet
        for event in self.chat.inference.drain():
            if not self.session.apply(event):
                continue
            if isinstance(event, ev.TokenGenerated | ev.PrefixAccepted):
                grown = event.serial
                continue
            if grown:
                self.path.feed(grown)
                grown = 0
            self._react(event)
        if grown:
            self.path.feed(grown)
        if self.session.last is None or self.session.last.answer.first_at is not None:
            self._let_go()
        self._watch()
        self.session.wait = self.chat.watch.look()
        if not self.session.generating or time.monotonic() - self._drawn > STATUS_INTERVAL_S:
            self._drawn = time.monotonic()
            self._refresh()
        if not self.chat.inference.busy and self.ticker is not None:
            self.ticker.pause()
