"""Frames: what happened on the inference thread is taken in, and drawn at most so many times a second."""

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
STATUS_INTERVAL_S = 0.2  # seconds between two looks of title and gauge at what the model does
FIRST_TOKEN_HOLD_S = 0.025  # no drawing until a first token: fork to token on screen in 34 ms instead of 43


class FramesController:
    """Feeds tokens to the transcript and passes other events on.

    react: takes each event that is no token; watch: called in each frame; refresh: now and then.
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
        """Called from the inference thread when people wait for a frame.

        The transcript's queue is short; the app's own waits for keys, and for dialogs that come and go.
        """
        with suppress(RuntimeError):  # the loop is closed: nobody looks any more
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
        grown = 0  # the serial of the request whose answer has tokens that are not drawn
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
        if not self.session.generating or time.monotonic() - self._drawn > STATUS_INTERVAL_S:
            self._drawn = time.monotonic()
            self._refresh()
        if not self.chat.inference.busy and self.ticker is not None:
            self.ticker.pause()
