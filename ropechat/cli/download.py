"""Downloading a missing model: the plan, the confirmation, and the progress."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.cli.exit_codes import say
from ropechat.cli.status import ProgressLine
from ropechat.errors import NotDownloadedError, Terminated
from ropechat.models.resolve import BUILTIN, hub_name, resolve
from ropechat.tui.terminal import typeahead
from ropechat.util.text import format_bytes, format_duration

if TYPE_CHECKING:
    from ropechat.models.hub.names import HubName
    from ropechat.models.hub.plan import DownloadPlan
    from ropechat.models.hub.transfer import DownloadProgress

_LARGE = 1 << 20  # files of at least this size get a line when complete


class DownloadLine(ProgressLine):
    """The progress of a download: bytes, rate, time left, and the largest file in progress."""

    def __init__(self) -> None:
        super().__init__()
        from ropechat.models.hub.progress import RateMeter

        self._speed = RateMeter()
        self._told: set[str] = set()

    def __call__(self, progress: "DownloadProgress") -> None:
        from ropechat.models.hub.progress import to_wait

        for one in progress.files:
            if one.state == "done" and one.file.size >= _LARGE and one.file.name not in self._told:
                self._told.add(one.file.name)
                self.note(f"{one.file.name}: {format_bytes(one.file.size)}")
        self.show(to_wait(progress, self._speed.update(progress.received)))


def plan_download(name: "HubName", *, from_index: bool = False) -> "DownloadPlan":
    """Plan a download, and write the plan to stderr. Raises as `make_plan`."""
    from ropechat.engine.native import free_memory
    from ropechat.models.download import make_plan

    plan = make_plan(name, from_index=from_index, on_note=lambda reason: say(f"note: {reason}"))
    for line in plan.lines(free_memory()):
        say(line)
    return plan


def download(plan: "DownloadPlan") -> Path:
    """Download a model with progress on stderr; return its path. Raises as `fetch`."""
    from ropechat.models.download import fetch

    name = plan.name
    line, begun = DownloadLine(), time.monotonic()
    try:
        path = fetch(plan, line)
    except (KeyboardInterrupt, Terminated):
        goes_on = "resumes" if plan.resumes else "begins again"
        line.note(f"stopped; `ropechat models pull {name}` {goes_on}")
        raise
    finally:
        line.clear()
    say(f"{name}: complete, {format_bytes(plan.rest)} in {format_duration(time.monotonic() - begun)}")
    return path


def get_first(model: str, folders: Sequence[Path] = ()) -> None:
    """Download a model if it is not on this machine, after one line that says how large it is.

    folders: as for `find_or_download`. Raises as `models.resolve.resolve`, `make_plan` and `fetch` do.
    """
    from ropechat.models.download import make_plan

    try:
        resolve(model, folders)
    except NotDownloadedError:
        name = hub_name(model)
        if name is None:
            raise
        plan = make_plan(name)
        size = format_bytes(plan.rest)
        say(f"{model}: downloading {size}, once (not wanted: make chat MODEL=builtin)")
        download(plan)


def has_dialog() -> bool:
    """Whether questions are possible: stdin and stderr are terminals."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def ask(question: str, *, default: bool) -> bool:
    """Ask a question on stderr and read a line from stdin; empty means `default`, end of file no."""
    typeahead.release()  # echo the typed answer
    sys.stderr.write(f"{question} [{'Y/n' if default else 'y/N'}] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        return False
    return answer.strip().lower() in (("", "y", "yes") if default else ("y", "yes"))


def find_or_download(model: str, *, unasked: bool, folders: Sequence[Path] = ()) -> Path:
    """The path of a model. A missing Hub model is downloaded with the user's consent.

    folders: where other models are, as for `models.resolve.resolve`.

    On a terminal the plan is shown and a question asked; elsewhere `unasked` (--download) is required, and
    without it the network is not used. Raises as `models.resolve.resolve`, `make_plan` and `fetch` do.
    """
    name = hub_name(model)
    try:
        path = resolve(model, folders)
        if model != BUILTIN and "/" not in model and not Path(model).exists():
            say(f"model: {path}")  # a short name, or one of another program
        elif name is not None and name.quant is None and path.suffix == ".gguf":
            say(f"model: {path.name}")  # the name does not identify one of several GGUF files
        return path
    except NotDownloadedError:
        if name is None or not (unasked or has_dialog()):
            raise
        plan = plan_download(name)
        if not unasked and not ask(f"Download {format_bytes(plan.rest)}?", default=True):
            raise
    return download(plan)
