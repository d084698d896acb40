"""Where keys go: to the composer, unless something else visibly has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events
from textual.containers import Horizontal

from ropechat.tui.controllers.sidebar import Surveying
from ropechat.tui.widgets.input import typed

if TYPE_CHECKING:
    from textual.timer import Timer

ARMED = 3.0  # seconds in which a key may be pressed again
READ = 20.0  # characters of a message that are read in a second


class Keyboard(Surveying):
    """Decides for each key who gets it, before the next one is looked at: none can overtake another."""

    def __init__(self) -> None:
        super().__init__()
        self.compose_line = Horizontal(id="compose")
        self._hint = ""
        self._armed = ""  # the command whose key does more when it is pressed again
        self._disarmer: Timer | None = None

    async def on_event(self, event: events.Event) -> None:
        """Text goes to the composer where letters are no commands; the transcript's keys act at once."""
        if isinstance(event, events.Key | events.Paste | events.MouseDown) and not event.is_forwarded:
            self._disarm_by(event)
            if len(self.screen_stack) == 1 and await self._directed(event):
                return
        await super().on_event(event)

    async def _directed(self, event: events.Key | events.Paste | events.MouseDown) -> bool:
        """Is nothing left to do?"""
        if isinstance(event, events.MouseDown):
            return False
        if self._is_text(event):
            self.action_write()
        elif isinstance(event, events.Key) and self.has_keys(self.transcript):
            await self.run_key_bindings(event.key)
            return True
        return False

    def _is_text(self, event: events.Key | events.Paste) -> bool:
        """Is it for the composer, whoever has the keys?"""
        fields = self.has_keys(self.composer) or self.has_keys(self.find_bar)
        if fields or self.at_dials not in (None, self.dials):
            return False
        if isinstance(event, events.Paste):
            return True
        for_dials = self.at_dials is not None and event.key in self.dials.own_keys
        return bool(typed(event)) and not self.reading and not for_dials

    def on_app_blur(self, event: events.AppBlur) -> None:
        """The window is left: keys go where they went once it is entered again, and the footer says so."""
        event.prevent_default()

    def action_write(self) -> None:
        """Give the keys to the composer."""
        self.transcript.commands = False
        self.give_keys(self.composer)
        self._redraw()

    def action_focus_next(self) -> None:
        """Tab goes through the fields of a sheet; in the chat it stays where people write."""
        if len(self.screen_stack) > 1:
            super().action_focus_next()
        else:
            self.action_write()

    def action_focus_previous(self) -> None:
        """As tab."""
        if len(self.screen_stack) > 1:
            super().action_focus_previous()
        else:
            self.action_write()

    def show_reading(self) -> None:
        """Frame the composer while keys go elsewhere."""
        self.compose_line.border_title = self.reading_label()
        self.compose_line.set_class(self.reading, "-reading")

    # --- keys that do more when they are pressed again ---

    def _say_hint(self, text: str) -> None:
        self._hint = text
        if self._disarmer is not None:
            self._disarmer.stop()
        self._disarmer = self.set_timer(max(ARMED, len(text) / READ), self._disarm)
        self._redraw()

    def _disarm(self) -> None:
        self._hint = self._armed = ""
        self._redraw()

    def _disarm_by(self, event: events.Event) -> None:
        """Whatever else is pressed in between begins anew."""
        if not self._armed:
            return
        if not isinstance(event, events.Key) or event.key not in self.keymap.keys(self._armed):
            self._disarm()

    def _again(self, command: str, hint: str) -> bool:
        """True when the key of a command is pressed again within a few seconds; the first press says so."""
        if self._armed == command:
            self._disarm()
            return True
        self._say_hint(hint)
        self._armed = command
        return False
