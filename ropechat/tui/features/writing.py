"""The draft: sending, editing, counting, completing; its storing; and when it does not fit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual.content import Content

from ropechat.chat import events as ev
from ropechat.chat.draft import (
    AttachError,
    Unsent,
    attach,
    read_attachments,
    split_attachments,
    to_draft,
    unescape,
)
from ropechat.conversation import Origin, Role
from ropechat.errors import RopechatError
from ropechat.tui.commands import registry as keys
from ropechat.tui.features.turns import TurnsFeature
from ropechat.tui.terminal import gc_pause
from ropechat.tui.ui import ChatUi, Feature, event, setting
from ropechat.util.text import clean, closest_name

if TYPE_CHECKING:
    from textual.timer import Timer

    from ropechat.chat.answer import Turn
    from ropechat.conversation import Node

COUNT_DELAY = 0.25  # seconds without typing before the draft is counted
OFFERS = ((30, 12), (14, 6), (0, 1))  # (rows of the screen, completions shown)
SLASHED = max(len(f"/{one.slash}") for one in keys.ALL)  # cells of the longest typed command
INTERVAL_S, LONG_INTERVAL_S = 0.3, 3.0  # seconds from a change until it is stored
LONG = 100_000  # characters of a draft that is stored less often


class WritingFeature(Feature):
    """The draft in the composer. sent_as: the node of the newest question, and the text typed for it."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.turns, self.completions = ui[TurnsFeature], ui.completions
        self.turns.on_show = self.count
        self.composer.examples = lambda: self.turns.examples
        self.sent_as = ("", "")
        self._editing: Node | None = None  # the message being edited
        self._queued = ""  # the text of the composer that is sent when the answer ends
        self._counter: Timer | None = None

    # --- sending ---

    def send(self, typed: str) -> bool:
        """Send a question, or hint why not; a line that begins with one "/" is a command."""
        if typed.startswith("/") and not typed.startswith("//") and self._editing is None:
            known = self.run_line(typed[1:])
            self.ui.refresh()
            return known
        text = typed.removeprefix("/") if typed.startswith("//") else typed
        if self.session.load_error is not None:
            self.ui.hint(f"no model is loaded; {self.keymap.named('model.pick')} chooses one")
        elif self.session.generating:
            self._queued = "" if self._queued == typed else typed
            self.ui.hint("")
        elif (whole := self.expand(text)) is not None:
            turn = self._edited(whole)
            if turn is None:
                turn = self.session.ask(whole)
                self.turns.add_turn(turn)
                self.turns.follow_answer()
                self.chat.request(turn)
            else:
                self.chat.request(turn)
                self.turns.show(turn)
            if turn.question == whole:
                self.sent_as = turn.asked, typed
            return True
        return False

    def run_line(self, line: str) -> bool:
        """Run a typed command, without its slash; False if its name is unknown."""
        name, _, words = line.strip().partition(" ")
        words = words.strip()
        command = keys.by_slash(name)
        if command is None:
            meant = keys.SYNONYMS.get(name) or closest_name(name, keys.names())
            known = f"did you mean /{meant}?" if meant else "F1 lists the commands"
            self.ui.hint(f"/{name:.20}: unknown command; {known}  (// sends text that begins with a slash)")
            return False
        if words or command.needs_words:
            self.ui.run(command.id, words)
        else:  # after the composer is emptied, since the command may fill it
            self.ui.app.call_later(self.ui.run, command.id)
        return True

    def expand(self, text: str, *, quiet: bool = False) -> str | None:
        """The text with attached files and unfolded pastes; None, with a hint, if a file cannot be read.

        quiet: no hint, and files that did not change are not read again.

        An edited question keeps its files; in an answer, @path is plain text.
        """
        unfold = self.composer.pastes.unfold
        if self._editing is not None and self._editing.role is Role.ASSISTANT:
            return unfold(text)
        try:
            known = split_attachments(self._editing.text)[1] if self._editing is not None else {}
            files = read_attachments(text, known, cached=quiet)
        except AttachError as error:
            if not quiet:
                self.ui.hint(str(error))
            return None
        return attach(unfold(unescape(text)), files)

    def recall(self, questions: list[str]) -> None:
        """Add the questions of earlier chats to the history."""
        self.composer.sent[:0] = [clean(to_draft(question)) for question in questions]

    def clear_draft(self) -> None:
        """Empty the composer, keeping its text in the history; or cancel an edit."""
        if not self.stop_editing():
            self.composer.add_to_history()
            self.composer.set_text("")
        self.ui.hint(f"cleared: {self.keymap.first('composer.previous')} brings it back")

    def take_example(self, text: str) -> None:
        """Put a text into the composer, to be sent or changed; a draft returns afterwards."""
        if text and self.composer.text in ("", *self.turns.examples):
            self.composer.set_text(text)
        elif text:
            self.composer.borrow(text)
        self.ui.write()

    def begin_line(self, text: str) -> None:
        """Put the beginning of a command into the composer; the draft returns afterwards."""
        self.composer.borrow(text)
        self.ui.write()

    # --- counting and completing ---

    @event(ev.ModelLoaded)
    def _model_loaded(self, event: ev.ModelLoaded) -> None:
        self.count()

    @event(ev.Finished, ev.Failed)
    def _ended(self, event: ev.Finished | ev.Failed) -> None:
        self.count_soon()
        if self.chat.waits:  # the question is sent after the answer that begins now
            return
        queued, self._queued = self._queued, ""
        if not queued or self.composer.text != queued:
            return
        if isinstance(event, ev.Finished) and event.reason != "cancelled":
            self.ui.app.call_later(self.composer.submit)
        else:
            self.ui.hint("not sent, because the answer before it was not finished: ⏎ sends it")

    @setting("read_ahead")
    def _read_ahead(self, reads: bool) -> None:
        self.chat.reads_ahead = reads

    def count_soon(self) -> None:
        """Count the draft after a pause in typing."""
        if self._counter is not None:
            self._counter.stop()
        self._counter = self.ui.app.set_timer(COUNT_DELAY, self.count)

    def count(self) -> None:
        """Count the tokens of the prompt that ends with the draft."""
        session = self.session
        if not session.generating:
            gc_pause.rest()
        draft = self.expand(self.composer.text, quiet=True) or self.composer.text
        if session.info is None or session.generating:
            return
        self.chat.read_ahead(draft)
        if not session.turns and not draft.strip():
            session.draft_tokens = None
            self.ui.refresh()
            return
        self.chat.submit(session.count(draft))

    def offer(self) -> None:
        """Show the completions above the composer."""
        _, words = self.composer.offers()
        most = next(count for height, count in OFFERS if self.ui.app.size.height >= height)
        rows = [self._described(word) for word in words[:most]]
        if len(words) > most:
            rows.append(Content.styled(f"  and {len(words) - most:,} more", "$quiet"))
        self.completions.display = bool(rows)
        self.completions.update(Content("\n").join(rows))

    def _described(self, word: str) -> Content:
        command = keys.by_slash(word[1:]) if word.startswith("/") else None
        name = Content.styled(f"  {word:<{SLASHED}}  ", "$primary")
        if command is None:
            return name
        return Content.assemble(name, (f"{command.arguments}  {command.help}".strip(), "$quiet"))

    # --- editing what was said ---

    def edit(self, node: Node) -> None:
        """Edit a question or an answer; the result is a new version."""
        self._editing = node
        self.composer.borrow(to_draft(node.text) if node.role is Role.USER else node.text)
        self.ui.write()
        self.ui.hint("")  # the footer says that this is an edit

    def _edited(self, text: str) -> Turn | None:
        """End the edit and return its turn; None if nothing was being edited."""
        node, self._editing = self._editing, None
        if node is None or node.id not in self.session.tree.nodes:
            return None
        if node.role is Role.USER:
            return self.session.rewrite(node.id, text)
        prefix = ev.AssistantPrefix(tuple(node.steps), written=text)
        return self.session.answer(node.parent or "", prefix, Origin(node.id, 0, "edit"))

    def stop_editing(self) -> bool:
        """Cancel an edit and restore the draft; a changed text goes to the history. False without one."""
        self._editing = None
        if self.composer.lent:
            self.composer.add_to_history()
        return self.composer.give_back()

    def leave_edit(self) -> bool:
        """Cancel an edit from the composer; returns whether there was one."""
        if self.ui.chat_focus is not self.composer or not self.stop_editing():
            return False
        self.ui.refresh()
        return True

    def standing_hint(self) -> str:
        """The footer's text while a message is edited, or waits for the end of an answer."""
        if self._queued and self._queued == self.composer.text and self.session.generating:
            return "queued: sent when the answer ends; ⏎ takes it back, a change too"
        if self._editing is None:
            return ""
        what = "question" if self._editing.role is Role.USER else "answer"
        return f"editing: ⏎ saves a new version of this {what}, esc cancels"


class DraftsFeature(Feature):
    """Stores the composer's text a moment after a change, and restores that of another chat."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self._recorder = self.session.recorder
        self._timer: Timer | None = None
        self._kept: tuple[str, str] | None = None  # chat and data as stored

    def changed(self) -> None:
        """Store the text soon; typing does not delay it."""
        if self._timer is None and self._recorder.store is not None:
            long = len(self.composer.text) > LONG
            self._timer = self.ui.app.set_timer(LONG_INTERVAL_S if long else INTERVAL_S, self.keep)

    def keep(self) -> None:
        """Store the text now."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        store, place = self._recorder.store, self._place
        data = self.composer.unsent.to_json()
        if store is not None and self._kept != (place, data):
            store.keep_draft(place, data)
            self._kept = (place, data)

    @property
    def _place(self) -> str:
        return self._recorder.id if self._recorder.stored else ""

    def leave(self) -> None:
        """Before another chat is shown: the text stays with this one."""
        if self._recorder.store is not None:
            self.keep()
            self.composer.put_away()

    def carry(self) -> None:
        """Before a new chat: the text moves to it."""
        store, place = self._recorder.store, self._place
        if store is not None and place and self.composer.text:
            store.keep_draft(place, "")
            self._kept = None

    async def bring(self) -> None:
        """Restore the unsent text of the current chat."""
        store, place = self._recorder.store, self._place
        if store is None:
            return
        try:
            data = await asyncio.wrap_future(store.draft(place))
        except RopechatError:
            return  # the store reports the reason itself
        if place == self._place and self.composer.restore(Unsent.of_json(data)):
            self.ui.hint("your unsent text is back")
