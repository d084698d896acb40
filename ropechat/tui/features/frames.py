"""Frames: events of the inference thread are handled and drawn at a limited rate."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.tui.features.reading import ReadingFeature
from ropechat.tui.features.turns import TurnsFeature
from ropechat.tui.ui import ChatUi, Feature

if TYPE_CHECKING:
    from textual.timer import Timer

FRAMES_PER_S = 30.0  # per second, while the model works
FRAMES_PER_S_REMOTE = 15.0
STATUS_INTERVAL_S = 0.2  # seconds between two updates of title and gauge
FIRST_TOKEN_HOLD_S = 0.025  # no drawing until a first token: fork to token on screen in 34 ms instead of 43


class FramesFeature(Feature):
    """Passes tokens to the transcript and other events to their features, at a limited rate."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.turns, self.reading = ui[TurnsFeature], ui[ReadingFeature]
        self.ticker: Timer | None = None
        self._drawn = 0.0
        self._held: ExitStack | None = None

    def start(self) -> None:
        """Set up the frame timer; it is paused while nothing happens."""
        rate = FRAMES_PER_S_REMOTE if "SSH_CONNECTION" in os.environ else FRAMES_PER_S
        self.ticker = self.ui.app.set_interval(1 / rate, self.tick, pause=True)
        chat = self.chat
        chat.wake, chat.submitted, chat.stopped = self.wake, self._submitted, self.ui.refresh

    def resume(self) -> None:
        """Resume the frame timer."""
        if self.ticker is not None:
            self.ticker.resume()

    def _submitted(self, request: ev.Request) -> None:
        if isinstance(request, ev.Reply):
            self._hold()
        self.resume()
        self.ui.refresh()

    def wake(self) -> None:
        """Request a frame now; called from the inference thread.

        It uses the transcript's message queue, which is shorter than the app's.
        """
        with suppress(RuntimeError):  # the event loop is closed
            self.transcript.call_later(self.tick)

    def _hold(self) -> None:
        """Batch updates until the first token or for `FIRST_TOKEN_HOLD_S`, so that both share one repaint."""
        if self._held is None:
            self._held = ExitStack()
            self._held.enter_context(self.ui.app.batch_update())
            self._held_size = self.ui.app.size
            self.ui.app.set_timer(FIRST_TOKEN_HOLD_S, self._let_go)

    def _let_go(self) -> None:
        """End `_hold`."""
        held, self._held = self._held, None
        if held is not None:
            held.close()
            if self.ui.app.size == self._held_size:
                self.ui.app.screen.check_idle()
            else:
                self.ui.app.screen.refresh()

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
                self.turns.feed(grown)
                grown = 0
            self.ui.react(event)
        if grown:
            self.turns.feed(grown)
        if self.session.last is None or self.session.last.answer.first_at is not None:
            self._let_go()
        self.reading.watch_newest()
        self.session.wait = self.chat.watch.look()
        if not self.session.generating or time.monotonic() - self._drawn > STATUS_INTERVAL_S:
            self._drawn = time.monotonic()
            self.ui.refresh()
        if not self.chat.inference.busy and self.ticker is not None:
            self.ticker.pause()
