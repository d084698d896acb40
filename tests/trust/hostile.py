"""Files made to harm, through the command line, with one rule: exit 70, a traceback, a panic, a signal or a
hang is a failure.

    python tests/trust/hostile.py [--only GROUP] [--json FILE]

Two sets: the corpus of the script that lies beside a checkout of the project's own machines
(`support/bad_inputs.py`), scored
strictly (the outcome, the names in the message, no control characters of the file on stdout or stderr,
nothing run, nothing of
other files shown, at most 64 MB above a valid model, of templates 256 MB), and those of `hostile_cases.py`.
Each case is a fork of
a process that has imported the program; two run at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).parent),
    str(Path(__file__).parents[1] / "support"),
    str(Path(__file__).parents[2]),
]

from bad_inputs import SCRIPT, Corpus, unsaid  # noqa: E402

import ropechat.cli.batch  # noqa: E402  forks have what they need
import ropechat.cli.chats  # noqa: E402
import ropechat.cli.config  # noqa: E402
import ropechat.cli.inspect  # noqa: E402
import ropechat.cli.models  # noqa: E402
import ropechat.cli.run  # noqa: E402
import ropechat.cli.template  # noqa: E402, F401
from ropechat.cli import main  # noqa: E402

BIDI = {*"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}
SECRET = "root:x:0:0"
DECIDED = {
    "batch/id_dup_same": 3,  # one row twice is an error of that row
    "batch/id_dup_diff": 3,
    "batch/utf16": 0,  # is recognized and read
}
"""Cases of the corpus that end otherwise than it says, by decision."""
MEGABYTES = {"batch/huge_line": 96}
"""More memory than the corpus allows, by decision: the library `tokenizers` takes some 215 bytes a token."""
PATIENCE = 10
"""Seconds on the clock per second of processor time that a case may take: other programs run too."""


@dataclass(frozen=True)
class Case:
    """A command and what is expected of it.

    codes: the exit codes that are right. said: words of which each must be in what it says. out: a file
    that is
    read as if it were said. seconds, megabytes: of processor time, of memory above a valid model. without:
    variables of the environment that are removed.
    """

    name: str
    arguments: list[str]
    codes: tuple[int, ...]
    said: Callable[[str], list[str]] = lambda text: []
    escapes: bool = False
    canary: Path | None = None
    out: Path | None = None
    seconds: float = 5.0
    megabytes: int = 64
    prepare: Callable[[], None] = lambda: None
    stdin: bytes = b""
    without: tuple[str, ...] = ()


@dataclass
class Ending:
    """How a case ended."""

    case: Case
    code: int
    hung: bool
    seconds: float
    megabytes: float
    shown: str  # on stdout and stderr
    text: str
    faults: list[str] = field(default_factory=list)


def corpus_cases(folder: Path) -> Iterator[Case]:
    """Every case of the corpus as a command."""
    corpus = Corpus(folder)
    results = folder / "results"
    results.mkdir()
    for case in corpus.all():
        if case.get("special") == "mode000" and os.geteuid() == 0:
            continue
        yield _case(corpus, case, results)


def _case(corpus: Corpus, case: dict[str, Any], results: Path) -> Case:
    path, out = corpus.folder / case["path"], results / f"{case['id'].replace('/', '-')}.jsonl"
    letter, count, end = case.get("prompt_repeat", ["", 0, ""])
    prompt = case.get("prompt") or letter * count + end or "hello the"
    context = ["--context", case["args"][1]] if "args" in case else []
    model = str(corpus.folder / case.get("model", "base"))
    batch = ["batch", "-m", model, "-o", str(out), "--quiet"]
    commands = {
        "load": ["models", "check", str(path)],
        "generate": ["run", "-m", str(path), "--max-tokens", "4", "--temperature", "0", *context, prompt],
        "render": ["template", str(path)],
        "batch": [*batch, str(path)],
        "resume": [*batch[:4], str(path / "out.jsonl"), "--quiet", "--resume", str(path / "in.jsonl")],
    }
    outcomes = {case["outcome"], case.get("also")}
    codes: tuple[int, ...] = ()
    if outcomes & {"OK", "WARN_OK"} or case.get("may_render"):
        codes += (0,)
    if any(one and one.startswith("E_") for one in outcomes) or "BATCH_ERROR" in outcomes:
        codes += (2, 4, 74)
    if "LINE_ERROR" in outcomes:
        codes += (2, 3)
    if case["id"] in DECIDED:
        codes = (DECIDED[case["id"]],)
    if case["stage"] == "resume":
        codes = (0, 2, 3)  # the outputs are in another program's form: here only the one rule counts
    names = case["stage"] != "resume" and 0 not in codes
    return Case(
        case["id"],
        commands[case["stage"]],
        codes,
        (lambda text: unsaid(case, text)) if names else lambda text: [],
        bool(case.get("no_raw_escape")),
        corpus.canary,
        out if case["stage"] == "batch" else None,
        case["limits"]["wall_s"],
        MEGABYTES.get(case["id"], case["limits"]["rss_mb_over_base"]),
    )


def run(case: Case) -> Ending:
    """Fork, run the command, wait."""
    case.prepare()
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as given:
        given.write(case.stdin)
        given.seek(0)
        begun = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _child(case, given.fileno(), said.fileno())
        hung = False
        while True:
            done, status, used = os.wait4(pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() - begun > PATIENCE * case.seconds:
                hung = True
                os.killpg(pid, signal.SIGKILL)
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what it started
        said.seek(0)
        text = said.read(1 << 22).decode("utf-8", "replace")
    shown = text
    if case.out is not None and case.out.exists():
        text += case.out.read_text("utf-8", "replace")
    code = os.waitstatus_to_exitcode(status)
    return Ending(case, code, hung, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, shown, text)


def _child(case: Case, given: int, said: int) -> None:
    code = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        for variable in case.without:
            os.environ.pop(variable, None)
        os.dup2(given, 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = main(case.arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def judge(ending: Ending, base: float) -> None:
    """Note what is wrong. base: megabytes of a valid model."""
    case, text, wrong = ending.case, ending.text, ending.faults
    if ending.hung or ending.seconds > case.seconds:
        wrong.append(f"hang: {ending.seconds:.1f} s")
    elif ending.code < 0 or ending.code >= 128:
        wrong.append(f"signal: {ending.code}")
    elif ending.code not in case.codes:
        wrong.append(f"exit {ending.code}, not {case.codes}")
    if "panicked at" in text or "PanicException" in text or "Traceback (most recent" in text:
        wrong.append("panic or traceback")
    if SECRET in text:
        wrong.append("shows another file")
    if case.canary is not None and case.canary.exists():
        wrong.append("ran code")
    if ending.code and (missing := case.said(text)):
        wrong.append(f"does not say {missing}")
    if case.escapes and any(c == "\x1b" or "\x80" <= c <= "\x9f" or c in BIDI for c in ending.shown):
        wrong.append("control characters")
    if ending.megabytes > base + case.megabytes:
        wrong.append(f"memory: {ending.megabytes - base:.0f} MB above a valid model")


def main_() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {
            "XDG_DATA_HOME": name,
            "XDG_CONFIG_HOME": name,
            "ROPECHAT_CACHE": "off",
            "NO_COLOR": "1",
        }
        import hostile_cases

        cases = list(hostile_cases.cases(folder / "own"))
        if SCRIPT.is_file():
            cases += corpus_cases(folder / "corpus")
        else:
            print("no ../shared/bad_inputs beside this checkout: its cases are left out")
        cases = [case for case in cases if case.name.startswith(args.only)]
        base = run(hostile_cases.valid(folder)).megabytes
        with ThreadPoolExecutor(2) as pool:
            endings = list(pool.map(run, cases))
        for ending in endings:
            judge(ending, base)
    wrong = [ending for ending in endings if ending.faults]
    for ending in wrong:
        last = (ending.text.strip().splitlines() or [""])[-1]
        print(f"FAIL {ending.case.name}: {'; '.join(ending.faults)}: {ascii(last)[:160]}")
    if args.json:
        rows = [{"name": one.case.name, "code": one.code, "faults": one.faults} for one in endings]
        args.json.write_text(json.dumps(rows))
    print(f"{len(endings)} cases, {len(wrong)} failed, {time.monotonic() - begun:.0f} s")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main_())
