"""The kept chats: open, search, rename, delete."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from ropechat.chat.errors import explain
from ropechat.errors import RopechatError
from ropechat.tui.format.lists import chat_line, format_time
from ropechat.tui.render.width import cells, fit
from ropechat.tui.screens.dialog import ChoiceList, Dialog, bindings
from ropechat.tui.widgets.input import SanitizedInput
from ropechat.tui.workers import begin
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.chat.recorder import ConversationRecorder
    from ropechat.store.queries import Summary
    from ropechat.store.store import Store
    from ropechat.tui.commands.keymap import Keymap

LIMIT = 500


def mark_words(text: str, words: list[str]) -> list[tuple[str, str]]:
    """A text with the words in it that were looked for."""
    if not words:
        return [(text, "$quiet")]
    pieces = re.split("(" + "|".join(map(re.escape, words)) + ")", text, flags=re.IGNORECASE)
    return [
        (piece, "$foreground underline" if number % 2 else "$quiet") for number, piece in enumerate(pieces)
    ]


class ChatsScreen(Dialog["str | None"]):
    """A field to search in and the chats, newest first; the result is the id of the one to open.

    It is "" when the chat that was open was deleted.
    """

    BINDINGS = bindings("chats", "chat.list")
    context = "chats"
    heading = "chats"
    items = (("⏎", "open"), ("type", "to search"), "chats.rename", "chats.delete", "sheet.leave")

    def __init__(self, store: Store, recorder: ConversationRecorder, keymap: Keymap, words: str = "") -> None:
        super().__init__(keymap)
        self._words = words
        self._store, self._recorder = store, recorder
        self._found: list[Summary] = []
        self._renaming: str | None = None
        self._closed_current = False

    def compose(self) -> ComposeResult:
        with Vertical(id="chats", classes="sheet"):
            yield SanitizedInput(self._words, placeholder="Search chats", id="query")
            yield ChoiceList(id="found", markup=False)
            yield self.key_hints

    def on_mount(self) -> None:
        self.query_one("#found").can_focus = False
        self._look_up()

    def _look_up(self) -> None:
        begin(self, "list", self._load, replaces=True)

    async def _load(self) -> None:
        query = "" if self._renaming else self._query
        try:
            self._found = await asyncio.wrap_future(self._store.search(query, LIMIT))
        except RopechatError as error:
            self.say(explain(error), "$error")
            return
        self._list()

    def _list(self) -> None:
        rows = [Option(self._line(summary), id=summary.id) for summary in self._found]
        self.list_options(rows, 0 if rows else None)
        count = f"{len(self._found):,}{'+' * (len(self._found) == LIMIT)}"
        searched = self._query and not self._renaming
        self.title_with(f"{count} with “{self._query}”" if searched else count)

    @property
    def _query(self) -> str:
        return self.query_one(Input).value.strip()

    def on_resize(self) -> None:
        self._list()

    def _line(self, summary: Summary) -> Content:
        facts = f"  {summary.nodes:4,} messages  {format_time(summary.changed):>10}"
        room = min(100, self.app.size.width) - 7 - cells(facts)
        parts = chat_line(summary, self._recorder.id, facts, room)
        if summary.snippet:
            piece = fit(one_line(summary.snippet), room + cells(facts) - 2)
            parts += [("\n    ", ""), *mark_words(piece, self._query.split())]
        return Content.assemble(*parts)

    def _chosen(self) -> Summary | None:
        index = self.query_one(OptionList).highlighted
        return None if index is None or index >= len(self._found) else self._found[index]

    def on_input_changed(self, _: Input.Changed) -> None:
        if self._renaming is None:
            self._look_up()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Open the chosen chat, or rename it."""
        event.stop()
        chosen = self._chosen()
        if self._renaming is not None:
            self._rename(event.value)
        elif chosen is not None:
            self.dismiss(chosen.id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def action_move(self, by: int) -> None:
        """Up and down, while the field keeps the keyboard."""
        options = self.query_one(OptionList)
        self._sure = ""
        if self._found:
            options.highlighted = ((options.highlighted or 0) + by) % len(self._found)

    def action_leave(self) -> None:
        """Close, or end renaming."""
        if self._renaming is not None:
            self._end_renaming()
        else:
            self.dismiss("" if self._closed_current else None)

    def action_rename(self) -> None:
        """Let the field take a new title."""
        chosen = self._chosen()
        if chosen is not None:
            self._renaming = chosen.id
            field = self.query_one(Input)
            field.value = one_line(chosen.title)
            field.cursor_position = len(field.value)
            self.say("⏎ saves this title, esc keeps the old one")

    def _rename(self, title: str) -> None:
        if self._renaming is not None and title.strip():
            if self._renaming == self._recorder.id:
                self._recorder.rename(title)
            else:
                self._store.rename(self._renaming, title)
        self._end_renaming()

    def _end_renaming(self) -> None:
        self._renaming = None
        self.say("")
        self.query_one(Input).value = ""
        self._look_up()

    def action_delete(self) -> None:
        """Delete the chat when pressed twice."""
        chosen = self._chosen()
        if chosen is None or chosen.running:
            self.say("an answer is being written in this chat" if chosen else "")
        elif self.is_sure(chosen.id, f"the same key again deletes “{chosen.title:.40}” for good"):
            begin(self, "delete", lambda: self._delete(chosen))

    async def _delete(self, chosen: Summary) -> None:
        try:
            gone = await asyncio.wrap_future(self._store.delete(chosen.id))
        except RopechatError as error:
            self.say(explain(error), "$error")
            return
        self._closed_current = self._closed_current or chosen.id == self._recorder.id
        self.say(
            "deleted" if gone else "deleted; traces remain until no other ropechat has the file open",
            "$quiet",
        )
        await self._load()
