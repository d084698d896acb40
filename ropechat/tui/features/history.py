"""Stored chats: begin, open, list, rename, import, export."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.errors import explain
from ropechat.errors import RopechatError
from ropechat.settings.spec import GIGABYTE
from ropechat.store.queries import Chat
from ropechat.tui.features.reading import FindFeature
from ropechat.tui.features.turns import TurnsFeature
from ropechat.tui.features.writing import DraftsFeature, WritingFeature
from ropechat.tui.format.status import model_heading
from ropechat.tui.render.find import contains
from ropechat.tui.ui import ChatUi, Feature, command, event, setting
from ropechat.tui.workers import begin
from ropechat.util.paths import expand_home
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from ropechat.store.imports.read import Imported
    from ropechat.tui.screens.chats import Opened

RECALLED = 200  # questions that can be recalled from earlier chats
PROGRESS_INTERVAL_S = 0.2  # seconds between two updates of an import's progress
SHOWN_FAULTS = 3  # of the chats of a file that cannot be read
NOTHING_KEPT = "this chat is not stored (--incognito)"


class HistoryFeature(Feature):
    """The commands for stored chats, and the chat that is opened at the start."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.turns, self.writing, self._find = ui[TurnsFeature], ui[WritingFeature], ui[FindFeature]
        self._drafts, self._spelling = ui[DraftsFeature], ui.vocabularies.spelling
        self._shown = 0  # counts the chats that were wanted on screen
        self._importing = ""  # how far an import is
        self._exports: list[tuple[Chat, str, Path]] = []  # those that are not written

    @setting("kv_disk_gb")
    def _use_kv_disk(self, size: int) -> None:
        self.session.recorder.kv_bytes = size * GIGABYTE

    @command("chat.list", "chat.delete")
    def list_chats(self, words: str = "") -> None:
        """Open the dialog of stored chats. words: searched for at once."""
        from ropechat.tui.screens.chats import ChatsScreen

        store = self.session.recorder.store
        if store is None:
            self.ui.hint(NOTHING_KEPT)
        else:
            recorder, keymap = self.session.recorder, self.keymap
            self.chat.when_idle(
                lambda: self.ui.push(
                    ChatsScreen(store, recorder, self.begin_chat, keymap, words), self._open_found
                )
            )

    @command("chat.new")
    def _new_chat(self) -> None:
        """Begin a new chat; a first press only warns if this one is not stored."""
        self.ui.write()
        key = self.keymap.named("chat.new")
        drops = self.session.turns and self.session.recorder.store is None
        if not drops or self.ui.again("chat.new", f"{key} again drops this chat and begins a new one"):
            self.chat.when_idle(self.begin_chat)

    def begin_chat(self) -> None:
        """Show a new chat; the draft goes along."""
        self._shown += 1
        self.writing.stop_editing()
        self._drafts.carry()
        self.chat.save_kv()
        self.session.clear()
        self.turns.show()
        self.ui.leave_chat()
        begin(self.ui.app, "draft", self._drafts.bring, replaces=True)

    def _open_found(self, found: Opened) -> None:
        self.ui.write()
        begin(self.ui.app, "open", lambda: self._open_chat(found.id, hit=found), replaces=True)

    def open_chat(self, id: str) -> None:
        """Open a stored chat."""
        self.ui.write()
        begin(self.ui.app, "open", lambda: self._open_chat(id), replaces=True)

    async def _open_chat(self, id: str, fixed: Collection[str] = (), hit: Opened | None = None) -> None:
        store = self.session.recorder.store
        if store is None:
            return
        self._shown += 1
        wanted = self._shown
        try:
            chat = await asyncio.wrap_future(store.load(id))
        except RopechatError as error:
            self.turns.notice("error", explain(error))
            return
        if wanted != self._shown:  # another chat was wanted since
            return
        await self._show(chat, fixed)
        for fault in chat.damaged:
            self.turns.notice("error", f"Some of this chat cannot be read: {fault}")
        if hit is not None and hit.words and wanted == self._shown:
            self._go_to(hit)

    def _go_to(self, hit: Opened) -> None:
        """Show the branch and the place of what was searched for."""
        node = self.session.tree.nodes.get(hit.node)
        if node is None:
            return
        if node not in self.session.tree.path():
            self.session.go(node.id)
            self.turns.show()
        words = hit.words.lower()
        self._find.find_text(words if contains(node.text, words) else words.split()[0], node.id)

    @command("chat.rename")
    def _rename(self, title: str) -> str:
        if not title:
            return "/rename TITLE"
        self.session.recorder.rename(title)
        return "renamed"

    @command("chat.import")
    def _import(self, file: str) -> str:
        if not file:
            return "/import FILE: an export of ropechat, ChatGPT or Open WebUI, or logs of llm"
        if self._importing:
            return "another file is being imported"
        self.chat.when_idle(lambda: self.take_in(expand_home(file)))
        return ""

    def take_in(self, file: Path) -> None:
        """Import the chats of a file; the newest is shown unless the user did something else meanwhile."""
        self.ui.hint("")  # the footer shows how far it is
        self._importing = f"importing {one_line(file.name)}: reading"
        begin(self.ui.app, "import", lambda: self._take_in(file))

    async def _take_in(self, file: Path) -> None:
        before = self._standing
        # its thread goes on if the program is left: all is imported before it ends
        work = asyncio.create_task(asyncio.to_thread(self._import_chats, file))
        while not work.done():
            self.ui.refresh()
            await asyncio.wait([work], timeout=PROGRESS_INTERVAL_S)
        self._importing = ""
        self.ui.refresh()
        try:
            found = work.result()
        except RopechatError as error:
            self.turns.notice("error", explain(error))
            return
        here = before == self._standing
        if here:
            newest = max(found.chats, key=lambda chat: chat.tree.path()[-1].created if chat.tree else 0.0)
            await self._show(newest)
        self._tell_imported(found, shown=here)

    def _import_chats(self, file: Path) -> Imported:
        """Read a file and store its chats, on a thread. Raises RopechatError."""
        from ropechat.store.imports.read import read_file

        store, found = self.session.recorder.store, read_file(file)
        if store is not None:
            count = len(found.chats)
            for number, _ in enumerate(found.keep(store), 1):
                self._importing = f"importing {one_line(file.name)}: {number:,} of {count:,} chats"
        return found

    @property
    def _standing(self) -> tuple[object, ...]:
        """What changes when another chat is shown or something is asked."""
        return self._shown, self.session.recorder.id, len(self.session.tree), self.session.generating

    def _tell_imported(self, found: Imported, *, shown: bool) -> None:
        many = len(found.chats) > 1
        if found.source or not shown:
            lists = f"{self.keymap.named('chat.list')} lists {'them' if many else 'it'}"
            where = lists if self.session.recorder.store is not None else "this one is shown"
            self.turns.notice("notice", found.describe() + (f"; {where}" if many or not shown else ""))
        for fault in found.faults[:SHOWN_FAULTS]:
            self.turns.notice("error", one_line(f"Not imported: {fault}"))
        if len(found.faults) > SHOWN_FAULTS:
            self.turns.notice("error", f"Not imported: {len(found.faults) - SHOWN_FAULTS:,} more chats")

    async def _show(self, chat: Chat, given: Collection[str] = ()) -> None:
        self.writing.stop_editing()
        self._drafts.leave()
        self.chat.save_kv()
        self.session.open(chat, given)
        self._lift_foreign_biases()
        self.turns.show()
        self.ui.leave_chat()
        self.tell_other_model()
        await self._drafts.bring()

    def _lift_foreign_biases(self) -> None:
        """Biases name tokens by id, which means nothing to another model."""
        info, nodes = self.session.info, self.session.tree.nodes.values()
        models = {node.model for node in nodes if node.model}
        if self.session.sampling.logit_bias and info is not None and models and info.name not in models:
            self.session.sampling = replace(self.session.sampling, logit_bias=())

    @command("chat.export")
    def _export(self, words: str) -> str:
        from ropechat.chat.export import FORMATS, new_file

        form, _, target = words.partition(" ")
        if form not in FORMATS:
            return f"/export {'|'.join(FORMATS)} [FILE]"
        session = self.session
        chat = Chat(session.recorder.id, session.title, session.tree)
        path = expand_home(target.strip())
        if path.is_dir():
            path = new_file(chat, form, path)
        elif path.exists():
            return f"{path} exists; name another file"
        self._exports.append((chat, form, path))
        begin(self.ui.app, "export", lambda: self._write(chat, form, path))
        return ""

    async def _write(self, chat: Chat, form: str, path: Path) -> None:
        """Write an export. The vocabularies of models that are not loaded are read before, on a thread."""
        if form == "html":
            models = {node.model for node in chat.tree.path() if node.steps}
            await asyncio.to_thread(lambda: [self._spelling(model, 0) for model in models])
        self.write_exports()

    def write_exports(self) -> None:
        """Write the exports that were asked for; also before the end."""
        from ropechat.chat.export import export

        while self._exports:
            chat, form, path = self._exports.pop(0)
            try:
                export(chat, form, path, self._spelling)
            except RopechatError as error:
                self.ui.hint(explain(error))
            else:
                self.ui.hint(f"written: {path}")

    def tell_other_model(self) -> None:
        """Add a notice if another model wrote the answers so far."""
        last, info = self.session.last, self.session.info
        node = self.session.tree.nodes.get(last.node or "") if last is not None else None
        if info is not None and node is not None and node.model and node.model != info.name:
            before, now = model_heading(node.model), model_heading(info.name)
            self.turns.notice("notice", f"The answers so far are by {before}; {now} writes the next.")

    # --- the start ---

    def open_store(self) -> None:
        """Show notices of the store and open the chat given at the start."""
        store = self.session.recorder.store
        if store is not None:
            begin(self.ui.app, "start", self._open_store)
        if store is None or self.ui.resume is None:
            self.ui.opened.set()

    async def _open_store(self) -> None:
        try:
            await self._look_into_store()
        finally:
            self.ui.opened.set()

    async def _look_into_store(self) -> None:
        store = self.session.recorder.store
        assert store is not None
        try:
            newest = await asyncio.wrap_future(store.conversations(1))
            self.writing.recall(await asyncio.wrap_future(store.questions(RECALLED)))
        except RopechatError as error:
            self.turns.notice("error", f"{explain(error)}. This chat is kept in memory only.")
            return
        for notice in store.notices:
            self.turns.notice("notice", notice)
        store.back_up()
        if self.ui.resume is not None and not self._shown:
            wanted = self.ui.resume or (newest[0].id if newest else "")
            if wanted:
                await self._open_chat(wanted, self.ui.options.fixed)
                return
        await self._drafts.bring()

    @event(ev.ModelLoaded)
    def _model_loaded(self, event: ev.ModelLoaded) -> None:
        """Show a chat that was opened before the model was loaded again."""
        if self.ui.resume is not None:
            self.turns.show()
            self.tell_other_model()

    def standing_hint(self) -> str:
        """Why something is not on disk, or how far an import is; "" if all is done."""
        recorder = self.session.recorder
        fault = recorder.store.trouble_of(recorder.id) if recorder.store is not None else None
        return f"not on disk: {fault}" if fault else self._importing
