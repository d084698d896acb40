"""Running a command: every failure becomes one line on stderr and an exit code."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import IO

import click

from ropechat.cli.interrupt import signals_watched
from ropechat.errors import RopechatError, Terminated
from ropechat.util.text import is_unicode, one_line

OK = 0
CHECK_FAILED = 1  # a limit that was asked for, such as --max-kl, was passed
REFUSED = 2
SOME_FAILED = 3
BUG = 70
IO_FAILED = 74
INTERRUPTED = 130
EXIT_CODES = {
    OK: "done",
    CHECK_FAILED: "a limit that was asked for was passed (`compare --max-kl`, `inspect --fail-below`), or "
    "`doctor` found something that does not work",
    REFUSED: "usage, or the input was refused, also a path without a model",
    SOME_FAILED: "finished, but some lines failed",
    4: "a model given by name is not on this machine, or cannot be downloaded",
    BUG: "a bug in ropechat",
    IO_FAILED: "input or output failed",
    129: "SIGHUP",
    INTERRUPTED: "Ctrl-C",
    143: "SIGTERM",
}
"""What each code says, for people."""

_arrived: list[BaseException] = []
"""What the signals of this command raised."""


def _terminate(number: int, frame: FrameType | None) -> None:
    _arrived.append(KeyboardInterrupt() if number == signal.SIGINT else Terminated(128 + number))
    raise _arrived[-1]


def check_signals() -> None:
    """Raise what a signal raised before, if that was lost.

    Python drops an exception that is raised in a callback, such as those of imports. Called before the work
    begins, so that a signal during the start ends the command.
    """
    if _arrived:
        raise _arrived[-1]


@contextlib.contextmanager
def _ending_signals() -> Iterator[None]:
    """While a command runs, SIGTERM and SIGHUP raise Terminated, so that resources are released.

    SIGINT raises KeyboardInterrupt as usual; what was raised is kept for `check_signals`.

    Signals ignored by the caller, as with `nohup`, stay ignored.
    """
    before = {}
    _arrived.clear()
    try:
        with contextlib.suppress(ValueError):  # not the main thread: signals are handled elsewhere
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                found = signal.getsignal(number)
                usual = signal.default_int_handler if number == signal.SIGINT else found
                if found not in (signal.SIG_IGN, None) and found is usual:
                    before[number] = found
                    signal.signal(number, _terminate)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(text: str) -> None:
    """Write one line to stderr, safe for a terminal; errors of a closed stderr are ignored."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(one_line(text) + "\n")
        sys.stderr.flush()


def fail(text: str, code: int) -> int:
    """Print an error; return its exit code."""
    say(f"error: {text}")
    return code


def run_command(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a click command and turn every outcome into an exit code."""
    is_chat = arguments[:1] == ["chat"]  # which must leave the terminal as it was
    try:  # around the handlers: a signal may come as soon as there is one
        with _ending_signals(), contextlib.nullcontext() if is_chat else signals_watched():
            code = _outcome(command, arguments)
            _flush(sys.stdout)
    except BrokenPipeError:
        code = OK  # the reader closed the pipe, like `head`
    except OSError as error:
        code = fail(f"stdout: {error.strerror or error}", IO_FAILED)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Terminated as stop:
        code = stop.code
    _silence(sys.stdout)
    _silence(sys.stderr)
    return code


def _outcome(command: click.Command, arguments: Sequence[str]) -> int:
    try:
        # Not command.main(), which prints and exits on Ctrl-C and on a closed pipe.
        with command.make_context("ropechat", list(arguments)) as made:
            result = command.invoke(made)
        return result if isinstance(result, int) else OK
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Terminated as stop:
        return stop.code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else OK
    except click.exceptions.NoArgsIsHelpError as shown:  # a group of commands without one
        click.echo(shown.format_message())
        return OK
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return fail(f"{error.format_message()}{hint}", REFUSED)
    except RopechatError as error:
        _traceback_if_wanted()
        return fail(str(error), error.exit_code)
    except BrokenPipeError:
        raise
    except OSError as error:
        _traceback_if_wanted()
        return fail(f"{error.filename or 'stdout'}: {error.strerror or error}", IO_FAILED)
    except MemoryError:
        return fail("memory: out of memory; use a smaller model or --context", REFUSED)
    except UnicodeEncodeError as error:
        _traceback_if_wanted()
        if is_unicode(error.object):  # a stream of another encoding
            return fail(f"stdout: {error}", IO_FAILED)
        return fail(f"{error.object!r:.60}: must be valid Unicode (got a lone surrogate)", REFUSED)
    except BaseException as error:
        # Also PyO3's PanicException, which is not an Exception.
        cause = error.__cause__
        if cause is not None and cause in _arrived:  # before 3.12 a RuntimeError in a class body
            return cause.code if isinstance(cause, Terminated) else INTERRUPTED
        _traceback_if_wanted()
        what = f"{type(error).__name__}: {error}"
        return fail(f"a bug in ropechat: {what}; ROPECHAT_DEBUG=1 shows where", BUG)


def _traceback_if_wanted() -> None:
    if os.environ.get("ROPECHAT_DEBUG"):
        import traceback

        traceback.print_exc()


def _flush(stream: IO[str] | None) -> None:
    if stream is not None and not stream.closed:
        stream.flush()


def _silence(stream: IO[str] | None) -> None:
    """Discard buffered output of a closed pipe, so that the interpreter's exit does not raise again."""
    if stream is None or stream.closed:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, stream.fileno())
            os.close(sink)
