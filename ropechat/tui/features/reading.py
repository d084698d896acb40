"""Reading what was written: search, views, tints, the token cursor and the inspector; files in the reader."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropechat.chat.score_worker import ScoreWorker
from ropechat.conversation import spoken
from ropechat.inspector.text_reader import TextReader
from ropechat.tui.features.answers import AnswersFeature
from ropechat.tui.features.settings import SettingsFeature
from ropechat.tui.format.status import why_ended
from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.cursor import TokenPlace
from ropechat.tui.render.tint import BY_NAME, NAMES, OFF
from ropechat.tui.ui import ChatUi, Feature, command, setting
from ropechat.tui.widgets.inspector import Preview
from ropechat.util.text import format_bytes, one_line

if TYPE_CHECKING:
    from ropechat.chat import events as ev
    from ropechat.engine.engine import Engine

REFRESH_INTERVAL_S = 0.2  # seconds between two updates
MAX_BYTES = 64 << 20  # of a file for the reader
ALTERNATIVE_KEYS = (("alternative.ban", "ban"), ("read.preview", "preview"), ("read.details", "details"))


class FindFeature(Feature):
    """Finds text in the transcript: marks matches and counts them."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.find_bar, self.found = ui.find_bar, ui.found

    @command("view.find")
    def _find(self, text: str) -> str:
        if text:
            self.find_text(text)
        else:
            self.open()
        return ""

    def open(self) -> None:
        """Open the search field."""
        self.ui.app.screen.add_class("-finding")
        self.find_bar.focus()

    def find_text(self, text: str, node: str = "") -> None:
        """Search for a text and focus the transcript. node: the message that has the first match."""
        self.ui.app.screen.add_class("-finding")
        with self.find_bar.prevent(self.find_bar.Changed):
            self.find_bar.value = text
        self.transcript.find(text, node)
        self.count()
        self.ui.give_keys(self.transcript)

    def close(self) -> None:
        """End the search and return to the token cursor or the composer."""
        self.leave()
        if self.transcript.cursor is not None:
            self.ui.give_keys(self.transcript)
        else:
            self.ui.write()

    def leave(self) -> None:
        """End the search; the focus stays."""
        self.ui.app.screen.remove_class("-finding")
        self.find_bar.value = ""
        self.transcript.find("")

    @property
    def active(self) -> bool:
        """Whether a search is open."""
        return self.ui.app.screen.has_class("-finding")

    def changed(self) -> None:
        """Mark matches while typing."""
        self.transcript.find(self.find_bar.value)
        self.count()

    def submitted(self) -> None:
        """Focus the transcript, where n and N select matches."""
        self.ui.give_keys(self.transcript)
        self.ui.refresh()

    def count(self) -> None:
        """Show the number of matches and the current one."""
        finder = self.transcript.finder
        text = f"{finder.number:,}/{finder.count:,}" if finder.count else "none" if finder.active else ""
        self.found.update(f" {text}  ⏎ n N  esc ")


class ReadingFeature(Feature):
    """The commands of the token inspector, views and tints."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.inspector, self.side_panel = ui.inspector, ui.side_panel
        self.find, self.answers, self._settings = ui[FindFeature], ui[AnswersFeature], ui[SettingsFeature]
        self._looked = 0.0
        for n in range(1, 10):
            ui.handlers[f"alternative.{n}"] = partial(self.take_number, n)

    @property
    def reading(self) -> bool:
        """Whether the transcript has the keys: letters and digits are commands."""
        return self.ui.chat_focus is self.transcript

    # --- views and tints ---

    @command("view.toggle")
    def toggle_view(self) -> None:
        """Switch between tokens and prose."""
        prose = self.transcript.toggle_view() == "prose"
        self._settings.remember("view", "prose" if prose else "tokens")
        self.ui.hint("prose: Markdown, without tints" if prose else "tokens: the text as it came, tinted")
        self.ui.refresh()

    @setting("view")
    def use_view(self, name: str) -> None:
        """Show tokens, or prose."""
        if self.transcript.page.view != name:
            self.transcript.toggle_view()
            self.ui.refresh()

    @command("read.tint")
    def next_tint(self) -> None:
        """Tint by the next figure, or not at all."""
        self.say_tint(self.transcript.next_tint())

    def toggle_tint(self) -> None:
        """Switch the tint on or off."""
        self.say_tint(self.transcript.set_tint("surprisal" if self.transcript.tint == OFF else OFF))

    def say_tint(self, name: str) -> None:
        """Show which figure tints."""
        self._settings.remember("tint", name)
        self.ui.hint("tint off" if name == OFF else f"tint: {name}, from {BY_NAME[name].limits[0]:g} on")
        self.ui.refresh()

    @command("view.tint")
    def _tint(self, name: str) -> str:
        if not name:
            self.toggle_tint()
        elif name not in NAMES:
            return f"/tint {'|'.join(NAMES)}"
        else:
            self.say_tint(self.transcript.set_tint(name))
        return ""

    @setting("tint")
    def use_tint(self, name: str) -> None:
        """Tint by another figure."""
        self.transcript.set_tint(name)

    @setting("inspector")
    def _show_inspector(self, shown: bool) -> None:
        if shown:
            self.open()
        else:
            self.close()

    # --- the inspector ---

    @command("view.inspect")
    def _inspect(self, words: str) -> None:
        if words:
            open_reader(self.ui, words)
        else:
            self.inspect()

    @command("read.details")
    def _toggle_details(self) -> None:
        self.inspector.toggle_details()

    def inspect(self) -> None:
        """Open the inspector and focus the transcript; from there: close it."""
        if self.inspector.display and self.ui.chat_focus is self.transcript:
            self.close()
            return
        if self.transcript.cursor is None:
            self.transcript.action_token(1)
        self.open()
        if self.transcript.cursor is not None:
            self.ui.give_keys(self.transcript)

    def open(self) -> None:
        """Show the token under the cursor."""
        self.side_panel.show(self.inspector, True)
        self.transcript.choosing = self.transcript.cursor is not None
        self.inspector.show(self.transcript.cursor)
        self.ui.app.call_after_refresh(self._keep_in_sight)
        self.ui.refresh()

    def _keep_in_sight(self) -> None:
        if (token := self.transcript.cursor) is not None:
            self.transcript.bring_into_sight(token)

    def close(self) -> None:
        """Close it; the cursor stays."""
        self.transcript.choosing = False
        self.side_panel.show(self.inspector, False)
        self.ui.refresh()

    def moved(self, *, clicked: bool) -> None:
        """Follow the cursor to another token."""
        if clicked and not self.inspector.display and not self.ui.chart.display:
            self.open()
        elif self.inspector.display and not self.transcript.awaits:
            self.transcript.choosing = self.transcript.cursor is not None
            self.inspector.show(self.transcript.cursor)
        if clicked:
            self.ui.give_keys(self.transcript)
        self.ui.refresh()

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

    @command("read.take")
    def take(self) -> None:
        """Enter: open the inspector, or fork at the selected alternative; without a token: write."""
        if self.transcript.cursor is None:
            self.ui.write()
        elif not self.inspector.display:
            self.inspect()
        else:
            self._fork_here()

    def take_number(self, number: int, words: str = "") -> None:
        """Fork at the alternative of this rank."""
        if self.inspector.display and self.inspector.choose_rank(number):
            self._fork_here()
        else:
            self.ui.hint(f"no alternative {number} here: {self.keymap.first('view.inspect')} lists them")

    @command("alternative.other")
    def take_other(self) -> None:
        """Resample the token: fork at another one, drawn from the rest."""
        token = self.transcript.cursor_token()
        if token is None or not self.inspector.display:
            self.ui.hint(f"put the cursor on a token and press {self.keymap.named('view.inspect')} first")
        elif (id := self.inspector.another(self.answers.tried(*token))) is None:
            self.ui.hint("every recorded token was tried here")
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
        self.ui.refresh()

    @command("read.preview")
    def preview(self) -> None:
        """Preview the selected alternative."""
        found = self._alternative()
        if found is None:
            self.ui.hint("no alternative is selected")
        elif not self.answers.preview(*found, self._show_preview):
            self.ui.hint("busy: previews come when the answer is complete")

    def _show_preview(self, result: ev.PreviewReady) -> None:
        if result.error:
            self.ui.hint(f"no preview: {result.error}")
        elif result.steps:
            text = "".join(map(spoken, result.steps[1:]))
            note = f"· greedy · {len(result.steps) - 1} tokens"
            self.inspector.show_preview(Preview(result.steps[0].id, text, note))

    def _fork_here(self) -> None:
        found = self._alternative()
        if found is None:
            self.ui.hint("no alternative is selected")
        else:
            self.answers.fork(*found)

    def _alternative(self) -> tuple[str, int, int] | None:
        """(node, token index, id) of the selected alternative."""
        token, choice = self.transcript.cursor_token(), self.inspector.chosen
        if not self.inspector.display or token is None or choice is None:
            return None
        return *token, choice.id

    @command("answer.fork")
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
            self.ui.write()
        else:
            return False
        self.ui.refresh()
        return True

    def bar_keys(self) -> list[tuple[str, str]]:
        """(key, label) pairs for the bar while reading: what can be done with the answer under the cursor."""
        key, session = self.keymap.first, self.answers.session
        turn, node = session.last, None
        if (cursor := self.transcript.cursor) is not None:
            turn = next((one for one in session.turns if one.node == cursor.block.node), turn)
        if turn is not None and turn.node is not None:
            node = session.tree.nodes.get(turn.node)
        if turn is None or node is None:
            return []
        keys = [(key("question.edit"), "edit")]
        if turn.answer.thought is not None:
            keys.append((key("answer.thought"), "answer now" if self.answers.thinks_now else "thought"))
        if not turn.answer.live and why_ended(node):
            keys.append((key("answer.resume"), "continue"))
        if len(session.tree.siblings(node.id)) > 1:
            versions = (key("sibling.previous", "sibling.next"), "version")
            keys += [versions, (key("answer.compare"), "compare")]
        if cursor is not None:
            keys += [(key("read.why"), "why"), (key("read.follow"), "what follows")]
        keys += [(key("read.tint"), "tint"), (key("read.find"), "find")]
        keys += [(key("answer.chart"), "chart"), (key("answer.step"), "step")]
        return [*keys, (key("answer.copy"), "copy"), (key("answer.regenerate"), "regenerate")]

    def footer_keys(self) -> list[tuple[str, str]]:
        """(key, label) pairs for the footer while the transcript or the search field has the focus."""
        key = self.keymap.first
        last = [(key("app.help"), "help"), (key("app.quit"), "quit")]
        if self.ui.chat_focus is self.find.find_bar:
            return [("⏎", "to the matches"), (key("chat.stop"), "close"), *last]
        if not self.reading:
            return []
        stop = [(key("chat.stop"), "stop")] if self.answers.session.generating else []
        return [*stop, *self._moves(), *last]

    def _moves(self) -> list[tuple[str, str]]:
        """(key, label) pairs of the token cursor and the alternatives."""
        key, arrows = self.keymap.first, self.keymap.beside_text
        if self.find.active:
            return [(key("read.next", "read.previous"), "next"), (key("view.find"), "find")]
        token = (arrows("read.left", "read.right"), "token")
        rows = arrows("read.up", "read.down")
        surprise = (key("read.next", "read.previous"), "surprise")
        if self.transcript.choosing:
            digits = f"{key('alternative.1')}-{key('alternative.9')}"
            ways = [(f"{key('read.take')} {digits}", "fork"), (key("alternative.other"), "resample")]
            keys = [(key(id), label) for id, label in ALTERNATIVE_KEYS]
            return [token, (rows, "choice"), *ways, *keys, surprise]
        if self.transcript.cursor is not None:
            return [(f"{token[0]} {rows}", "token"), (key("read.take"), "inspect"), surprise]
        return [(rows, "scroll"), token, surprise, (key("read.home", "read.end"), "begin, end")]


def open_reader(ui: ChatUi, words: str) -> None:
    """`/inspect FILE`: show a text in the reader, over the chat."""
    try:
        path = Path(os.path.expanduser(words.strip()))
        text = _read(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        ui.hint(one_line(f"{words.strip()}: {reason}"))
        return
    worker = ScoreWorker(ui.chat.inference)

    def job(engine: Engine) -> tuple[TextReader, Any]:
        return TextReader.of(engine, text), engine.token_bytes

    worker.submit(job, lambda result: ui.app.call_from_thread(_show_reader, ui, path.name, worker, result))


def _show_reader(ui: ChatUi, title: str, worker: ScoreWorker, result: Any) -> None:
    from ropechat.tui.screens.reader import ReaderScreen

    if isinstance(result, BaseException):
        ui.hint(one_line(f"{title}: {result}"))
        return
    reader, spell = result
    screen = ReaderScreen(title, reader, worker, spell, ui.keymap, Path.cwd())
    worker.failed = lambda error: ui.app.call_from_thread(screen.fail, error)

    def closed(_: object) -> None:
        worker.close()
        ui.write()

    ui.app.push_screen(screen, closed)
    worker.read(reader)


def _read(path: Path) -> str:
    """The text of a file. Raises OSError, ValueError."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(
            f"must be at most {format_bytes(MAX_BYTES)} (got {format_bytes(path.stat().st_size)})"
        )
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"must be UTF-8 text (byte {error.start} is not)") from None
    if not text:
        raise ValueError("must have at least one character")
    return text
