"""`ropechat inspect -i FILE`: the reader as a program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding

from ropechat.inspector.reader_thread import ReaderThread
from ropechat.inspector.record_reader import RecordReader
from ropechat.inspector.text_reader import TextReader
from ropechat.tui.base_app import BaseApp
from ropechat.tui.screens.reader import ReaderScreen

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.binding import BindingType

    from ropechat.engine.engine import Engine
    from ropechat.tui.options import ChatOptions


class ReaderApp(BaseApp):
    """Shows one reader; closing it ends the program."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "leave", show=False, priority=True)]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-normal"), (100, "-wide")]  # noqa: RUF012

    def __init__(
        self,
        engine: Engine,
        title: str,
        text: str | TextReader,
        window: int | None,
        options: ChatOptions,
        against: Callable[[], Engine] | None = None,
        against_name: str = "",
    ) -> None:
        super().__init__(options)
        reader = text if isinstance(text, TextReader) else TextReader.of(engine, text, window)
        self.thread = ReaderThread(
            engine, reader, lambda error: self.call_from_thread(self.reading.fail, error)
        )
        spell = reader.spell if isinstance(reader, RecordReader) else engine.tokenizer.token_bytes
        self.reading = ReaderScreen(
            title, reader, self.thread, spell, self.keymap, Path.cwd(), against, against_name
        )

    def on_mount(self) -> None:
        """Open the reader; scoring begins after the first frame."""
        self.push_screen(self.reading, lambda _: self.leave(0))
        self.call_after_refresh(self.thread.start)

    def action_leave(self) -> None:
        """End the program."""
        self.leave(0)
