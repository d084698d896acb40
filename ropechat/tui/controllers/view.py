"""What a controller may ask of the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.geometry import Size
    from textual.screen import ModalScreen, Screen
    from textual.timer import Timer
    from textual.widget import Widget

    from ropechat.tui.commands.keymap import Keymap
    from ropechat.tui.render.blocks import Block

SIDE_PANEL = 120  # columns from which there is room beside the transcript


class View(Protocol):
    """The app, as controllers see it: what is said around the transcript, dialogs, focus, timers."""

    keymap: Keymap

    def hint(self, text: str) -> None:
        """Say something at the bottom of the screen for a while."""

    def notice(self, kind: str, text: str, at: int | None = None) -> Block:
        """Put a notice ("notice" or "error") into the transcript, at the end or at a place."""

    def refresh_status(self) -> None:
        """Bring the lines around the transcript up to date."""

    def count_draft(self) -> None:
        """Have the tokens of the draft counted."""

    def push(self, screen: ModalScreen[Any], chosen: Callable[..., None]) -> None:
        """Open a dialog; `chosen` gets its result, unless that is None."""

    def closes(self, dialog: type[ModalScreen[Any]]) -> bool:
        """Close this kind of dialog if it is on top; returns whether any dialog is open."""

    def way_to(self, id: str) -> str:
        """How a command is given from where the keyboard is: by its key, or typed."""

    # --- focus ---

    @property
    def chat_focus(self) -> Widget | None:
        """The widget of the chat that has the keys, or will have them once the dialog over it is closed."""

    def give_keys(self, widget: Widget) -> None:
        """Keys go to this widget of the chat, from the next one on."""

    def write(self) -> None:
        """Keys go to the composer."""

    # --- of Textual's App ---

    @property
    def screen(self) -> Screen[Any]:
        """The screen on top."""

    @property
    def covered(self) -> bool:
        """Is a dialog over the chat?"""

    @property
    def size(self) -> Size:
        """Columns and rows."""

    def run_worker(self, work: Any, *, group: str = ..., exclusive: bool = ...) -> Any:
        """Run a coroutine beside the chat."""

    def call_after_refresh(self, callback: Callable[..., Any]) -> bool:
        """Call once the screen is drawn."""

    def set_timer(self, delay: float, callback: Callable[[], Any]) -> Timer:
        """Call after `delay` seconds."""

    def set_interval(self, interval: float, callback: Callable[[], Any]) -> Timer:
        """Call every `interval` seconds."""
