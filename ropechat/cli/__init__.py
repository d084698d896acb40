"""The command line. `main` is the entry point; each command has its own file, imported on use."""

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["entry", "main"]

_COMPLETE = "_ROPECHAT_COMPLETE"  # set by a shell that completes a line, or wants the script that does
_YOUNG = 50_000
"""Allocations until a garbage collection: a start makes half as many objects, none of them garbage."""


def entry() -> NoReturn:
    """The program `ropechat`: `main`, then the end of the process.

    Python would take all modules and objects apart first, during which a stop seems not to work: 50 to 150 ms
    on a busy machine. Nothing needs it: files are closed, and exit handlers and threads are waited for here.
    """
    import atexit
    import threading

    if sys.getfilesystemencoding() == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        # A locale without UTF-8, and Python's own way out is turned off: begin again with it.
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    code = main()
    try:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
    finally:
        os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    0 success, 2 usage error or invalid input, 3 finished but some lines failed, 4 model not found or not
    available, 70 a bug in ropechat, 74 input or output failed, 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM.
    """
    if _COMPLETE in os.environ:
        return _complete()
    from ropechat.cli.route import with_command

    gc.set_threshold(_YOUNG)
    try:
        given = with_command(sys.argv[1:] if arguments is None else arguments)
        if given[0] != "chat":
            return _run(given)
        from ropechat.tui.terminal import typeahead

        typeahead.hold()  # first of all: keys typed from now on are kept for the chat
        try:
            return _run(given)
        finally:
            typeahead.release()
    except KeyboardInterrupt:  # during imports
        return 130


def _complete() -> int:
    """Let click write the completions, or the script."""
    from ropechat.cli.completion import register
    from ropechat.cli.group import ropechat

    register()

    try:
        ropechat.main(prog_name="ropechat", complete_var=_COMPLETE)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def _run(arguments: list[str]) -> int:
    from ropechat.cli.exit_codes import run_command
    from ropechat.cli.group import ropechat

    return run_command(ropechat, arguments)
