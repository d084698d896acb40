"""The kept chats: open, search, rename, delete."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from ropechat.chat.errors import explain
from ropechat.errors import RopechatError
from ropechat.tui.format.lists import chat_line, format_time
from ropechat.tui.screens.dialog import ChoiceList, Dialog, bindings
from ropechat.tui.widgets.input import SanitizedInput
from ropechat.tui.workers import begin
from ropechat.util.text import one_line
from ropechat.util.width import cell_width, fit

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from textual.app import ComposeResult

    from ropechat.chat.recorder import ConversationRecorder
    from ropechat.store.queries import Chat, Summary
    from ropechat.store.store import Store
    from ropechat.tui.commands.keymap import Keymap

LIMIT = 500
UNDO_S = 10.0  # seconds in which a deletion can be undone


def mark_words(text: str, words: list[str]) -> list[tuple[str, str]]:
    """A text with the words in it that were looked for."""
    if not words:
        return [(text, "$quiet")]
    pieces = re.split("(" + "|".join(map(re.escape, words)) + ")", text, flags=re.IGNORECASE)
    return [
        (piece, "$foreground underline" if number % 2 else "$quiet") for number, piece in enumerate(pieces)
    ]


class Opened(NamedTuple):
    """A chat to open. node, words: of a search, the message that was found and what was wanted, or ""."""

    id: str
    node: str
    words: str


class ChatsScreen(Dialog["Opened | None"]):
    """A field to search in and the chats, newest first; the result is the one to open.

    leave_chat: begins a new chat behind the dialog, before the one that was open is deleted.
    """

    BINDINGS = bindings("chats", "chat.list")
    context = "chats"
    heading = "chats"
    items = (("⏎", "open"), ("type", "to search"), "chats.rename", "chats.delete", "sheet.leave")

    def __init__(
        self,
        store: Store,
        recorder: ConversationRecorder,
        leave_chat: Callable[[], None],
        keymap: Keymap,
        words: str = "",
    ) -> None:
        super().__init__(keymap)
        self._words, self._leave_chat = words, leave_chat
        self._store, self._recorder = store, recorder
        self._found: list[Summary] = []
        self._renaming: str | None = None
        self._deleted: tuple[Chat, str] | None = None  # and its draft; for some seconds they can come back

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
        room = min(100, self.app.size.width) - 7 - cell_width(facts)
        parts = chat_line(summary, self._recorder.id, facts, room)
        if summary.snippet:
            piece = fit(one_line(summary.snippet), room + cell_width(facts) - 2)
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
            self._open(chosen)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._open(next(one for one in self._found if one.id == event.option_id))

    def _open(self, chosen: Summary) -> None:
        self.dismiss(Opened(chosen.id, chosen.node, self._query if chosen.node else ""))

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
            self.dismiss(None)

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
            if chosen.id == self._recorder.id:
                self._leave_chat()
            store = self._store  # both at once: the dialog may be left before the first is done
            kept, draft = store.load(chosen.id), store.draft(chosen.id)
            gone = store.delete(chosen.id)
            begin(self, "delete", lambda: self._wait_until_deleted(kept, draft, gone))

    async def _wait_until_deleted(self, kept: Future[Chat], draft: Future[str], gone: Future[bool]) -> None:
        try:
            clean = await asyncio.wrap_future(gone)
            self._deleted = deleted = await asyncio.wrap_future(kept), await asyncio.wrap_future(draft)
        except RopechatError as error:
            self.say(explain(error), "$error")
            return
        undo = f"deleted; {self.keymap.named('chats.undo')} brings it back"
        self.say(
            undo if clean else f"{undo}; traces remain until no other ropechat has the file open", "$quiet"
        )
        self.set_timer(UNDO_S, lambda: self._forget(deleted))
        await self._load()

    def _forget(self, deleted: tuple[Chat, str]) -> None:
        """Drop a deleted chat, which only this program still has."""
        if self._deleted is deleted:
            self._deleted = None
            self.say("")

    def action_undo(self) -> None:
        """Store the chat again that was deleted last."""
        deleted, self._deleted = self._deleted, None
        if deleted is None:
            self.say(f"a deleted chat can be brought back for {UNDO_S:.0f} s")
        else:
            chat, draft = deleted
            self._store.insert(chat)
            self._store.keep_draft(chat.id, draft)
            self.say("")
            self._look_up()
