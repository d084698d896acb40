"""The reading half of the app: views, tints, token cursor, inspector and find."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from textual.app import App
from textual.widgets import Input, Label

from ropechat.tui.commands.keymap import Keymap
from ropechat.tui.commands.registry import BY_ID
from ropechat.tui.format import status as panel
from ropechat.tui.format.theme import tint_styles
from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.cursor import TokenPlace
from ropechat.tui.render.tint import BY_NAME, NAMES, OFF
from ropechat.tui.widgets.bars import cells
from ropechat.tui.widgets.input import Field
from ropechat.tui.widgets.inspector import Inspector, Preview
from ropechat.tui.widgets.reader import Reader
from ropechat.tui.widgets.side_panel import Rail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.widget import Widget

    from ropechat.chat.events import ModelInfo
    from ropechat.trace import Step
    from ropechat.tui.commands.dispatch import Typed
    from ropechat.tui.widgets.bars import Part

LIVE = 0.2  # seconds between two looks at the newest token


class Previewed(Protocol):
    """How a text would go on: the steps, the alternative first."""

    @property
    def steps(self) -> Sequence[Step]:
        """One for each token."""


class FindBar(Field):
    """The text that is looked for."""

    def __init__(self) -> None:
        super().__init__(id="wanted", compact=True, placeholder="Find", select_on_focus=True)


class ReadingApp(App[None]):
    """An app around one transcript; `fork` and `preview` are offered where a subclass has them."""

    fork: Callable[..., None] | None = None  # (node, index of the token, id instead)
    keymap = Keymap()
    preview: Callable[..., bool] | None = None  # the same, and what to call with the result; False: busy

    def __init__(self) -> None:
        super().__init__()
        self.transcript = Reader(id="transcript")
        self.inspector = Inspector(id="inspector")
        self.rail = Rail(self.inspector, id="rail")
        self.find_bar = FindBar()
        self.found = Label("", id="found", markup=False)
        self.keys_wanted = threading.Event()  # set once a key finds the chat that was asked for
        self._looked = 0.0

    # --- who has the keys ---

    def has_keys(self, widget: Widget) -> bool:
        """Do keys go to a widget of the chat, or will they once the sheet over it is closed?"""
        return bool(self.screen_stack) and self.screen_stack[0].focused is widget

    def give_keys(self, widget: Widget) -> None:
        """Keys go to a widget of the chat from now on: the next one, however soon it comes."""
        widget.screen.set_focus(widget)

    @property
    def reading(self) -> bool:
        """Are letters commands? From when a key goes to a token, and while a text is looked for."""
        return self.has_keys(self.transcript) and (self.transcript.commands or self.finding)

    def action_write(self) -> None:
        """Give the keys to where people write."""

    # --- what the app around it does ---

    def _say_hint(self, text: str) -> None:
        """Say something at the bottom of the screen for a while."""

    def _redraw(self) -> None:
        """Bring the lines around the transcript up to date."""

    def way_to(self, id: str) -> str:
        """How a command is given from where the keyboard is: by its key, or typed."""
        command = BY_ID[id]
        typed = command.slash and command.context == "transcript" and not self.transcript.has_focus
        return f"/{command.slash}" if typed else self.keymap.named(id)

    # --- views and tints ---

    def action_toggle_view(self) -> None:
        """Tokens or prose."""
        prose = self.transcript.toggle_view() == "prose"
        self._say_hint("prose: Markdown, without tints" if prose else "tokens: the text as it came, tinted")
        self._redraw()

    def action_next_tint(self) -> None:
        """Another figure as tint, or none."""
        self.say_tint(self.transcript.next_tint())

    def action_toggle_tint(self) -> None:
        """Tint on or off."""
        self.say_tint(self.transcript.set_tint("surprisal" if self.transcript.tint == OFF else OFF))

    def say_tint(self, name: str) -> None:
        """Tell which figure is shown."""
        self._say_hint("tint off" if name == OFF else f"tint: {name}, from {BY_NAME[name].limits[0]:g} on")
        self._redraw()

    def with_legend(self, figures: list[Part], width: int, room: int) -> list[Part]:
        """The meaning of the tint: beside the figures where there is room, instead of them for a reader.

        Figures that do not fit into `room` cells are left out at the left.
        """
        while figures and width < 120 and cells(figures) > room:
            figures = figures[1:]
        if self.transcript.page.view != "tokens" or width < 70:
            return figures
        if width < 120 and not self.has_keys(self.transcript):
            return figures
        colours = tint_styles(self.current_theme.dark, self.native_ansi_color, self.no_color)
        legend = panel.legend(self.transcript.tint, colours)
        if width < 120:
            return legend or figures
        while figures and cells([*legend, *figures]) > room:
            figures = figures[1:]
        return [*legend, *figures]

    # --- inspector ---

    def know(self, info: ModelInfo) -> None:
        """A model was loaded: tokens can be spelled."""
        self.inspector.spell = info.token_bytes

    def action_inspect(self) -> None:
        """Open the inspector on a token and read there; from there: close it."""
        if self.inspector.display and self.has_keys(self.transcript):
            self.close_inspector()
            return
        if self.transcript.cursor is None:
            self.transcript.action_token(1)
        self.open_inspector()
        if self.transcript.cursor is not None:
            self.transcript.commands = True
            self.give_keys(self.transcript)

    def open_inspector(self) -> None:
        """Show the token under the cursor."""
        self.rail.show(self.inspector, True)
        self.transcript.choosing = self.transcript.cursor is not None
        self.inspector.show(self.transcript.cursor)
        self.call_after_refresh(self._keep_in_sight)
        self._redraw()

    def _keep_in_sight(self) -> None:
        if (token := self.transcript.cursor) is not None:
            self.transcript.bring_into_sight(token)

    def close_inspector(self) -> None:
        """Close it; the cursor stays."""
        self.transcript.choosing = False
        self.rail.show(self.inspector, False)
        self._redraw()

    def on_reader_moved(self, message: Reader.Moved) -> None:
        """The cursor is on another token."""
        if message.clicked and not self.inspector.display:
            self.open_inspector()
        elif self.inspector.display and not self.transcript.awaits:
            self.transcript.choosing = self.transcript.cursor is not None
            self.inspector.show(self.transcript.cursor)
        if message.clicked:
            self.clicked()
        self._redraw()

    def clicked(self) -> None:
        """A token was clicked: arrow keys go on from there."""
        self.give_keys(self.transcript)

    def on_reader_choose(self, message: Reader.Choose) -> None:
        """Another alternative."""
        self.inspector.choose(message.step)

    def on_reader_take(self, message: Reader.Take) -> None:
        """Enter: open the inspector, or go on from the alternative."""
        if not self.inspector.display:
            self.action_inspect()
        else:
            self._fork_here()

    def on_reader_number(self, message: Reader.Number) -> None:
        """A digit: go on from the alternative of that rank."""
        if self.inspector.display and self.inspector.choose_rank(message.number):
            self._fork_here()
        else:
            self._say_hint(
                f"no alternative {message.number} here: {self.keymap.first('view.inspect')} lists them"
            )

    def on_reader_other(self) -> None:
        """Not this token: go on from another one, drawn from what is left."""
        token = self.transcript.cursor_token()
        if token is None or not self.inspector.display or self.fork is None:
            self._say_hint(f"put the cursor on a token and press {self.keymap.named('view.inspect')} first")
        elif (id := self.inspector.another(self.tried(*token))) is None:
            self._say_hint("every recorded token was tried here")
        else:
            self.fork(*token, id)

    def tried(self, node: str, index: int) -> set[int]:
        """The tokens that already stand at a place of an answer, here or in the answers beside it."""
        return set()

    def on_reader_ask_preview(self) -> None:
        """How would it go on?"""
        found = self._alternative()
        if found is None or self.preview is None:
            self._say_hint("no alternative is selected" if self.preview else "no preview here")
        elif not self.preview(*found, self._show_preview):
            self._say_hint("busy: previews come when the answer is complete")

    def _show_preview(self, result: Previewed) -> None:
        if result.steps:
            text = "".join(step.text for step in result.steps[1:])
            note = f"· greedy · {len(result.steps) - 1} tokens"
            self.inspector.show_preview(Preview(result.steps[0].id, text, note))

    def _fork_here(self) -> None:
        found = self._alternative()
        if found is None or self.fork is None:
            self._say_hint("no alternative is selected" if self.fork else "no fork here")
        else:
            self.fork(*found)

    def _alternative(self) -> tuple[str, int, int] | None:
        """(node, index of the token, id instead) of what is selected."""
        token, choice = self.transcript.cursor_token(), self.inspector.chosen
        if not self.inspector.display or token is None or choice is None:
            return None
        return *token, choice.id

    def watch_newest(self) -> None:
        """While the model writes and no token is selected, the inspector shows the newest one."""
        if not self.inspector.display or self.transcript.awaits:
            return
        now, cursor = time.monotonic(), self.transcript.cursor
        if cursor is not None:
            if now - self._looked > LIVE or not cursor.block.live:
                self._looked = now
                self.inspector.recount()
            return
        block = self.transcript.blocks[-1] if self.transcript.blocks else None
        if now - self._looked > LIVE and isinstance(block, AnswerBlock) and block.steps:
            self._looked = now
            self.inspector.show(TokenPlace(block, len(block.steps) - 1))

    # --- typed ---

    def typed(self) -> dict[str, Typed]:
        """What is done with the words behind a typed command, by the id of that."""
        return {"view.find": self._find_typed, "view.tint": self._tint_typed}

    def _find_typed(self, text: str) -> str:
        self.find_text(text)
        return ""

    def _tint_typed(self, name: str) -> str:
        if name not in NAMES:
            return f"/tint {'|'.join(NAMES)}"
        self.say_tint(self.transcript.set_tint(name))
        return ""

    # --- find ---

    def action_find(self) -> None:
        """Look for a text."""
        self.screen.add_class("-finding")
        self.find_bar.focus()

    def find_text(self, text: str) -> None:
        """Look for this text; n and N go from match to match."""
        self.screen.add_class("-finding")
        self.find_bar.value = text
        self.give_keys(self.transcript)

    def close_find(self) -> None:
        """Look for nothing; who was at a token is there again."""
        self.leave_find()
        if self.transcript.commands:
            self.give_keys(self.transcript)
        else:
            self.action_write()

    def leave_find(self) -> None:
        """Look for nothing; the keyboard stays where it is."""
        self.screen.remove_class("-finding")
        self.find_bar.value = ""
        self.transcript.find("")

    @property
    def finding(self) -> bool:
        """Is a text looked for?"""
        return self.screen.has_class("-finding")

    def on_input_changed(self, message: Input.Changed) -> None:
        """Mark matches while typing."""
        if message.input is self.find_bar:
            self.transcript.find(message.value)
            self._count_found()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Enter: the keys n and N go from match to match."""
        if message.input is self.find_bar:
            self.give_keys(self.transcript)
            self._redraw()

    def on_reader_found(self) -> None:
        """Another match is the current one."""
        self._count_found()

    def _count_found(self) -> None:
        finder = self.transcript.finder
        text = f"{finder.number:,}/{finder.count:,}" if finder.count else "none" if finder.active else ""
        self.found.update(f" {text}  ⏎ n N  esc ")

    # --- leaving ---

    def step_back(self) -> bool:
        """Esc: close what is open, and write; False if nothing was."""
        if self.finding:
            self.close_find()
        elif self.inspector.display or self.transcript.cursor is not None:
            if self.inspector.display:
                self.close_inspector()
            self.transcript.move_to(None)
            self.action_write()
        else:
            return False
        self._redraw()
        return True

    def reading_label(self) -> str:
        """What the rule above the composer says of where keys go; "" while they go to the composer."""
        back, write = self.keymap.first("chat.stop"), self.keymap.first("read.write")
        if self.reading:
            return f" READING  {back} or {write}: write "
        return f" READING  type or {back}: write " if self.has_keys(self.transcript) else ""

    def reading_keys(self) -> list[tuple[str, str]]:
        """(key, label) pairs while the transcript has the keys."""
        key = self.keymap.first if self.reading else self.keymap.beside_text
        last = [(key("chat.stop"), "write"), (key("app.help"), "help"), (key("app.quit"), "quit")]
        if self.has_keys(self.find_bar):
            return [("⏎", "to the matches"), (key("chat.stop"), "close"), *last[1:]]
        surprise = [(key("read.next", "read.previous"), "surprise")] if self.reading else []
        if self.finding:
            return [(key("read.next", "read.previous"), "next"), (key("view.find"), "find"), *last]
        token = (key("read.left", "read.right"), "token")
        fork = [key("read.take")] if self.fork else []
        if self.transcript.choosing:
            keys = [token, (key("read.down", "read.up"), "choice"), *surprise]
            if not self.reading:
                return [*keys, *((one, "fork") for one in fork), *last]
            digits = f"{key('alternative.1')}-{key('alternative.9')}"
            keys += [(f"{one} {digits}", "fork") for one in fork]
            keys += [(key("alternative.ban"), "ban")] if self.fork else []
            return [*keys, *([(key("read.preview"), "preview")] if self.preview else []), *last]
        if self.transcript.cursor is not None:
            every = key("read.left", "read.down", "read.up", "read.right")
            return [(every, "token"), (key("read.take"), "inspect"), *surprise, *last]
        found = [(key("read.down", "read.up"), "scroll"), token, (key("read.take"), "inspect")]
        return [*found, (key("view.find"), "find"), *last]
