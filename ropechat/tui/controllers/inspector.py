"""Reading: views, tints, the token cursor and the inspector."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.cursor import TokenPlace
from ropechat.tui.render.tint import BY_NAME, NAMES, OFF
from ropechat.tui.widgets.inspector import Preview

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.chat import events as ev
    from ropechat.tui.commands.dispatch import Handler
    from ropechat.tui.controllers.answers import AnswersController
    from ropechat.tui.controllers.find import FindController
    from ropechat.tui.controllers.reader import ReaderController
    from ropechat.tui.controllers.view import View
    from ropechat.tui.widgets.composer import Composer
    from ropechat.tui.widgets.inspector import Inspector
    from ropechat.tui.widgets.side_panel import SidePanel
    from ropechat.tui.widgets.token_transcript import TokenTranscript

REFRESH_INTERVAL_S = 0.2  # seconds between two updates


class InspectorController:
    """The commands of the token inspector, views and tints. remember: keeps a choice for the next time."""

    def __init__(
        self,
        view: View,
        transcript: TokenTranscript,
        inspector: Inspector,
        side_panel: SidePanel,
        composer: Composer,
        find: FindController,
        answers: AnswersController,
        reader: ReaderController,
        remember: Callable[[str, object], None],
    ) -> None:
        self._reader, self._remember = reader, remember
        self.view, self.keymap, self.transcript = view, view.keymap, transcript
        self.inspector, self.side_panel, self.composer = inspector, side_panel, composer
        self.find, self.answers = find, answers
        self._looked = 0.0

    def handlers(self) -> dict[str, Handler]:
        return {
            "view.toggle": lambda words: self.toggle_view(),
            "view.inspect": lambda words: self._reader.open(words) if words else self.inspect(),
            "view.tint": self._tint,
            "read.tint": lambda words: self.next_tint(),
            "answer.fork": self._fork,
            "read.take": lambda words: self.take(),
            "read.preview": lambda words: self.preview(),
            "read.details": lambda words: self.inspector.toggle_details(),
            "alternative.other": lambda words: self.take_other(),
            **{f"alternative.{n}": partial(self.take_number, n) for n in range(1, 10)},
        }

    @property
    def reading(self) -> bool:
        """Whether letters are commands: with a token cursor, and during a search."""
        return self.view.chat_focus is self.transcript and (self.transcript.commands or self.find.active)

    # --- views and tints ---

    def toggle_view(self) -> None:
        """Switch between tokens and prose."""
        prose = self.transcript.toggle_view() == "prose"
        self._remember("view", "prose" if prose else "tokens")
        self.view.hint("prose: Markdown, without tints" if prose else "tokens: the text as it came, tinted")
        self.view.refresh_status()

    def use_view(self, name: str) -> None:
        """Show tokens, or prose."""
        if self.transcript.page.view != name:
            self.transcript.toggle_view()
            self.view.refresh_status()

    def next_tint(self) -> None:
        """Tint by the next figure, or not at all."""
        self.say_tint(self.transcript.next_tint())

    def toggle_tint(self) -> None:
        """Switch the tint on or off."""
        self.say_tint(self.transcript.set_tint("surprisal" if self.transcript.tint == OFF else OFF))

    def say_tint(self, name: str) -> None:
        """Show which figure tints."""
        self._remember("tint", name)
        self.view.hint("tint off" if name == OFF else f"tint: {name}, from {BY_NAME[name].limits[0]:g} on")
        self.view.refresh_status()

    def _tint(self, name: str) -> str:
        if not name:
            self.toggle_tint()
        elif name not in NAMES:
            return f"/tint {'|'.join(NAMES)}"
        else:
            self.say_tint(self.transcript.set_tint(name))
        return ""

    # --- the inspector ---

    def inspect(self) -> None:
        """Open the inspector and focus the transcript; from there: close it."""
        if self.inspector.display and self.view.chat_focus is self.transcript:
            self.close()
            return
        if self.transcript.cursor is None:
            self.transcript.action_token(1)
        self.open()
        if self.transcript.cursor is not None:
            self.transcript.commands = True
            self.view.give_keys(self.transcript)

    def open(self) -> None:
        """Show the token under the cursor."""
        self.side_panel.show(self.inspector, True)
        self.transcript.choosing = self.transcript.cursor is not None
        self.inspector.show(self.transcript.cursor)
        self.view.app.call_after_refresh(self._keep_in_sight)
        self.view.refresh_status()

    def _keep_in_sight(self) -> None:
        if (token := self.transcript.cursor) is not None:
            self.transcript.bring_into_sight(token)

    def close(self) -> None:
        """Close it; the cursor stays."""
        self.transcript.choosing = False
        self.side_panel.show(self.inspector, False)
        self.view.refresh_status()

    def moved(self, *, clicked: bool) -> None:
        """Follow the cursor to another token."""
        if clicked and not self.inspector.display:
            self.open()
        elif self.inspector.display and not self.transcript.awaits:
            self.transcript.choosing = self.transcript.cursor is not None
            self.inspector.show(self.transcript.cursor)
        if clicked:
            self._clicked()
        self.view.refresh_status()

    def _clicked(self) -> None:
        """Focus the transcript after a click, unless a draft is being written."""
        if self.composer.text and self.view.chat_focus is self.composer:
            key = self.keymap.named("view.inspect")
            self.view.hint(f"keys go to your draft; {key} inspects this token")
        else:
            self.view.give_keys(self.transcript)

    def watch_newest(self) -> None:
        """Inspect the newest token while the model writes and none is selected."""
        if not self.inspector.display or self.transcript.awaits:
            return
        now, cursor = time.monotonic(), self.transcript.cursor
        if cursor is not None:
            if now - self._looked > REFRESH_INTERVAL_S or not cursor.block.live:
                self._looked = now
                self.inspector.recount()
            return
        block = self.transcript.blocks[-1] if self.transcript.blocks else None
        if now - self._looked > REFRESH_INTERVAL_S and isinstance(block, AnswerBlock) and block.steps:
            self._looked = now
            self.inspector.show(TokenPlace(block, len(block.steps) - 1))

    # --- alternatives ---

    def take(self) -> None:
        """Enter: open the inspector, or fork at the selected alternative."""
        if not self.inspector.display:
            self.inspect()
        else:
            self._fork_here()

    def take_number(self, number: int, words: str = "") -> None:
        """Fork at the alternative of this rank."""
        if self.inspector.display and self.inspector.choose_rank(number):
            self._fork_here()
        else:
            self.view.hint(f"no alternative {number} here: {self.keymap.first('view.inspect')} lists them")

    def take_other(self) -> None:
        """Resample the token: fork at another one, drawn from the rest."""
        token = self.transcript.cursor_token()
        if token is None or not self.inspector.display:
            self.view.hint(f"put the cursor on a token and press {self.keymap.named('view.inspect')} first")
        elif (id := self.inspector.another(self.answers.tried(*token))) is None:
            self.view.hint("every recorded token was tried here")
        else:
            self.answers.fork(*token, id)

    def pick(self, *, forks: bool) -> None:
        """A click on an alternative: the second one forks there."""
        if self.transcript.cursor is None:  # the newest token is shown, as it came
            token = self.inspector.token
            if token is not None and token.block in self.transcript.blocks:  # not replaced by a later version
                self.transcript.move_to(token, clicked=True)
        elif forks:
            self._fork_here()
        self.view.refresh_status()

    def preview(self) -> None:
        """Preview the selected alternative."""
        found = self._alternative()
        if found is None:
            self.view.hint("no alternative is selected")
        elif not self.answers.preview(*found, self._show_preview):
            self.view.hint("busy: previews come when the answer is complete")

    def _show_preview(self, result: ev.PreviewReady) -> None:
        if result.steps:
            text = "".join(step.text for step in result.steps[1:])
            note = f"· greedy · {len(result.steps) - 1} tokens"
            self.inspector.show_preview(Preview(result.steps[0].id, text, note))

    def _fork_here(self) -> None:
        found = self._alternative()
        if found is None:
            self.view.hint("no alternative is selected")
        else:
            self.answers.fork(*found)

    def _alternative(self) -> tuple[str, int, int] | None:
        """(node, token index, id) of the selected alternative."""
        token, choice = self.transcript.cursor_token(), self.inspector.chosen
        if not self.inspector.display or token is None or choice is None:
            return None
        return *token, choice.id

    def _fork(self, words: str) -> str:
        """/fork: fork at the selected alternative, or open the dialog of alternatives."""
        if words:
            return self.answers.fork_newest(words)
        cursor = self.transcript.cursor_token()
        if (found := self._alternative()) is not None:
            self.answers.fork(*found)
        elif cursor is not None:
            self.answers.choose_fork(*cursor)
        else:
            return "put the cursor on a token first, or /fork NUMBER of the token"
        return ""

    # --- leaving, and what keys do here ---

    def step_back(self) -> bool:
        """Close the search or the inspector and return to the composer; False if neither was open."""
        if self.find.active:
            self.find.close()
        elif self.inspector.display or self.transcript.cursor is not None:
            if self.inspector.display:
                self.close()
            self.transcript.move_to(None)
            self.view.write()
        else:
            return False
        self.view.refresh_status()
        return True

    def reading_label(self) -> str:
        """The label above the composer: where keys go; "" if to the composer."""
        back, write = self.keymap.first("chat.stop"), self.keymap.first("read.write")
        if self.reading:
            return f" READING  {back} or {write}: write "
        return f" READING  type or {back}: write " if self.view.chat_focus is self.transcript else ""

    def footer_keys(self) -> list[tuple[str, str]]:
        """(key, label) pairs for the footer while the transcript or the search field has the focus."""
        if self.view.chat_focus not in (self.find.find_bar, self.transcript):
            return []
        generating = self.answers.session.generating
        stop = [(self.keymap.first("chat.stop"), "stop")] if generating else []
        return [*stop, *self._reading_keys()]

    def _reading_keys(self) -> list[tuple[str, str]]:
        """(key, label) pairs while the transcript has the keys."""
        key = self.keymap.first if self.reading else self.keymap.beside_text
        last = [(key("chat.stop"), "write"), (key("app.help"), "help"), (key("app.quit"), "quit")]
        if self.view.chat_focus is self.find.find_bar:
            return [("⏎", "to the matches"), (key("chat.stop"), "close"), *last[1:]]
        surprise = [(key("read.next", "read.previous"), "surprise")] if self.reading else []
        if self.find.active:
            return [(key("read.next", "read.previous"), "next"), (key("view.find"), "find"), *last]
        token = (key("read.left", "read.right"), "token")
        fork = key("read.take")
        if self.transcript.choosing:
            keys = [token, (key("read.down", "read.up"), "choice")]
            if not self.reading:
                return [*keys, (fork, "fork"), *last]
            digits = f"{key('alternative.1')}-{key('alternative.9')}"
            keys += [(f"{fork} {digits}", "fork"), *surprise, (key("alternative.ban"), "ban")]
            preview = (key("read.preview"), "preview")
            return [*keys, preview, (key("read.details"), "details"), *last]
        if self.transcript.cursor is not None:
            every = key("read.left", "read.down", "read.up", "read.right")
            return [(every, "token"), (key("read.take"), "inspect"), *surprise, *last]
        found = [(key("read.down", "read.up"), "scroll"), token, (key("read.take"), "inspect")]
        return [*found, (key("view.find"), "find"), *last]
