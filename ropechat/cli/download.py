"""A model that is not here yet: the plan, the question, the download with its progress."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.cli.exit_codes import Terminated, say
from ropechat.cli.status import StatusLine, bar, terminal_width
from ropechat.errors import NotDownloadedError
from ropechat.models.resolve import hub_name, resolve
from ropechat.tui.terminal import typeahead
from ropechat.util.text import format_bytes, format_duration

if TYPE_CHECKING:
    from ropechat.models.hub.names import HubName
    from ropechat.models.hub.plan import DownloadPlan
    from ropechat.models.hub.transfer import DownloadProgress

_LARGE = 1 << 20  # files from here on get a line of their own when they are done
_WIDE = 100  # columns from which there is room for a bar


class DownloadLine(StatusLine):
    """Bytes, rate and time left in all, and how far the largest file is that comes now."""

    def __init__(self) -> None:
        super().__init__()
        from ropechat.models.hub.progress import RateMeter

        self._speed = RateMeter()
        self._told: set[str] = set()

    def __call__(self, progress: "DownloadProgress") -> None:
        for one in progress.files:
            if one.state == "done" and one.file.size >= _LARGE and one.file.name not in self._told:
                self._told.add(one.file.name)
                self.note(f"{one.file.name}: {format_bytes(one.file.size)}")
        if self.is_due:
            self.show(progress_line(progress, self._speed.update(progress.received)))


def progress_line(progress: "DownloadProgress", rate: float) -> str:
    """One line of talk; rate in bytes per second."""
    from ropechat.models.hub.progress import describe_progress

    share = progress.done / progress.total if progress.total else 1.0
    begin = f"{bar(share)} " if terminal_width() >= _WIDE else ""
    return begin + " · ".join(describe_progress(progress, rate))


def download(name: "HubName", plan: "DownloadPlan | None" = None) -> Path:
    """Fetch a model, with its progress on stderr; returns what to load. Raises as `make_plan`, `fetch`."""
    from ropechat.models.hub.plan import make_plan
    from ropechat.models.hub.transfer import fetch

    if plan is None:
        plan = make_plan(name)
        tell(plan)
    line, begun = DownloadLine(), time.monotonic()
    try:
        path = fetch(plan, line)
    except (KeyboardInterrupt, Terminated):
        line.note(f"stopped; `ropechat models pull {name}` goes on where it was")
        raise
    finally:
        line.clear()
    say(f"{name}: complete, {format_bytes(plan.rest)} in {format_duration(time.monotonic() - begun)}")
    return path


def tell(plan: "DownloadPlan") -> None:
    """Write the plan to stderr."""
    from ropechat.engine.native import free_memory

    for line in plan.lines(free_memory()):
        say(line)


def has_dialog() -> bool:
    """Whether somebody is there to be asked."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def ask(question: str, *, default: bool) -> bool:
    """A question on stderr, answered by a line of stdin; an empty one is `default`, the end is no."""
    typeahead.release()  # a line is typed with an echo
    sys.stderr.write(f"{question} [{'Y/n' if default else 'y/N'}] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        return False
    return answer.strip().lower() in (("", "y", "yes") if default else ("y", "yes"))


def find_or_download(model: str, *, unasked: bool) -> Path:
    """What to load for a model's name. A Hub model that is not here is downloaded when it is wanted.

    On a terminal the plan is shown and a question asked; elsewhere it takes `unasked` (--download), without
    which no byte crosses the network. Raises as `models.resolve.resolve`, `make_plan` and `fetch` do.
    """
    name = hub_name(model)
    try:
        path = resolve(model)
        if name is not None and name.quant is None and path.suffix == ".gguf":
            say(f"model: {path.name}")  # the name alone does not say which of several it is
        return path
    except NotDownloadedError:
        if name is None or not (unasked or has_dialog()):
            raise
        from ropechat.models.hub.plan import make_plan

        plan = make_plan(name)
        tell(plan)
        if not unasked and not ask(f"Download {format_bytes(plan.rest)}?", default=True):
            raise
    return download(name, plan)
