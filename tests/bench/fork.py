"""From the key that forks an answer to its first new token on the terminal: the real program on a pty.

    python tests/bench/fork.py [-m MODEL] [--by inspector|sheet] [--forks 20] [--tokens 1000] [--threads N]
                               [--json]

An answer of so many tokens is forked at its end by a digit in the inspector, or near it by enter in the
sheet of /fork, again and again; each new answer is stopped soon. Without -m: the built-in weights (see
endless.py). Medians of the milliseconds from the key until

    action    the app takes the key
    asked     the new answer is begun, and the model asked
    heard     the thread that owns the model has read the prompt
    spelled   it knows the text that the answer begins with
    made      there is a new token
    taken     the app has it
    drawn     it is on the terminal

The exit code is 1 when the median of the last is over 50.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).parents[1] / "support"),
    str(Path(__file__).parents[2]),
    str(Path(__file__).parent),
]

from endless import BUSY, IDLE, endless  # noqa: E402
from program import OWN_TERMINAL, Program  # noqa: E402

LIMIT = 50.0
PATIENCE = 10.0  # seconds
BEFORE = 60  # answers that may stand before the newest
STAGES = ("action", "asked", "heard", "spelled", "made", "taken", "drawn")
CODE = f"{OWN_TERMINAL}sys.path.insert(0, {str(Path(__file__).parent)!r}); import fork; fork.chat()"


def chat() -> None:
    """The program; says on the file $SAYS when an answer that forks comes to each stage."""
    import ropechat.tui  # noqa: F401  # before textual, which reads the timing that it sets
    from textual.drivers.linux_driver import LinuxDriver  # isort: skip

    from ropechat.chat import events as ev
    from ropechat.chat import inference
    from ropechat.chat.session import Session
    from ropechat.cli import main
    from ropechat.tui.features.answers import AnswersFeature

    file = os.open(os.environ["SAYS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    waiting: list[str] = []  # stages to come

    def reached(stage: str, at: float | None = None) -> None:
        if stage in waiting:
            waiting.remove(stage)
            os.write(file, f"{stage} {at or time.monotonic()}\n".encode())

    def marked(before: str, inner: Callable[..., Any], after: str) -> Callable[..., Any]:
        def outer(*arguments: Any) -> Any:
            reached(before)
            result = inner(*arguments)
            reached(after)
            return result

        return outer

    fork, apply, write = AnswersFeature._fork, Session.apply, LinuxDriver.write

    def forked(self: AnswersFeature, *arguments: Any) -> None:
        waiting[:] = STAGES
        marked("action", fork, "asked")(self, *arguments)

    def applied(self: Session, event: ev.EngineEvent) -> bool:
        taken = apply(self, event)
        if isinstance(event, ev.TokenGenerated):
            reached("made", event.at)
            reached("taken")
        return taken

    def written(self: LinuxDriver, data: str) -> None:
        write(self, data)
        if "taken" not in waiting:
            reached("drawn")

    AnswersFeature._fork, Session.apply, LinuxDriver.write = forked, applied, written  # type: ignore[method-assign]
    inference.prefix_steps = marked("heard", inference.prefix_steps, "spelled")
    sys.exit(main())


class Timed(Program):
    """Knows when each piece of output came."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.came: list[float] = []
        super().__init__(*arguments, **options)

    def _read(self, seconds: float) -> bytes:
        data = super()._read(seconds)
        if data:
            self.came.append(time.monotonic())
        return data


def by_inspector(screen: Timed, place: int) -> bytes:
    """Inspect the last token of the first answer; the key that takes the second alternative."""
    for keys in (b"\x1b", b"\x1b[D", b"[" * BEFORE, b"h", b"\x1bOS"):  # an arrow makes letters commands
        screen.press(keys)
        while screen.drain(0.1):  # until all is drawn; longer, and what the keys need has cooled down
            pass
    return b"2"


def by_sheet(screen: Timed, place: int) -> bytes:
    """List the alternatives of a token; the key that takes the second."""
    screen.press(f"/fork {place}\r".encode())
    screen.until(b"fork here", 10)
    screen.drain(0.1)
    return b"\r"


WAYS = {"inspector": (by_inspector, b"\x1b"), "sheet": (by_sheet, b"\x03")}  # and what stops the answer


def once(screen: Timed, says: Path, way: str, place: int) -> dict[str, float]:
    """Fork, and stop the new answer; the milliseconds to each stage."""
    says.write_text("")
    prepare, stop = WAYS[way]
    key = prepare(screen, place)
    pressed = time.monotonic()
    screen.press(key)
    while "drawn" not in (said := says.read_text()):
        screen.drain(0.05)
        if time.monotonic() > pressed + PATIENCE:
            raise SystemExit(f"no fork within {PATIENCE} s, only: {said!r}")
    screen.drain(0.3)
    screen.press(stop)
    screen.drain(0.8)  # until what was counted and written down meanwhile is done
    stages = {name: float(at) for name, at in map(str.split, said.splitlines())}
    stages["drawn"] = next(at for at in screen.came if at >= stages["drawn"])
    return {name: 1000 * (stages[name] - pressed) for name in STAGES}


def measure(model: str, way: str, forks: int, tokens: int, threads: int, folder: Path) -> dict[str, float]:
    """The figures of one run."""
    says = folder / "says"
    arguments = ["chat", "-m", model, "--threads", str(threads), "--seed", "1", "--max-tokens", str(tokens)]
    environ = {"ROPECHAT_DATA": str(folder / "data"), "SAYS": str(says)}
    screen = Timed([*arguments, "--context", str(3 * tokens)], CODE, (40, 160), **environ)
    screen.until(b"ready", 120)
    screen.press(b"go\r")
    screen.until(BUSY, 60)
    screen.until(IDLE, 600)
    screen.drain(1.0)
    rows = [once(screen, says, way, tokens - 10) for _ in range(forks)]
    screen.quit()
    found = {name: sorted(row[name] for row in rows) for name in STAGES}
    figures = {name: values[len(values) // 2] for name, values in found.items()}
    figures["drawn p99"] = found["drawn"][min(forks - 1, int(forks * 0.99))]
    return {name: round(value, 1) for name, value in figures.items()}


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model")
    parser.add_argument("--by", choices=WAYS, default="inspector")
    parser.add_argument("--forks", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or str(endless(Path(folder) / "model"))
        found = measure(model, args.by, args.forks, args.tokens, args.threads, Path(folder))
    print(
        json.dumps(found) if args.json else "  ".join(f"{name} {value} ms" for name, value in found.items())
    )
    return int(found["drawn"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
