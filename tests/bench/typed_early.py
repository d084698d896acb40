"""Keys that are typed while the chat starts: how many of them are lost, on the real program.

    python tests/bench/typed_early.py [STARTS]

Each start is given 100 keys, the last of them enter, from 50 ms to 2 s after the process was begun. What was
asked is read from the store afterwards: keys that are not there, or not in order, are counted as lost.
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import zip_longest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

from program import Program  # noqa: E402

from ropechat.store.store import Store  # noqa: E402

FIRST, LAST, KEYS = 0.05, 2.0, 100
QUESTION = "".join(chr(ord("a") + n % 26) for n in range(KEYS - 1))


def started(folder: Path, *arguments: str) -> Program:
    """The chat with the built-in model; everything it keeps is in a folder."""
    places = {name: str(folder / name.lower()) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    options = ("chat", "--threads", "1", "--max-tokens", "4", *arguments)
    return Program(options, ROPECHAT_DATA=str(folder / "data"), **places)


def asked(folder: Path) -> list[str]:
    """What was asked, the oldest first."""
    store = Store(folder / "data" / "conversations")
    try:
        return store.questions(10).result(10)
    finally:
        store.close()


def ended(program: Program, answers: int = 1) -> None:
    """Wait until questions were answered, then leave."""
    for _ in range(answers):
        program.until(b"bits/token", 60)
    program.quit()


def lost(folder: Path) -> int:
    """How many keys of one start are lost."""
    program = started(folder)
    begun = time.perf_counter()
    for number, key in enumerate(QUESTION + "\r"):
        due = begun + FIRST + (LAST - FIRST) * number / (KEYS - 1)
        program.drain(max(0.0, due - time.perf_counter()))
        program.press(key.encode())
    ended(program)
    found = "".join(asked(folder)[-1:])
    return sum(one != other for one, other in zip_longest(QUESTION, found)) + (not found)


def main() -> None:
    """Count."""
    starts = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for number in range(starts):
        with tempfile.TemporaryDirectory() as folder:
            print(f"start {number + 1}: {lost(Path(folder))} of {KEYS} keys lost", flush=True)


if __name__ == "__main__":
    main()
