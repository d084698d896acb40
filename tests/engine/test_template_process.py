"""The process that renders chat templates: its limits, its deaths, and that nothing of it stays behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from ropechat.engine.templates.limits import CPU_SECONDS, MAX_MEMORY_BYTES, MAX_OUTPUT_BYTES
from ropechat.engine.templates.process import TemplateFailureError, TemplateProcess
from ropechat.errors import FileAccessError

NOW = datetime(2025, 1, 15, 12, 34, 56)
ENDLESS = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}"
ENDLESS += "{% endfor %}{% endfor %}"


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    made = TemplateProcess()
    made.wall_seconds = 100  # a busy machine starves it; no test waits for this limit
    yield made
    made.close()


def text(process: TemplateProcess, source: str, **names: object) -> str:
    return process.render(source, names, NOW)


def is_gone(pid: int) -> bool:
    """Whether an orphan ends within a while (some containers are slow to reap what ended)."""
    end = time.monotonic() + 100
    stat = Path(f"/proc/{pid}/stat")
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            if stat.is_file() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


def test_it_is_started_once_and_when_needed(process: TemplateProcess) -> None:
    assert process.pid is None
    assert text(process, "{{ a }} {{ strftime_now('%d %b %Y') }}", a="é") == "é 15 Jan 2025"
    pid = process.pid
    with pytest.raises(TemplateFailureError):
        text(process, "{{ 1 / 0 }}")
    assert text(process, "{{ a }}", a=1) == "1"
    process.start()
    assert process.pid == pid


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("{{ 9 ** (9 ** 9) }}", "2 s of CPU time"),
        ("{{ ('x' * 3000000000)|length }}", "256 MB of memory"),
        ("{% set n=namespace(s='x') %}{% for i in range(40) %}{% set n.s=n.s~n.s %}{% endfor %}", "256 MB"),
        ("{{ 'é' * 2100000 }}", f"{MAX_OUTPUT_BYTES >> 20} MB"),
        ("{% for i in range(50) %}{{ 'y' * 100000 }}{% endfor %}", f"{MAX_OUTPUT_BYTES >> 20} MB"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deep"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "too deep"),
    ],
)
def test_what_takes_too_much_is_stopped(process: TemplateProcess, source: str, what: str) -> None:
    with pytest.raises(TemplateFailureError, match=what) as caught:
        text(process, source)
    assert caught.value.kind == "limit"
    assert text(process, "ok") == "ok"


@pytest.mark.slow
def test_limits_hold_whatever_is_inherited(process: TemplateProcess) -> None:
    before = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
        signal.signal(signal.SIGPROF, before)
    with pytest.raises(TemplateFailureError, match="2 s of CPU time"):
        text(process, ENDLESS)


@pytest.mark.slow
def test_variables_that_fill_the_memory(process: TemplateProcess) -> None:
    with pytest.raises(TemplateFailureError, match="256 MB of memory"):
        text(process, "x", tools=[{"": 0}] * 1_700_000)


def test_what_is_just_within_the_limits(process: TemplateProcess) -> None:
    assert len(text(process, "{{ 'y' * 4194304 }}")) == MAX_OUTPUT_BYTES
    half = MAX_MEMORY_BYTES // 2
    assert text(process, "{{ ('x' * n)|length }}", n=half) == str(half)


def test_it_has_no_environment_files_or_terminal(process: TemplateProcess) -> None:
    text(process, "x")
    proc = Path(f"/proc/{process.pid}")
    if not proc.is_dir():
        pytest.skip("no /proc here")
    assert (proc / "environ").read_bytes() == b""
    assert os.readlink(proc / "cwd") == "/"
    assert sorted(os.listdir(proc / "fd")) == ["0", "1", "2"]
    limits = (proc / "limits").read_text()
    for name in ("Max open files", "Max file size", "Max core file size"):
        line = next(line for line in limits.splitlines() if line.startswith(name))
        assert line.removeprefix(name).split()[:2] == ["0", "0"]
    assert os.getsid(process.pid or 0) == process.pid


@pytest.mark.slow
def test_processor_time_is_counted_for_each_rendering(process: TemplateProcess) -> None:
    """Renderings that take more than the limit together, none of them alone."""
    source = "{% for a in range(3000) %}{% for b in range(100) %}{% endfor %}{% endfor %}ok"
    text(process, source)
    pid, proc = process.pid, Path(f"/proc/{process.pid}/stat")
    if not proc.is_file():
        pytest.skip("no /proc here")
    while cpu_seconds(proc) < 1.2 * CPU_SECONDS:
        assert text(process, source) == "ok"
        assert process.pid == pid


def cpu_seconds(proc: Path) -> float:
    """CPU time of a process. proc: its `/proc/PID/stat`."""
    return sum(map(int, proc.read_text().split()[13:15])) / os.sysconf("SC_CLK_TCK")


def test_killed_in_the_middle_the_next_one_works(process: TemplateProcess) -> None:
    text(process, "x")
    pid, proc = process.pid, Path(f"/proc/{process.pid}/stat")
    assert pid is not None
    if not proc.is_file():
        pytest.skip("no /proc here")
    idle = cpu_seconds(proc)

    def kill() -> None:
        """Once it computes."""
        while cpu_seconds(proc) < idle + 0.1:
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(TemplateFailureError, match="was killed; try again") as caught:
        text(process, ENDLESS)
    assert caught.value.kind == "stopped"
    killer.join()
    assert text(process, "ok") == "ok"
    assert process.pid != pid
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # reaped: no zombie


def test_killed_between_two_nobody_notices(process: TemplateProcess) -> None:
    text(process, "x")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert text(process, "ok") == "ok"


def test_ctrl_c_goes_past_it(process: TemplateProcess) -> None:
    text(process, "x")
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGHUP)
    assert text(process, "ok") == "ok"
    assert process.pid == pid


def test_an_exception_in_the_middle_leaves_no_stale_answer(
    process: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    text(process, "x")

    def interrupted(count: int, deadline: float) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(process, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            text(process, "stale")
    assert text(process, "ok") == "ok"


def test_one_that_does_not_answer_is_given_up(
    process: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    text(process, "x")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(process, "wall_seconds", 0.2)
    with pytest.raises(TemplateFailureError, match="did not finish within"):
        text(process, "x")
    monkeypatch.undo()
    assert text(process, "ok") == "ok"


def test_many_threads(process: TemplateProcess) -> None:
    found: list[str] = []

    def work(number: int) -> None:
        found.extend(text(process, "{{ n }}", n=f"{number}-{i}") for i in range(13))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(f"{number}-{i}" for number in range(8) for i in range(13))


def test_a_large_conversation_passes_through(process: TemplateProcess) -> None:
    given = "x" * 3_000_000
    assert text(process, "{{ t }}", t=given) == given


def test_a_conversation_beyond_all_limits_is_not_sent(process: TemplateProcess) -> None:
    with pytest.raises(TemplateFailureError, match=r"messages must be at most 16,777,216 bytes"):
        text(process, "{{ t|length }}", t="x" * (16 << 20))
    assert process.pid is None
    assert text(process, "{{ t|length }}", t="😀" * 4_000_000) == "4000000"


def test_no_process_to_be_had(process: TemplateProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/dev/fd"))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileAccessError, match=r"/nowhere/python: cannot start .*: No such file"):
        text(process, "x")
    assert len(os.listdir("/dev/fd")) == before


def test_the_sandbox_is_one_without_known_holes() -> None:
    """CVE-2025-27516 and CVE-2024-56326 are closed in 3.1.6."""
    assert tuple(map(int, version("jinja2").split(".")[:3])) >= (3, 1, 6)
    assert '"jinja2>=3.1.6"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()


# ---- The end of the parent

PARENT = """
import os, signal, sys, time
from datetime import datetime
from importlib.metadata import version
from ropechat.engine.templates.process import SHARED
assert SHARED.render("x", {}, datetime.now()) == "x"
print(SHARED.pid, flush=True)
"""


def run_parent(rest: str) -> tuple["subprocess.Popen[bytes]", int]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT + rest], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.parametrize("rest", ["", "os._exit(0)", "sys.exit(3)", "1 / 0"])
def test_it_ends_with_its_parent(rest: str) -> None:
    parent, child = run_parent(f"sys.stderr.close(); {rest}")
    parent.communicate()
    assert is_gone(child)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rest",
    [
        "time.sleep(60)",
        f"SHARED.render({ENDLESS!r}, {{}}, datetime.now())",
        "os.fork() or time.sleep(3); time.sleep(60)",
    ],
)
def test_it_ends_when_its_parent_is_killed(rest: str) -> None:
    parent, child = run_parent(rest)
    parent.kill()
    parent.communicate()
    assert is_gone(child)


def test_a_forked_child_has_its_own() -> None:
    rest = """
pid = os.fork()
again = SHARED.render("y", {}, datetime.now())
assert again == "y"
if pid == 0:
    print(SHARED.pid, flush=True)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert SHARED.render("z", {}, datetime.now()) == "z"
print(SHARED.pid, flush=True)
"""
    parent, first = run_parent(rest)
    out, _ = parent.communicate()
    forked, still = map(int, out.split())
    assert (parent.returncode, still) == (0, first)
    assert forked != first
    assert is_gone(forked)
    assert is_gone(first)
