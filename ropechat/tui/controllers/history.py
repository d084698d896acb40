"""What the chat does with what is kept: open and list chats, and say when something is not on disk."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.chat.draft import to_draft
from ropechat.chat.errors import explain
from ropechat.errors import RopechatError
from ropechat.store.queries import Chat
from ropechat.tui.controllers.several import Several
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from ropechat.chat import events as ev
    from ropechat.tui.commands.dispatch import Typed

FORMATS = ("md", "json", "html")
RECALLED = 200  # questions that can be recalled from earlier chats
NOTHING_KEPT = "nothing is kept in this chat (--incognito)"


class Keeping(Several):
    """The commands over kept chats. resume: the chat to open at the start; "" for the newest.

    sent_as: the newest question that was sent, by its node, and what was typed for it.
    """

    resume: str | None = None
    sent_as: tuple[str, str] = ("", "")

    def recall(self, questions: list[str]) -> None:
        """What was asked before this start, the newest last."""

    def action_chats(self, words: str = "") -> None:
        """The kept chats; words: those that are looked for."""
        from ropechat.tui.screens.chats import ChatsScreen

        store = self.session.recorder.store
        if store is None:
            self._say_hint(NOTHING_KEPT)
        else:
            self.when_idle(
                lambda: self._push(
                    ChatsScreen(store, self.session.recorder, self.keymap, words), self.open_chat
                )
            )

    def begin_chat(self) -> None:
        """Show a new chat."""
        self.stop_editing()
        self.session.clear()
        self.show_path()

    def open_chat(self, id: str) -> None:
        """Show a kept chat; "" begins a new one."""
        self.action_write()
        self.run_worker(partial(self._open_chat, id), exclusive=True)  # type: ignore[arg-type]

    async def _open_chat(self, id: str) -> None:
        store = self.session.recorder.store
        if store is None:
            return
        if not id:
            self.begin_chat()
            return
        try:
            chat = await asyncio.wrap_future(store.load(id))
        except RopechatError as error:
            self._notice("error", explain(error))
            return
        self.stop_editing()
        self.session.open(chat)
        self.show_path()
        self.tell_other_model()
        for fault in chat.damaged:
            self._notice("error", f"Not all could be read: {fault}")

    def take_in(self, file: Path) -> None:
        """Keep and show a chat of a JSON file."""
        self.run_worker(self._take_in(file), exclusive=True)

    async def _take_in(self, file: Path) -> None:
        from ropechat.store.import_export import read_json

        store = self.session.recorder.store
        try:
            chat = await asyncio.to_thread(read_json, file)
            if store is not None:
                await asyncio.wrap_future(store.insert(chat))
        except RopechatError as error:
            self._notice("error", explain(error))
            return
        self.stop_editing()
        self.session.open(chat)
        self.show_path()
        self.tell_other_model()

    def tell_other_model(self) -> None:
        """Say that the chat was written with another model than the one that answers now."""
        last, info = self.session.last, self.session.info
        node = self.session.tree.nodes.get(last.node or "") if last is not None else None
        if info is not None and node is not None and node.model and node.model != info.name:
            now = one_line(info.name)
            self._notice(
                "notice", f"The answers so far are by {one_line(node.model)}; {now} writes the next."
            )

    def open_store(self) -> None:
        """Say what the store has to say, and open the chat that was asked for."""
        store = self.session.recorder.store
        if store is not None:
            self.run_worker(self._open_store, exclusive=True)  # type: ignore[arg-type]
        if store is None or self.resume is None:
            self.keys_wanted.set()

    async def _open_store(self) -> None:
        try:
            await self._look_into_store()
        finally:
            self.keys_wanted.set()

    async def _look_into_store(self) -> None:
        store = self.session.recorder.store
        assert store is not None
        try:
            newest = await asyncio.wrap_future(store.conversations(1))
            self.recall(await asyncio.wrap_future(store.questions(RECALLED)))
        except RopechatError as error:
            self._notice("error", f"{explain(error)}. This chat is kept in memory only.")
            return
        for notice in store.notices:
            self._notice("notice", notice)
        store.back_up()
        if self.resume is not None:
            wanted = self.resume or (newest[0].id if newest else "")
            if wanted:
                await self._open_chat(wanted)

    def slash(self, line: str) -> bool:
        """Do a typed command; False keeps the line in the composer."""
        from ropechat.tui.commands import dispatch

        done, hint = dispatch.run(line, self.typed(), lambda action: self.call_later(self.run_action, action))
        self._redraw()
        if hint:
            self._say_hint(hint)
        return done

    def typed(self) -> dict[str, Typed]:
        """Also over kept chats."""
        return {
            **super().typed(),
            "chat.rename": self._rename,
            "chat.export": self._export,
            "chat.import": self._import,
            "chat.list": self._open,
        }

    def _rename(self, title: str) -> str:
        if not title:
            return "/rename TITLE"
        self.session.recorder.rename(title)
        return "renamed"

    def _import(self, file: str) -> str:
        if not file:
            return "/import FILE: a chat that was exported as json"
        self.when_idle(lambda: self.take_in(Path(file).expanduser()))
        return ""

    def _open(self, words: str) -> str:
        self.action_chats(words)
        return ""

    def _export(self, words: str) -> str:
        from ropechat.store.import_export import export

        form, _, target = words.partition(" ")
        if form not in FORMATS:
            return "/export md|json|html [FILE]"
        session = self.session
        chat = Chat(session.recorder.id, session.title, session.tree)
        path = Path(target.strip() or f"chat-{chat.id}.{form}").expanduser()
        if path.exists():
            return f"{path} exists; name another file"
        try:
            export(chat, form, path)
        except RopechatError as error:
            return explain(error)
        return f"written: {path}"

    def standing_hint(self) -> str:
        """Also why something that was said is not on disk."""
        store = self.session.recorder.store
        fault = store.trouble if store is not None else None
        return super().standing_hint() or (f"not on disk: {fault}" if fault else "")

    def show_resumed(self) -> None:
        """The model is known now: show a chat that was opened before as it uses it."""
        if self.resume is not None:
            self.show_path()
            self.tell_other_model()

    def refuse(self, event: ev.TooLong) -> None:
        """Take back a question (or an answer's beginning) that leaves no room for an answer."""
        turn = self.session.withdraw()
        self.show_path()
        if not self.composer.text and turn.asked not in self.session.tree.nodes:
            node, typed = self.sent_as
            self.composer.set_text(typed if node == turn.asked else to_draft(turn.question))
        prefix = turn.request is not None and turn.request.prefix is not None
        self._notice("error", self._too_long(event, "answer" if prefix else "question"))

    def _too_long(self, event: ev.TooLong, what: str) -> str:
        """Why a question was not sent (or an answer not begun), and what helps."""
        numbers = f"{event.tokens:,} tokens do not fit in the context of {event.context:,}"
        shorten = "shorten the text, " if what == "question" else ""
        if event.slides:
            begin = f"begin a new chat with {self.keymap.named('chat.new')}"
            ways = f"{shorten}or {begin}" if shorten else "`/context slide` leaves out the oldest questions"
            return f"Not sent: {numbers}. {ways[0].upper()}{ways[1:]}."
        alone = "The question alone is too long" if shorten else "The question and this answer are too long"
        info = self.session.info
        most = int(info.facts.get("max_position_embeddings") or 0) if info is not None else 0
        more = f"set a larger --context (up to {most:,}), " if most > event.tokens else ""
        ways = f"{shorten}{more}or load a model with a larger context ({self.keymap.shown('model.pick')})"
        return f"Not sent: {numbers}. {alone}: {ways.removeprefix('or ')}."
