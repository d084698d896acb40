"""`/inspect FILE`: a text in the reader, over the chat."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropechat.chat.reading import SharedWorker
from ropechat.inspector.text_reader import TextReader
from ropechat.util.text import format_bytes, one_line

if TYPE_CHECKING:
    from ropechat.chat.live import LiveChat
    from ropechat.engine.engine import Engine
    from ropechat.tui.controllers.view import View

MAX_BYTES = 64 << 20


class ReaderController:
    """Opens texts in the reader."""

    def __init__(self, chat: LiveChat, view: View) -> None:
        self._chat, self._view = chat, view

    def open(self, words: str) -> None:
        """Read the named file, and show it."""
        try:
            path = Path(os.path.expanduser(words.strip()))
            text = _read(path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._view.hint(one_line(f"{words.strip()}: {reason}"))
            return
        app, worker = self._view.app, SharedWorker(self._chat.inference)

        def job(engine: Engine) -> tuple[TextReader, Any]:
            return TextReader.of(engine, text), engine.token_bytes

        worker.submit(job, lambda result: app.call_from_thread(self._show, path.name, worker, result))

    def _show(self, title: str, worker: SharedWorker, result: Any) -> None:
        from ropechat.tui.screens.reader import ReaderScreen

        if isinstance(result, BaseException):
            self._view.hint(one_line(f"{title}: {result}"))
            return
        app, (reader, spell) = self._view.app, result
        screen = ReaderScreen(title, reader, worker, spell, self._view.keymap, Path.cwd())
        worker.failed = lambda error: app.call_from_thread(screen.fail, error)
        app.push_screen(screen, lambda _: self._closed(worker))
        worker.read(reader)

    def _closed(self, worker: SharedWorker) -> None:
        worker.close()
        self._view.write()


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
