"""What the footer says in the place of keys: for a while, or as long as something is so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.timer import Timer

    from ropechat.tui.controllers.view import View

CONFIRM_WINDOW_S = 3.0  # seconds in which a key may be pressed again
READING_CHARS_PER_S = 20.0  # characters of a message that are read in a second


class HintsController:
    """standing: asked in this order for what is to be said now; "" for nothing."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.standing: Sequence[Callable[[], str]] = ()
        self._hint = ""
        self._armed = ""  # the command whose key does more when it is pressed again
        self._disarmer: Timer | None = None

    @property
    def text(self) -> str:
        """The footer's text; "" to show the keys."""
        return self._hint or next(filter(None, (standing() for standing in self.standing)), "")

    def say(self, text: str) -> None:
        """Show a text for as long as it takes to read it."""
        self._hint = text
        if self._disarmer is not None:
            self._disarmer.stop()
        seconds = max(CONFIRM_WINDOW_S, len(text) / READING_CHARS_PER_S)
        self._disarmer = self.view.app.set_timer(seconds, self.disarm)
        self.view.refresh_status()

    def disarm(self) -> None:
        """Clear the text; the next press of a key counts as the first."""
        self._hint = self._armed = ""
        self.view.refresh_status()

    def disarm_by(self, event: events.Event) -> None:
        """Clear the text if another key than the armed one is pressed."""
        if not self._armed:
            return
        if not isinstance(event, events.Key) or event.key not in self.view.keymap.keys(self._armed):
            self.disarm()

    def again(self, command: str, hint: str) -> bool:
        """True when the key of a command is pressed again within a few seconds; the first press says so."""
        if self._armed == command:
            self.disarm()
            return True
        self.say(hint)
        self._armed = command
        return False
