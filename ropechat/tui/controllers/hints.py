"""Texts that replace the keys in the footer: for some seconds, or while a condition is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.timer import Timer

    from ropechat.tui.controllers.view import View

CONFIRM_WINDOW_S = 3.0  # seconds in which the second press counts
READING_CHARS_PER_S = 20.0  # reading speed in characters per second


class HintsController:
    """standing: functions that return the text of a condition, or ""; the first text is shown."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.standing: Sequence[Callable[[], str]] = ()
        self._hint = ""
        self._armed = ""  # the command that waits for a second press
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
        """Whether a command's key is pressed twice within a few seconds; the first press shows `hint`."""
        if self._armed == command:
            self.disarm()
            return True
        self.say(hint)
        self._armed = command
        return False
