"""Does the progress of every wait move, and is its estimate right? The real program, as a terminal shows it.

    python tests/bench/captures.py [-m MODEL | --shape NAME [--dtype q4_k_m]] [--tokens 2000]
                                   [--commands chat,run,inspect,batch] [--screens FILE] [--json]

Of each wait (loading, packing, reading, ...) of at least 2 s: how long it lasts, how often a second what is
shown changes, the longest pause, when the first estimate comes, and by how much it is off after a third of
the wait, in percent. The chat runs in tmux, the others in a pseudo-terminal; then once more in a pipe, where
stderr must have no progress. --screens: a file for the screens of the chat, one each half second.

The exit code is 1 when something moves less than twice a second, or an estimate comes after 1 s of a wait, or
is off by more than 25 %, or a pipe gets progress. Estimates are shown in whole seconds: half a second is
granted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

from program import ROOT, Program  # noqa: E402
from subject import add_options, chosen  # noqa: E402
from terminal import Tmux  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LEAST_S = 2.0  # shorter waits are not judged
PER_SECOND, FIRST_S, ERROR = 2.0, 1.0, 25.0
QUIET_S = 0.5  # of a wait, in which nothing is shown
LIMIT_S = 3600.0
PHRASE = "and the cat saw a big red dog "
STAGES = "loading|packing|reading|scoring|batch"
SHOWN = re.compile(rf"({STAGES})[ ━╸╺─]+((?:[\d.,]+(?: [kMG]?B)?) of [^\n]*)")
LEFT = re.compile(r"(?:(\d+) h )?(?:(\d+) min )?(?:(\d+) s )?left")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


class Seen(NamedTuple):
    """What a terminal shows of a wait at a time."""

    at: float
    stage: str
    text: str


class Wait(NamedTuple):
    """What is judged of a wait: seconds, changes a second, longest pause, first estimate, error in %."""

    stage: str
    seconds: float
    per_second: float
    pause: float
    first: float | None
    error: float | None

    @property
    def missed(self) -> list[str]:
        """The gates that it misses."""
        found = ["moves"] if self.per_second < PER_SECOND else []
        found += ["first"] if self.first is None or self.first > FIRST_S else []
        return [*found, *(["error"] if self.error is None or self.error > ERROR else [])]


def parse(at: float, text: str) -> Iterator[Seen]:
    """The waits in what a terminal shows."""
    for stage, words in SHOWN.findall(CONTROL.sub("", text)):
        yield Seen(at, stage, words.strip())


def seconds_left(text: str) -> float | None:
    """The estimate in a text."""
    found = LEFT.search(text)
    if found is None or not any(found.groups()):
        return None
    hours, minutes, seconds = (int(group or 0) for group in found.groups())
    return 3600.0 * hours + 60.0 * minutes + seconds


def waits_of(seen: Iterable[Seen], begun: float) -> Iterator[Wait]:
    """The waits, one after the other. begun: when the first one began."""
    groups: list[list[Seen]] = []
    for one in seen:
        if not groups or groups[-1][-1].stage != one.stage:
            groups.append([])
        groups[-1].append(one)
    for shown in groups:
        start = max(begun, shown[0].at - QUIET_S)
        end = shown[-1].at
        begun = end
        if end - start >= LEAST_S:
            yield judge(shown, start, end)


def judge(shown: list[Seen], start: float, end: float) -> Wait:
    """One wait. Shown once and again, a text has not changed."""
    changes = [shown[0].at]
    for before, one in pairwise(shown):
        if one.text != before.text:
            changes.append(one.at)
    pauses = [second - first for first, second in zip(changes, [*changes[1:], end], strict=True)]
    estimates = [(one.at, left) for one in shown if (left := seconds_left(one.text)) is not None]
    after = [(at, left) for at, left in estimates if at >= start + (end - start) / 3]
    error = None
    if after:
        at, left = after[0]
        error = 100 * max(0.0, abs(left - (end - at)) - 0.5) / (end - at) if end > at else 0.0
    first = estimates[0][0] - start if estimates else None
    seconds = end - changes[0]
    return Wait(shown[0].stage, end - start, len(changes) / max(seconds, 0.01), max(pauses), first, error)


def of_chat(model: str, dtype: str, text: str, screens: Path | None) -> list[Wait]:
    """The load of a chat, and the reading of a pasted text."""
    with tempfile.TemporaryDirectory() as folder:
        tmux = Tmux(Path(folder), (120, 40))
        kept: list[str] = []
        try:
            words = [sys.executable, "-c", "import sys; from ropechat.cli import main; sys.exit(main())"]
            options = ["chat", "-m", model, "--dtype", dtype, "--incognito", "--max-tokens", "8"]
            tmux.type(shlex.join([*words, *options, "--context", str(len(text) + 512)]))
            tmux.press("Enter")
            begun = time.monotonic()
            seen = list(_watch(tmux, lambda screen: "● ready" in screen, kept))
            found = list(waits_of(seen, begun))
            (Path(folder) / "text").write_text(text)
            tmux("load-buffer", str(Path(folder) / "text"))
            tmux("paste-buffer", "-p")
            tmux.press("Enter")
            begun = time.monotonic()
            seen = list(_watch(tmux, lambda screen: "tok/s" in screen and "bits/token" in screen, kept))
            return [*found, *waits_of(seen, begun)]
        finally:
            tmux("kill-server")
            if screens is not None:
                screens.write_text("\n\f\n".join(kept))


def _watch(tmux: Tmux, is_over: Any, kept: list[str]) -> Iterator[Seen]:
    """Capture ten times a second; keep a screen each half second."""
    end, last = time.monotonic() + LIMIT_S, 0.0
    while (now := time.monotonic()) < end:
        screen = tmux.screen()
        if now - last >= 0.5:
            last = now
            kept.append(screen)
        if is_over(screen):
            return
        yield from parse(now, screen)
        time.sleep(max(0.0, now + 0.1 - time.monotonic()))
    raise SystemExit(f"the wait is not over after {LIMIT_S:.0f} s:\n{screen}")


def of_command(arguments: list[str]) -> list[Wait]:
    """The waits of a command in a terminal."""
    begun = time.monotonic()
    program = Program(arguments, ROPECHAT_CACHE="off")
    seen: list[Seen] = []
    while program.child.poll() is None:
        if data := program.drain(0.02):
            seen += parse(time.monotonic(), data.decode("utf-8", "replace"))
        if time.monotonic() - begun > LIMIT_S:
            program.child.kill()
    os.close(program.master)
    if program.child.returncode:
        raise SystemExit(f"{arguments[0]} ended with {program.child.returncode}")
    return list(waits_of(seen, begun))


def piped(arguments: list[str]) -> str:
    """What stderr has of progress in a pipe."""
    code = "import sys; from ropechat.cli import main; sys.exit(main())"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "ROPECHAT_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environ, timeout=LIMIT_S
    )
    return "".join(one.text for one in parse(0.0, done.stderr))


def commands_of(model: str, dtype: str, text: str, folder: Path) -> dict[str, list[str]]:
    """The command lines."""
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{n} {text[: len(text) // 4]}"}) + "\n" for n in range(4))
    )
    (folder / "text.txt").write_text(text)
    options = ["-m", model, "--dtype", dtype, "--context", str(len(text) + 512)]
    few = ["--max-tokens", "2", "--seed", "1"]
    return {
        "run": ["run", *options, *few, text],
        "inspect": ["inspect", *options, "-f", str(folder / "text.txt"), "-o", str(folder / "out.jsonl")],
        "batch": [
            "batch",
            str(folder / "rows.jsonl"),
            *options,
            *few,
            "-o",
            str(folder / "out"),
            "--overwrite",
        ],
    }


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--commands", default="chat,run,inspect,batch")
    parser.add_argument("--screens", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    model, dtype = chosen(given)
    text, failed = text_of(model, given.tokens), False
    with tempfile.TemporaryDirectory() as folder:
        lines = commands_of(model, dtype, text, Path(folder))
        for name in given.commands.split(","):
            found = of_chat(model, dtype, text, given.screens) if name == "chat" else of_command(lines[name])
            for wait in found:
                failed |= bool(wait.missed)
                print(
                    json.dumps({"command": name, **wait._asdict()}) if given.json else row(name, wait),
                    flush=True,
                )
            if name != "chat" and (noise := piped(lines[name])):
                failed = True
                print(f"{name}: a pipe gets progress: {noise!r:.100}")
    return int(failed)


def text_of(model: str, tokens: int) -> str:
    """A text of about so many tokens."""
    from ropechat.engine.loading import load_tokenizer
    from ropechat.engine.native import gguf_metadata, load_core
    from ropechat.models.resolve import resolve

    path = resolve(model)
    vocab_size = load_core().read_config(str(path))["vocab_size"]
    each = len(load_tokenizer(path, vocab_size, gguf_metadata).encode(PHRASE * 8)) / 8
    return (PHRASE * max(1, round(tokens / each))).strip()


def row(command: str, wait: Wait) -> str:
    """A wait in a line."""
    first = "none" if wait.first is None else f"{wait.first:.1f} s"
    error = "none" if wait.error is None else f"{wait.error:.0f} %"
    return (
        f"{command:8} {wait.stage:8} {wait.seconds:7.1f} s  {wait.per_second:5.1f} changes/s  "
        f"pause {wait.pause:.1f} s  first estimate {first}  off by {error}  {' '.join(wait.missed)}"
    )


if __name__ == "__main__":
    sys.exit(main())
