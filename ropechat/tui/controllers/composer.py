"""The draft: sending, editing, counting, completing, recalling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from ropechat.chat import events as ev
from ropechat.chat.draft import (
    AttachError,
    attach,
    read_attachments,
    split_attachments,
    to_draft,
    unescape,
)
from ropechat.conversation import Origin, Role
from ropechat.tui.commands import registry as keys
from ropechat.tui.terminal import gc_pause
from ropechat.util.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.timer import Timer
    from textual.widgets import Static

    from ropechat.chat.answer import Turn
    from ropechat.chat.live import LiveChat
    from ropechat.conversation import Node
    from ropechat.tui.controllers.transcript import TranscriptController
    from ropechat.tui.controllers.view import View
    from ropechat.tui.widgets.composer import Composer

COUNT_DELAY = 0.25  # seconds without typing before the draft is counted
OFFERS = ((30, 12), (14, 6), (0, 1))  # (rows of the screen, completions shown)
SLASHED = max(len(f"/{one.slash}") for one in keys.ALL)  # cells of the longest typed command


class ComposerController:
    """Sends the draft. command: runs a typed command; False keeps its line in the composer.

    sent_as: the node of the newest question, and the text that was typed for it.
    """

    def __init__(
        self,
        chat: LiveChat,
        view: View,
        path: TranscriptController,
        composer: Composer,
        completions: Static,
        command: Callable[[str], bool],
    ) -> None:
        self.chat, self.view, self.session, self.keymap = chat, view, chat.session, view.keymap
        self.path, self.composer, self.completions = path, composer, completions
        self.sent_as = ("", "")
        self._command = command
        path.on_show = self.count
        composer.examples = lambda: path.examples
        self._editing: Node | None = None  # the message being edited
        self._counter: Timer | None = None

    # --- sending ---

    def send(self, typed: str) -> bool:
        """Send a question, or hint why not; a line that begins with one "/" is a command."""
        if typed.startswith("/") and not typed.startswith("//") and self._editing is None:
            known = self._command(typed[1:])
            self.view.refresh_status()
            return known
        text = typed.removeprefix("/") if typed.startswith("//") else typed
        if self.session.load_error is not None:
            self.view.hint(f"no model is loaded; {self.keymap.named('model.pick')} chooses one")
        elif self.session.generating:
            self.view.hint(f"still writing: {self.keymap.shown('chat.stop')} stops it, then ⏎ sends")
        elif (whole := self.expand(text)) is not None:
            turn = self._edited(whole)
            if turn is None:
                turn = self.session.ask(whole)
                self.path.add_turn(turn)
                self.path.write(turn)
            else:
                self.path.show(turn)
            if turn.question == whole:
                self.sent_as = turn.asked, typed
            return True
        return False

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
                self.view.hint(str(error))
            return None
        return attach(unfold(unescape(text)), files)

    def recall(self, questions: list[str]) -> None:
        """Add the questions of earlier chats to the history."""
        self.composer.sent[:0] = [clean(to_draft(question)) for question in questions]

    def clear_draft(self) -> None:
        """Empty the composer, keeping its text in the history; or cancel an edit."""
        if not self.stop_editing():
            self.composer.keep()
            self.composer.set_text("")
        self.view.hint(f"cleared: {self.keymap.first('composer.previous')} brings it back")

    def take_example(self, text: str) -> None:
        """Put a text into the composer, to be sent or changed; a draft returns afterwards."""
        if text and self.composer.text in ("", *self.path.examples):
            self.composer.set_text(text)
        elif text:
            self.composer.borrow(text)
        self.view.write()

    def begin_line(self, text: str) -> None:
        """Put the beginning of a command into the composer; the draft returns afterwards."""
        self.composer.borrow(text)
        self.view.write()

    # --- counting and completing ---

    def count_soon(self) -> None:
        """Count the draft after a pause in typing."""
        if self._counter is not None:
            self._counter.stop()
        self._counter = self.view.app.set_timer(COUNT_DELAY, self.count)

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
            self.view.refresh_status()
            return
        self.chat.submit(session.count(draft))

    def offer(self) -> None:
        """Show the completions above the composer."""
        _, words = self.composer.offers()
        most = next(count for height, count in OFFERS if self.view.app.size.height >= height)
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
        self.view.write()
        self.view.hint("")  # the footer says that this is an edit

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
            self.composer.keep()
        return self.composer.give_back()

    def leave_edit(self) -> bool:
        """Cancel an edit from the composer; returns whether there was one."""
        if self.view.chat_focus is not self.composer or not self.stop_editing():
            return False
        self.view.refresh_status()
        return True

    def standing_hint(self) -> str:
        """The footer's text while a message is edited."""
        if self._editing is None:
            return ""
        what = "question" if self._editing.role is Role.USER else "answer"
        return f"editing: ⏎ saves a new version of this {what}, esc cancels"
