"""The chat in the terminal. Textual is imported only when a chat is opened."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.chat.live import LiveChat
    from ropechat.engine.engine import Engine
    from ropechat.inspector.text_reader import TextReader
    from ropechat.store.store import Store
    from ropechat.tui.options import ChatOptions

__all__ = ["run_chat", "run_reader"]

SLOW_DISK_S = 60.0  # what a slow disk has at the end, once the user knows

# Textual reads these once, at its first import, which importing any module of this package may cause.
# ESCDELAY (ms): the bytes of an escape sequence come in one piece, so esc need not wait 100 ms for more.
# TEXTUAL_FPS: a change is drawn sooner; after a repaint Textual lets one or two frames of 1/60 s pass.
_TIMING = {
    name: value for name, value in (("ESCDELAY", "25"), ("TEXTUAL_FPS", "120")) if name not in os.environ
}
os.environ.update(_TIMING)


def _restore_environment() -> None:
    """Take the variables out again once Textual has read them: an editor or a shell must not inherit them."""
    from textual import constants, screen  # noqa: F401

    for name in _TIMING:
        os.environ.pop(name, None)


def run_chat(chat: LiveChat, resume: str | None = None, options: ChatOptions | None = None) -> int:
    """Open the chat and return the exit code once it is closed.

    The model is loaded after the first frame. resume: the id of the saved chat to open, "" for the newest.
    options: theme, tint, keys and the like. An error while loading is shown in the app, and again on stderr
    once the screen is restored.
    """
    from ropechat.chat.errors import explain
    from ropechat.tui.app import ChatApp
    from ropechat.tui.terminal import gc_pause, typeahead
    from ropechat.tui.terminal.screen import own_screen, take_short_turns
    from ropechat.tui.terminal.textual_compat import teach_alt_enter
    from ropechat.util.text import one_line

    _restore_environment()
    teach_alt_enter()
    take_short_turns()
    gc_pause.start()
    app, store = ChatApp(chat, resume, options), chat.session.recorder.store
    typeahead.hold()
    try:
        with own_screen():
            app.run()
            stopped = app.inference.shutdown()
    finally:
        typeahead.release()
    code = app.outcome
    if store is not None and not close_patiently(store):
        print(f"error: not everything is on disk: {one_line(store.trouble or 'busy')}", file=sys.stderr)
        code = code or 74
    if (error := app.crash or app.session.load_error) is not None:
        print(f"error: {explain(error)}", file=sys.stderr)
    return _leave(code, stopped)


def close_patiently(store: Store, limit: float = 2.0) -> bool:
    """Close the store; False if something is not on disk.

    After `limit` seconds the user is told that the disk is slow, and the disk has another minute; Ctrl-C
    leaves at once.
    """
    if store.close(limit):
        return True
    if store.trouble:  # waiting does not help
        return False
    with contextlib.suppress(OSError, KeyboardInterrupt):  # OSError: the terminal is gone
        print("saving the chat: the disk is slow; Ctrl-C leaves without what is not on disk", file=sys.stderr)
    with contextlib.suppress(KeyboardInterrupt):
        return store.close(SLOW_DISK_S)
    return False


def run_reader(
    engine: Engine,
    title: str,
    text: str | TextReader,
    window: int | None,
    options: ChatOptions,
    against: Callable[[], Engine] | None = None,
    against_name: str = "",
) -> int:
    """Open a text in the reader and return the exit code once it is closed.

    text: one that a `TextReader` reads; a record, whose engine is `NoEngine`, is a reader of its own.
    against: loads the model that `c` compares with. against_name: what it is called.
    """
    from ropechat.chat.errors import explain
    from ropechat.tui.reader_app import ReaderApp
    from ropechat.tui.terminal import typeahead
    from ropechat.tui.terminal.screen import own_screen, take_short_turns

    _restore_environment()
    take_short_turns()
    app = ReaderApp(engine, title, text, window, options, against, against_name)
    typeahead.hold()
    try:
        with own_screen():
            app.run()
            stopped = app.thread.close()
    finally:
        typeahead.release()
    if app.crash is not None:
        print(f"error: {explain(app.crash)}", file=sys.stderr)
    return _leave(app.outcome, stopped)


def _leave(code: int, stopped: bool) -> int:
    """Return the exit code. stopped: whether no native code runs any more."""
    if not stopped:  # unwinding the interpreter under running native code could hang or crash
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
