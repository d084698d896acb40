"""The input area: several lines, history, completion, cleaned pastes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message
from textual.widgets import TextArea

from ropechat.chat.draft import Pastes, Unsent, complete_attachment, find_path
from ropechat.models.completion import complete_model
from ropechat.tui.commands import registry as keys
from ropechat.tui.widgets.input import typed_text
from ropechat.util.text import clean, common_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual import events

    from ropechat.tui.commands.keymap import Keymap

_MODEL = re.compile(r"/model (.*)")
MAX_CLEARED = 10  # texts that were cleared and not sent, which are stored with the draft


class Composer(TextArea):
    """A text area with the commands of `keys.WRITING`."""

    class Leave(Message):
        """ctrl+d on an empty line."""

    @dataclass
    class Sought(Message):
        """The history search or the completion moved. words: its status text."""

        words: str

    @dataclass
    class Page(Message):
        """Scroll the transcript by a page: -1 or 1."""

        direction: int

    def __init__(self, send: Callable[[str], bool], keymap: Keymap, *, id: str | None = None) -> None:
        super().__init__(
            id=id, compact=True, highlight_cursor_line=False, tab_behavior="focus", placeholder="Message"
        )
        self._send = send  # True if the text was accepted
        self._commands = keymap.of(keys.WRITING)
        self.cursor_blink = False  # no timer while idle
        self.sent: list[str] = []
        self.pastes = Pastes()
        self.examples: Callable[[], Sequence[str]] = tuple  # what tab offers while nothing is written
        self._back = 0  # how far back in the history; 0 is the draft
        self._texts: dict[int, str] = {}  # {position in the history: its changed text}
        self._aside: str | None = None  # the draft while another text is shown
        self._lent = ""  # that text before changes
        self._cleared: list[str] = []  # what was put into the history without being sent
        self._sought: str | None = None  # the text searched in the history, or None
        self._offered: tuple[tuple[str, object], int, list[str], int] | None = None

    def set_text(self, text: str) -> None:
        """Show a text, cleaned, with the cursor at its end."""
        self.load_text(clean(text))
        self.move_cursor(self.document.end)

    def on_key(self, event: events.Key) -> None:
        """Run the composer's commands; Textual handles other keys."""
        command = self._commands.get(event.key, "")
        left = command != "composer.search" and self._leave_search(event.key)
        if left or self._do(command):
            event.stop()
            event.prevent_default()
        elif not event.is_printable and (text := typed_text(event)):
            event.stop()
            event.prevent_default()
            self.replace(text, *self.selection, maintain_selection_offset=False)

    def _do(self, command: str) -> bool:
        """Run the command of a key; False if it does not apply now."""
        match command:
            case "composer.send":
                self._enter()
            case "composer.newline":
                self.insert("\n")
            case "composer.previous" if self._at_first_row():
                self._recall(self._back + 1)
            case "composer.next" if self._back and self._at_last_row():
                self._recall(self._back - 1)
            case "composer.search":
                self._search()
            case "composer.complete":
                if not self._complete() and not self._offer_example():
                    self.post_message(self.Sought("tab completes a /command or an @file"))
            case "composer.page_up":
                self.post_message(self.Page(-1))
            case "composer.page_down":
                self.post_message(self.Page(1))
            case _:
                return False
        return True

    def on_paste(self, event: events.Paste) -> None:
        """Insert a paste, cleaned; a long one is folded to a word."""
        event.stop()
        event.prevent_default()
        text = self.pastes.fold(clean(event.text.replace("\r\n", "\n").replace("\r", "\n")))
        result = self.replace(text, *self.selection, maintain_selection_offset=False)
        self.move_cursor(result.end_location)

    def action_delete_right(self) -> None:
        """Delete to the right; on an empty line: quit."""
        if self.text:
            super().action_delete_right()
        else:
            self.post_message(self.Leave())

    def action_delete_left(self) -> None:
        """Delete to the left: a folded paste as a whole."""
        row, column = self.cursor_location
        label = self.pastes.ending(self.document.get_line(row)[:column])
        if label is not None and self.selection.is_empty:
            self.delete((row, column - len(label)), (row, column))
        else:
            super().action_delete_left()

    # --- completion ---

    def offers(self) -> tuple[int, list[str]]:
        """(column of the word at the cursor, its completions)."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if row == 0 and before.startswith("/") and " " not in before and before != "//":
            words = sorted(
                f"/{one.slash}" for one in keys.ALL if one.slash.startswith(before[1:]) and one.slash
            )
            return 0, words
        if row == 0 and (model := _MODEL.fullmatch(before)):
            return model.start(1), complete_model(model[1])
        if (begun := find_path(before)) is not None:
            return begun[0], complete_attachment(begun[1])
        return column, []

    def _complete(self) -> bool:
        state = (self.text, self.cursor_location)
        if self._offered is not None and self._offered[0] == state:
            _, start, words, at = self._offered
            chosen = words[at]
        else:
            start, words = self.offers()
            at = -1
            chosen = common_prefix(words)
            row, column = self.cursor_location
            if words and self.document.get_line(row)[start:column] == chosen:
                at, chosen = 0, words[0]
        if not words:
            return False
        if len(words) == 1 and not chosen.endswith("/"):
            chosen += " "
        row, column = self.cursor_location
        self.replace(chosen, (row, start), (row, column))
        self.move_cursor((row, start + len(chosen)))
        self._offered = ((self.text, self.cursor_location), start, words, (at + 1) % len(words))
        return True

    def _offer_example(self) -> bool:
        """Show the next example, if nothing else is written."""
        examples = self.examples()
        if not examples or self.text not in ("", *examples):
            return False
        at = examples.index(self.text) + 1 if self.text else 0
        self.set_text(examples[at % len(examples)])
        return True

    # --- sending, and what was sent ---

    def _enter(self) -> None:
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if before.endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
        elif self.text.strip():
            self.submit()

    def submit(self) -> None:
        """Send the text; it stays if it is not accepted."""
        text = self.text
        if self._send(text):
            self._settle_history()
            self._remember(text, sent=True)
            if not self.give_back():
                self.set_text("")

    def _remember(self, text: str, sent: bool = False) -> None:
        """Add a text to the history."""
        if text.strip() and (not self.sent or self.sent[-1] != text):
            self.sent.append(text)
        self._cleared = [other for other in self._cleared if other != text]
        if text.strip() and not sent:
            self._cleared = [*self._cleared, text][-MAX_CLEARED:]

    def _settle_history(self) -> None:
        """Leave the history; the draft and changed older texts become new entries."""
        left, self._texts = self._texts, {}
        changed = [
            text
            for back, text in left.items()
            if back != self._back and (back == 0 or text != self.sent[-back])
        ]
        self._back = 0
        for text in changed:
            self._remember(text)

    def _take_draft(self) -> str:
        """Leave the history with the draft."""
        self._recall(0)
        self._settle_history()
        return self.text

    # --- no draft is lost ---

    @property
    def unsent(self) -> Unsent:
        """The draft, and what was changed of texts that are shown in its place."""
        draft = self._texts.get(0, self.text) if self._back else self.text
        others = [
            text
            for back, text in (self._texts | {self._back: self.text}).items()
            if 0 < back <= len(self.sent) and text != self.sent[-back]
        ]
        if self._aside is not None:
            others += [draft] if draft != self._lent else []
            draft = self._aside
        others = [*self._cleared, *others]
        return Unsent(draft, tuple(others), self.pastes.within((draft, *others)))

    def restore(self, unsent: Unsent) -> bool:
        """Bring back what was not sent: the draft, if nothing was typed since, the rest as history."""
        renamed = self.pastes.restore(unsent.pastes)
        draft, *others = (_renamed(text, renamed) for text in (unsent.text, *unsent.others))
        free = not self.text and not self.lent and not self._back
        for text in others if free else [*others, draft]:
            self._remember(clean(text))
        if free and draft:
            self.set_text(draft)
        return free and bool(draft)

    def put_away(self) -> None:
        """Empty the composer; what was in it is kept elsewhere."""
        self._aside, self._back, self._texts, self._cleared = None, 0, {}, []
        self.set_text("")

    @property
    def lent(self) -> bool:
        """Whether the composer holds another text than the draft."""
        return self._aside is not None

    def add_to_history(self) -> None:
        """Add the text to the history."""
        draft = self._take_draft()
        if not self.lent or draft != self._lent:
            self._remember(draft)

    def borrow(self, text: str) -> None:
        """Show another text; the draft returns when that is sent or cancelled."""
        if self._aside is None:
            self._aside = self._take_draft()
        else:
            self.add_to_history()
        self.set_text(text)
        self._lent = self.text

    def give_back(self) -> bool:
        """Restore the draft; False if it was not replaced."""
        if self._aside is None:
            return False
        draft, self._aside = self._aside, None
        self.set_text(draft)
        return True

    def _search(self) -> None:
        """Show the newest sent text that contains the draft; repeated: an older one."""
        first = self._sought is None
        wanted = self._sought = self.text if self._sought is None else self._sought
        holding = [back for back in range(1, len(self.sent) + 1) if _holds(self.sent[-back], wanted)]
        older = [back for back in holding if first or back > self._back]
        older = [back for back in older if self.sent[-back] != self.text]
        if older:
            self._recall(older[0])
            self.post_message(self.Sought(f"sent before, {len(older) - 1:,} older · ^r older · esc back"))
        else:
            self.post_message(self.Sought("no older match" if holding else "no match in your messages"))

    def _leave_search(self, key: str) -> bool:
        """End the search: esc restores the draft, any other key keeps the match."""
        searching, self._sought = self._sought is not None, None
        if searching and key == "escape" and self._back:
            self._recall(0)
        return searching and key == "escape"

    def _at_first_row(self) -> bool:
        return (
            self.cursor_at_first_line
            and self.wrapped_document.location_to_offset(self.cursor_location).y == 0
        )

    def _at_last_row(self) -> bool:
        offset = self.wrapped_document.location_to_offset(self.cursor_location)
        return offset.y >= self.wrapped_document.height - 1

    def _recall(self, back: int) -> None:
        if back > len(self.sent):
            return
        self._texts[self._back] = self.text
        self._back = back
        self.set_text(self._texts[back] if back in self._texts else self.sent[-back])


def _renamed(text: str, labels: Mapping[str, str]) -> str:
    for old, new in labels.items():
        text = text.replace(old, new)
    return text


def _holds(text: str, wanted: str) -> bool:
    return wanted.casefold() in text.casefold()
