"""The progress of a command's waits, on stderr."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ropechat.cli.exit_codes import say
from ropechat.cli.option_groups import option
from ropechat.util.progress import Progress, Wait, Watch
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

T = TypeVar("T")
MODES = ("line", "json", "none")
_POLL_S = 0.1
_QUIET_S = 0.5  # shorter waits are not shown
_JSON_S = 0.5
_BAR_CELLS = 20
_NARROW = 60  # columns below which the line has no bar


progress_option = option(
    "--progress",
    type=click.Choice(MODES),
    default="line",
    expert=True,
    help="Show on stderr how far the work is: as a line (on a terminal only), as JSON lines, or not.",
)


def terminal_width() -> int:
    import shutil  # imported here: it loads three compression libraries

    return shutil.get_terminal_size().columns


class ProgressLine:
    """One line for all waits of a command: drawn on a terminal, as JSON lines, or not at all.

    mode: one of MODES; `line` writes nothing where stderr is no terminal.
    """

    def __init__(self, mode: str = "line") -> None:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self.mode = "none" if mode == "line" and not is_terminal else mode
        self._begun = self._shown = time.monotonic()
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._lock = threading.RLock()

    def show(self, wait: Wait) -> None:
        """Show how far a wait is, if it is time to."""
        now = time.monotonic()
        pause = _JSON_S if self.mode == "json" else _POLL_S
        if self.mode == "none" or now - self._begun < _QUIET_S or now - self._shown < pause:
            return
        self._shown = now
        if self.mode == "json":
            say(json.dumps(self._record(wait)))
        else:
            with self._lock, contextlib.suppress(OSError, ValueError):  # a closed terminal
                self._draw(wait)

    def _record(self, wait: Wait) -> dict[str, Any]:
        """The object of a JSON line."""
        return wait.record()

    def note(self, text: str) -> None:
        """Write a message above the line."""
        with self.aside():
            say(text)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Remove the line while the body writes to the terminal."""
        with self._lock:
            self.clear()
            yield

    def clear(self) -> None:
        """Remove the line; the next wait is a new one."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._begun = time.monotonic()
            bars, self._bars = self._bars, None
            if bars is not None:
                bars.stop()

    def watch(self, read: Callable[[], Progress | None]) -> contextlib.AbstractContextManager[None]:
        """Show a wait while the body runs. read: how far it is; called from another thread."""
        return self.follow(Watch(read).look)

    @contextlib.contextmanager
    def follow(self, look: Callable[[], Wait | None]) -> Iterator[None]:
        """Show what `look` returns while the body runs; it is called from another thread."""
        if self.mode == "none":
            yield
            return
        over = threading.Event()

        def repeat() -> None:
            while not over.wait(_POLL_S):
                wait = look()
                if wait is not None:
                    self.show(wait)
                elif self._bars is not None:
                    self.clear()

        thread = threading.Thread(target=repeat, name="ropechat-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.clear()

    def until_first(
        self, read: Callable[[], Progress | None], items: Iterable[T], is_shown: Callable[[T], object] = bool
    ) -> Iterator[T]:
        """Yield the items, and show the wait for the first one that `is_shown` says is on the screen."""
        found, first = iter(items), list[T]()
        with self.watch(read):
            for item in found:
                if is_shown(item):
                    first = [item]
                    break
                yield item
        yield from first
        yield from found

    def _draw(self, wait: Wait) -> None:
        stage, done, total, *_ = wait.progress
        text = one_line(" · ".join(wait.words()))
        if self._bars is None:
            self._bars = _make_bars()
            self._task = self._bars.add_task(stage, total=total, completed=int(done), words=text)
            self._bars.start()
        assert self._task is not None
        self._bars.update(self._task, description=stage, completed=done, total=total, words=text)
        self._bars.refresh()


def _make_bars() -> "Bars":
    # Imported here: most waits are too short to be shown.
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    def text(field: str) -> TextColumn:
        return TextColumn(f"{{task.{field}}}", markup=False, table_column=Column(no_wrap=True))

    bar = [BarColumn(_BAR_CELLS)] if terminal_width() >= _NARROW else []
    return Bars(
        *(text("description"), *bar, text("fields[words]")),
        console=Console(file=sys.stderr, highlight=False),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
