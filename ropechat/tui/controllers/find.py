"""Searching the transcript."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.widgets import Label

    from ropechat.tui.commands.dispatch import Handler
    from ropechat.tui.controllers.view import View
    from ropechat.tui.widgets.input import FindBar
    from ropechat.tui.widgets.token_transcript import TokenTranscript


class FindController:
    """Finds text in the transcript: marks matches and counts them."""

    def __init__(self, view: View, transcript: TokenTranscript, find_bar: FindBar, found: Label) -> None:
        self.view, self.transcript, self.find_bar, self.found = view, transcript, find_bar, found

    def handlers(self) -> dict[str, Handler]:
        return {"view.find": self._find}

    def _find(self, text: str) -> str:
        if text:
            self.find_text(text)
        else:
            self.open()
        return ""

    def open(self) -> None:
        """Open the search field."""
        self.view.app.screen.add_class("-finding")
        self.find_bar.focus()

    def find_text(self, text: str, node: str = "") -> None:
        """Search for a text and focus the transcript. node: the message that has the first match."""
        self.view.app.screen.add_class("-finding")
        with self.find_bar.prevent(self.find_bar.Changed):
            self.find_bar.value = text
        self.transcript.find(text, node)
        self.count()
        self.view.give_keys(self.transcript)

    def close(self) -> None:
        """End the search and return to the token cursor or the composer."""
        self.leave()
        if self.transcript.commands:
            self.view.give_keys(self.transcript)
        else:
            self.view.write()

    def leave(self) -> None:
        """End the search; the focus stays."""
        self.view.app.screen.remove_class("-finding")
        self.find_bar.value = ""
        self.transcript.find("")

    @property
    def active(self) -> bool:
        """Whether a search is open."""
        return self.view.app.screen.has_class("-finding")

    def changed(self) -> None:
        """Mark matches while typing."""
        self.transcript.find(self.find_bar.value)
        self.count()

    def submitted(self) -> None:
        """Focus the transcript, where n and N select matches."""
        self.view.give_keys(self.transcript)
        self.view.refresh_status()

    def count(self) -> None:
        """Show the number of matches and the current one."""
        finder = self.transcript.finder
        text = f"{finder.number:,}/{finder.count:,}" if finder.count else "none" if finder.active else ""
        self.found.update(f" {text}  ⏎ n N  esc ")
