"""What a command of the chat is, and the places where keys work."""

from __future__ import annotations

from dataclasses import dataclass

CONTEXTS = {
    "composer": "In the composer",
    "transcript": "In the transcript (letters: while READING is shown)",
    "everywhere": "Everywhere",
    "sheet": "In every sheet over the chat",
    "chats": "Among the chats",
    "branches": "Among the branches",
    "compare": "In a comparison",
    "alternatives": "Among alternatives",
    "models": "Among the models",
    "dials": "In the sampling",
    "personas": "Among personas",
    "full": "When the context is full",
}
SHEETS = tuple(CONTEXTS)[3:]
TYPED = ("composer", "everywhere", "chats", "models")  # where a letter is text
TRANSCRIPT = ("answer", "question", "sibling", "read", "alternative")


@dataclass(frozen=True)
class Command:
    """One command. `action` is the app's, or of the transcript or sheet where its keys work.

    keys: as Textual names them; none for a command that is only typed. shown: how people read them.
    slash: what is typed for it behind a "/"; arguments: what may follow, for the help.
    """

    id: str
    keys: str
    shown: str
    label: str
    help: str
    action: str = ""
    priority: bool = False
    slash: str = ""
    arguments: str = ""

    @property
    def context(self) -> str:
        """Where its keys work: one of CONTEXTS, by the first part of the id."""
        place = self.id.partition(".")[0]
        if place in TRANSCRIPT:
            return "transcript"
        return place if place in CONTEXTS else "everywhere"
