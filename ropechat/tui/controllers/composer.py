"""What the chat does around the composer: send, complete, attach, editor, copy, mouse, help, palette."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.content import Content
from textual.widgets import Static

from ropechat.chat.context import OverflowPolicy
from ropechat.chat.draft import AttachError, read_attachments, split_attachments, to_draft, unescape
from ropechat.conversation import Role
from ropechat.store.queries import Chat
from ropechat.tui.commands import registry as keys
from ropechat.tui.controllers.history import Keeping
from ropechat.tui.terminal import editor
from ropechat.tui.terminal import gc_pause as garbage
from ropechat.tui.terminal.clipboard import osc52_sequence
from ropechat.util.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.screen import Screen
    from textual.timer import Timer
    from textual.widgets import TextArea

    from ropechat.tui.commands.dispatch import Typed
    from ropechat.tui.options import ChatOptions
    from ropechat.tui.widgets.composer import Composer

COUNT_DELAY = 0.25  # seconds without typing before the draft is counted
OFFERS = ((30, 12), (14, 6), (0, 1))  # on screens of so many rows: completions that are shown
_MODES = ("1000", "1003", "1015", "1006")  # of the mouse: xterm's clicks, moves, and how they are written
_FENCE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n(.*?)(?:^\1|\Z)", re.MULTILINE | re.DOTALL)


class Composing(Keeping):
    """The commands around the composer. look: what the user chose."""

    look: ChatOptions
    _counter: Timer | None = None
    _mouse = True

    def __init__(self) -> None:
        super().__init__()
        self.completions = Static("", id="completions", markup=False)

    def apply_look(self) -> None:
        """Do as the user chose."""
        self.set_keymap(self.keymap.changes)
        self.transcript.set_tint(self.look.tint)
        self.follows = self.look.follow
        self.session.when_full = OverflowPolicy(self.look.when_full)
        if not self.look.mouse:
            self.call_after_refresh(self.action_mouse)

    # --- sending ---

    def _send(self, typed: str) -> bool:
        """Send a question, or say why not; a line that begins with one "/" is a command."""
        if typed.startswith("/") and not typed.startswith("//") and self._editing is None:
            return self.slash(typed[1:])
        text = typed.removeprefix("/") if typed.startswith("//") else typed
        if self.session.load_error is not None:
            self._say_hint(f"no model is loaded; {self.keymap.named('model.pick')} chooses one")
        elif self.session.generating:
            self._say_hint(f"still writing: {self.keymap.shown('chat.stop')} stops it, then ⏎ sends")
        elif (whole := self._expanded(text)) is not None:
            turn = self.edited(whole)
            if turn is None:
                turn = self.session.ask(whole)
                self.add_turn(turn)
                self.write(turn)
            else:
                self.show_path(turn)
            if turn.question == whole:
                self.sent_as = turn.asked, typed
            return True
        return False

    def _expanded(self, text: str, *, quiet: bool = False) -> str | None:
        """The text with files and pastes in their places; None, and a hint, where a file cannot be read.

        An edited question keeps the files that it was sent with; in an answer, @path is a word.
        """
        unfold = self.composer.pastes.unfold
        if self._editing is not None and self._editing.role is Role.ASSISTANT:
            return unfold(text)
        try:
            behind = read_attachments(
                text, split_attachments(self._editing.text)[1] if self._editing is not None else {}
            )
        except AttachError as error:
            if not quiet:
                self._say_hint(str(error))
            return None
        return unfold(unescape(text)) + behind

    # --- what the composer reports ---

    async def on_composer_leave(self) -> None:
        """ctrl+d on an empty line."""
        await self.action_quit()

    def on_composer_page(self, message: Composer.Page) -> None:
        """Scroll the transcript without leaving the composer."""
        if message.direction < 0:
            self.transcript.action_page_up()
        else:
            self.transcript.action_page_down()

    def on_composer_sought(self, message: Composer.Sought) -> None:
        """ctrl+r, or tab: say how it goes on."""
        self._say_hint(message.words)

    def on_text_area_changed(self, _: TextArea.Changed) -> None:
        """Offer completions; count the draft once the typing rests."""
        self._offer()
        self.count_soon()

    def count_soon(self) -> None:
        """Count the draft once nothing has happened for a moment."""
        if self._counter is not None:
            self._counter.stop()
        self._counter = self.set_timer(COUNT_DELAY, self._count)

    def _offer(self) -> None:
        """Show what tab would complete to, above the composer."""
        _, words = self.composer.offers()
        most = next(count for height, count in OFFERS if self.size.height >= height)
        rows = [self._described(word) for word in words[:most]]
        if len(words) > most:
            rows.append(Content.styled(f"  and {len(words) - most:,} more", "$quiet"))
        self.completions.display = bool(rows)
        self.completions.update(Content("\n").join(rows))

    def _described(self, word: str) -> Content:
        command = keys.by_slash(word[1:]) if word.startswith("/") else None
        name = Content.styled(f"  {word:<16}  ", "$primary")
        if command is None:
            return name
        return Content.assemble(name, (f"{command.arguments}  {command.help}".strip(), "$quiet"))

    def _count(self) -> None:
        session = self.session
        if not session.generating:
            garbage.rest()
        draft = self._expanded(self.composer.text, quiet=True) or self.composer.text
        if session.info is None or session.generating:
            return
        if not session.turns and not draft.strip():
            session.draft_tokens = None
            self._redraw()
            return
        self._submit(session.count(draft))

    def recall(self, questions: list[str]) -> None:
        """What was asked before this start can be recalled too."""
        self.composer.sent[:0] = [clean(to_draft(question)) for question in questions]

    def clear_draft(self) -> None:
        """Empty the composer; what stood there can be recalled. An edit is left."""
        if not self.stop_editing():
            self.composer.keep()
            self.composer.set_text("")
        self._say_hint(f"cleared: {self.keymap.first('composer.previous')} brings it back")

    def clicked(self) -> None:
        """A token was clicked: arrow keys go on from there, unless a draft is being written."""
        if self.composer.text and self.has_keys(self.composer):
            self._say_hint(f"your draft keeps the keys; {self.keymap.named('view.inspect')} reads this token")
        else:
            super().clicked()

    # --- editor, clipboard, mouse ---

    def action_external_editor(self) -> None:
        """Write the draft in the user's editor."""
        composer = self.composer
        if self._driver is None or not self._driver.can_suspend:
            self._say_hint("no editor can be opened here")
            return
        try:
            text = editor.edit(self, editor.editor_command(os.environ), composer.pastes.unfold(composer.text))
        except editor.EditorError as error:
            self._say_hint(str(error))
        else:
            composer.set_text(text)
            self.action_write()
        self._set_mouse(self._mouse)

    def copy_to_clipboard(self, text: str) -> None:
        """Copy through the terminal, and say so."""
        self._clipboard = text
        sent = osc52_sequence(clean(text), os.environ)
        if sent is None:
            self._say_hint(f"{len(text):,} characters are too many to copy; /export writes a file")
            return
        if self._driver is not None:
            self._driver.write(sent)
        self._say_hint(f"copied: {len(text):,} characters, if the terminal allows it (OSC 52)")

    def action_copy(self) -> None:
        """Copy the answer under the cursor, or the newest."""
        turn = self._turn()
        if turn is not None:
            self.copy_to_clipboard(turn.answer.text)

    def typed(self) -> dict[str, Typed]:
        """Also of copying."""
        return {**super().typed(), "answer.copy": self._copy}

    def _copy(self, what: str) -> str:
        from ropechat.store.import_export import to_markdown

        if what == "code":
            self.action_copy_code()
        elif what == "all":
            session = self.session
            self.copy_to_clipboard(to_markdown(Chat(session.recorder.id, session.title, session.tree)))
        else:
            return "/copy [code|all]: the last code block, or the branch that is shown; alone the answer"
        return ""

    def action_copy_code(self) -> None:
        """Copy the last code block of the answer under the cursor, or of the newest."""
        turn = self._turn()
        if turn is None:
            return
        blocks = _FENCE.findall(turn.answer.text)
        if blocks:
            self.copy_to_clipboard(blocks[-1][1].rstrip("\n"))
        else:
            self._say_hint("no code block in this answer")

    def action_mouse(self) -> None:
        """Leave the mouse to the terminal, which then selects text itself; or take it back."""
        self._set_mouse(not self._mouse)
        key = self.keymap.shown("view.mouse")
        self._say_hint(
            "the chat has the mouse" if self._mouse else f"the terminal has the mouse; {key} takes it"
        )

    def _set_mouse(self, taken: bool) -> None:
        self._mouse = taken
        if self._driver is not None:
            self._driver.write("".join(f"\x1b[?{mode}{'h' if taken else 'l'}" for mode in _MODES))
            self._driver.flush()

    # --- help, palette, footer ---

    def _keys_of(self) -> str:
        """Where keys go now."""
        from ropechat.tui.screens.dialog import Sheet

        if isinstance(self.screen, Sheet):
            return self.screen.context
        return "transcript" if self.has_keys(self.transcript) else "composer"

    def action_help(self) -> None:
        """The keys and commands, those of this place first."""
        from ropechat.tui.screens.help import HelpScreen

        self.push_screen(HelpScreen(self.keymap, self._keys_of()))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: every command with an action, also of the transcript; others begin to be typed."""
        for command in (*keys.COMMANDS, *keys.READING):
            if command.id not in keys.NO_PALETTE:
                label = (self._other_view() if command.id == "view.toggle" else command.label).capitalize()
                shown = self.keymap.shown(command.id)
                help = f"{command.help}  ({shown})" if shown else command.help
                yield SystemCommand(label, help, self._doing(command))

    def _doing(self, command: keys.Command) -> Callable[[], object]:
        if not command.action:
            return lambda: self._begin_line(f"/{command.slash} ")
        place = self.transcript if command in keys.READING else self
        return lambda: self.call_later(self.run_action, command.action, place)

    def _begin_line(self, text: str) -> None:
        """Have a command typed; the draft comes back afterwards."""
        self.composer.borrow(text)
        self.action_write()

    def footer_keys(self) -> list[tuple[str, str]]:
        """What the footer says: the keys of what has them."""
        generating = self.session.generating
        if self.has_keys(self.find_bar) or self.has_keys(self.transcript):
            stop = [(self.keymap.first("chat.stop"), "stop")] if generating else []
            return [*stop, *self.reading_keys()]
        view = self.keymap.shown("view.toggle").partition(" ")[0]
        pairs = self.keymap.footer(generating)
        return [(key, self._other_view() if key == view else label) for key, label in pairs]

    def _other_view(self) -> str:
        """What the key of the view switches to."""
        return "tokens" if self.transcript.page.view == "prose" else "prose"
