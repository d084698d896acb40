"""The screen for controllers: hints, dialogs, and the focus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.screen import ModalScreen
    from textual.widget import Widget

    from ropechat.tui.commands.keymap import Keymap
    from ropechat.tui.terminal.textual_compat import CompatApp
    from ropechat.tui.widgets.composer import Composer
    from ropechat.tui.widgets.token_transcript import TokenTranscript

SIDE_PANEL = 120  # fewest columns for a panel next to the transcript


class View:
    """The screen, as controllers see it. app: for timers, workers and sizes.

    hint: shows a text in the footer for a while; refresh_status: brings the lines around the transcript and
    the panels up to date; closed: called whenever a dialog is closed.
    """

    def __init__(
        self,
        app: CompatApp,
        keymap: Keymap,
        transcript: TokenTranscript,
        composer: Composer,
        hint: Callable[[str], None],
        refresh_status: Callable[[], None],
        closed: Callable[[], None],
    ) -> None:
        self.app, self.keymap = app, keymap
        self.hint, self.refresh_status = hint, refresh_status
        self._transcript, self._composer, self._closed = transcript, composer, closed

    def push(self, screen: ModalScreen[Any], chosen: Callable[..., None] = lambda result: None) -> None:
        """Open a dialog; `chosen` gets its result, unless that is None."""

        def closed(result: object) -> None:
            self._closed()
            if result is not None:
                chosen(result)
            self.refresh_status()

        self.app.push_screen(screen, closed)

    @property
    def covered(self) -> bool:
        """Whether a dialog is open."""
        return len(self.app.screen_stack) > 1

    def closes(self, dialog: type[ModalScreen[Any]]) -> bool:
        """Close this kind of dialog if it is on top; returns whether any dialog was open."""
        covered = self.covered
        if isinstance(self.app.screen, dialog):
            self.app.screen.dismiss(None)
        return covered

    @property
    def chat_focus(self) -> Widget | None:
        """The widget of the chat that has the focus, or will have it once the open dialog is closed."""
        return self.app.screen_stack[0].focused if self.app.screen_stack else None

    def give_keys(self, widget: Widget) -> None:
        """Focus a widget of the chat, from the next key on."""
        widget.screen.set_focus(widget)

    def write(self) -> None:
        """Focus the composer."""
        self._transcript.commands = False
        self.give_keys(self._composer)
        self.refresh_status()
