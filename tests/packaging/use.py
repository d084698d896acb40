"""Install a wheel into a fresh environment and use it there: no Rust, no checkout, no network.

    python tests/packaging/use.py dist/*.whl [--wheelhouse FOLDER]    # `make wheel-test`

Dependencies come from the package index, or from the folder; what follows has no network (on Linux, by a
network namespace). Needs only the standard library, so that any Python runs it. Raises AssertionError.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 120.0


class Installed:
    """ropechat in an environment of its own below `folder`, started in an empty folder with an empty home."""

    def __init__(self, folder: Path, wheel: Path, wheelhouse: Path | None) -> None:
        self.bin = folder / "venv" / "bin"
        self.work, home = folder / "work", folder / "home"
        self.work.mkdir()
        home.mkdir()
        self.env = {"PATH": str(self.bin), "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        source = [] if wheelhouse is None else ["--no-index", "--find-links", str(wheelhouse)]
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
        subprocess.run([*pip, *source, str(wheel)], check=True)
        size = sum(path.stat().st_size for path in (folder / "venv").rglob("*") if path.is_file())
        print(f"installed in {time.perf_counter() - begun:.1f} s, {size / 1e6:.0f} MB")
        pages = folder / "venv" / "share" / "man" / "man1"
        assert (pages / "ropechat-run.1").is_file(), "no manual pages"
        self.offline = without_network()
        print("network: " + ("none" if self.offline else "not taken away: no network namespace here"))

    def __call__(self, *arguments: str) -> str:
        """stdout of `ropechat ARGUMENTS`."""
        words = [*self.offline, str(self.bin / "ropechat"), *arguments]
        begun = time.perf_counter()
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self.env, cwd=self.work
        )
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        print(f"{time.perf_counter() - begun:6.2f} s  ropechat {' '.join(arguments)[:90]}")
        return done.stdout

    def chat(self, question: str) -> None:
        """The full screen on a pseudo-terminal: a question, its answer, the end."""
        begun = time.perf_counter()
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.work)
            words = [*self.offline, str(self.bin / "ropechat"), "chat", "-m", "builtin"]
            os.execvpe(words[0], words, {**self.env, "COLUMNS": "100", "LINES": "30"})
        until(terminal, b"Type a question")
        os.write(terminal, question.encode() + b"\r")
        until(terminal, b"bits/token")  # of the answer that is complete
        os.write(terminal, b"\x11")
        until(terminal, b"\x1b[?1049l")  # the shell's screen again
        _, status = os.waitpid(child, 0)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(status) == 0
        print(f"{time.perf_counter() - begun:6.2f} s  ropechat chat")


def until(terminal: int, text: bytes) -> None:
    """Read until a text was written."""
    end, tail = time.perf_counter() + LIMIT_S, b""
    while text not in tail:
        ready = select.select([terminal], [], [], max(0, end - time.perf_counter()))[0]
        assert ready, f"{text!r} did not come: {tail!r}"
        tail = tail[-2000:] + os.read(terminal, 1 << 16)


def without_network() -> list[str]:
    """What starts a program without network; empty where that cannot be had."""
    program = shutil.which("unshare") or ""
    for options in ("-n", "-rn"):
        if program and subprocess.run([program, options, "true"], capture_output=True).returncode == 0:
            return [program, options]
    return []


def use(ropechat: Installed) -> None:
    """Every command that the README begins with."""
    begun = json.loads(ropechat("run", "hello", "--temperature", "0", "--json"))
    assert begun["text"].strip(), begun
    assert len(begun["logprobs"]) == begun["usage"]["completion_tokens"], begun
    again = ropechat("run", "hello", "--temperature", "0")
    assert again.strip() == begun["text"].strip(), "a second start answers otherwise"
    lines = ropechat("inspect", "The cat sat.", "--format", "jsonl").splitlines()
    _, *rows, after, sums = map(json.loads, lines)
    assert (len(rows), sums["scored"], after["next"]) == (5, 4, True), sums
    assert abs(sums["nll"] + sum(row["logprob"] for row in rows[1:])) < 1e-6, sums
    (ropechat.work / "in.csv").write_text("country\nJapan\nEgypt\nPeru\n")
    prompt = ("--prompt", "The capital of {{ country }}", "--max-tokens", "8")
    ropechat("batch", "in.csv", "-o", "out.jsonl", *prompt)
    answers = [json.loads(line) for line in (ropechat.work / "out.jsonl").read_text().splitlines()]
    assert [answer["ok"] for answer in answers] == [True] * 3, answers
    ropechat.chat("hello")
    kept = [json.loads(line) for line in ropechat("chats", "list", "--json").splitlines()]
    assert [chat["nodes"] for chat in kept] == [2], kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--wheelhouse", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ropechat-") as folder:
        use(Installed(Path(folder), given.wheel.resolve(), given.wheelhouse))


if __name__ == "__main__":
    main()
