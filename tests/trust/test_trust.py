"""`make trust` itself: its list, its page, its threads, and its fuzz targets with a few mutations each."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def importable() -> None:
    if str(HERE) not in sys.path:
        sys.path.append(str(HERE))


def test_every_check_has_a_script() -> None:
    from checks import CHECKS

    names = [check.name for check in CHECKS]
    assert len(names) == len({*names})
    assert {check.row for check in CHECKS} >= {str(row) for row in range(1, 25)}
    for check in CHECKS:
        assert check.command, check.name
        for path in re.findall(r"tests/[\w/]+\.py", check.command):
            assert (HERE.parents[1] / path).is_file(), path


def test_what_was_found_has_a_test() -> None:
    from checks import FOUND

    for one in FOUND:
        file, _, name = one.test.partition("::")
        assert re.search(rf"\b(def|fn) {name}\(", (HERE.parents[1] / file).read_text(encoding="utf-8")), one


@pytest.mark.parametrize(
    ("command", "code", "begun"),
    [
        ("echo 1 passed in 2 s", 0, 3),
        ("echo 1 passed in 2 s; exit 1", 1, 1),
        ("echo {n} passed in 2 s", 0, 1),
    ],
)
def test_a_command_without_a_count_runs_so_often(command: str, code: int, begun: int, tmp_path: Path) -> None:
    from checks import Check
    from run import run

    log = tmp_path / "log"
    one = run(Check("name", "", "fault", "target", command), 3, log)
    assert (one["passed"], log.read_text().count("passed")) == (code == 0, begun)


def test_the_page_is_written_from_the_results() -> None:
    from run import PAGE, load, page

    assert PAGE.read_text(encoding="utf-8") == page(load()), "run `make trust TRUST=page`"


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
@pytest.mark.parametrize(
    ("at", "how", "wrong"),
    [(1, "torn", 0), (2, "torn", 0), (9, "torn", 0), (2, "EIO", 1), (9, "EIO", 0), (2, "short", 0)],
)
def test_a_write_or_a_sync_that_fails(at: int, how: str, wrong: int, tmp_path: Path) -> None:
    """A program of two writes and a sync between them, that heeds no error; its ninth write never comes."""
    from write_faults import Case, Writes

    program = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(file, b"one")
os.fsync(file)
os.write(file, b"two")
"""
    writes, folder = Writes(tmp_path, "1"), tmp_path / "files"
    folder.mkdir()
    case = Case("files", at, how, stays=False)
    ended = writes.start(["-c", program, str(folder / "file")], folder, case)
    writes.ends(case, ended)
    assert (writes.found["runs"], writes.found["wrong ends"]) == (1, wrong)
    assert ended.writes == (min(at, 3) if wrong or how == "torn" else 3)


def test_fuzzing_counts_from_the_last_finding_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import fuzz

    monkeypatch.setattr(fuzz, "WORK", tmp_path)
    (tmp_path / "runs").mkdir()
    assert fuzz.runs_of("gguf") == fuzz.Run()
    for run in (fuzz.Run(5, 1.0), fuzz.Run(7, 2.0, 1)):
        fuzz.keep("gguf", run)
    assert fuzz.runs_of("gguf") == fuzz.Run(7, 2.0, 1)
    for run in (fuzz.Run(20, 3.0), fuzz.Run(30, 4.0)):
        fuzz.keep("gguf", run)
    assert fuzz.runs_of("gguf") == fuzz.Run(50, 7.0)


@pytest.mark.parametrize(
    ("script", "said", "starved"),
    [
        ("pass", "Test unit written to /f/timeout-0a", True),
        ("import sys; sys.exit(70)", "Test unit written to /f/timeout-0a", False),  # late once more
        ("pass", "Test unit written to /f/crash-0a", False),
    ],
)
def test_a_timeout_counts_where_it_takes_a_processor_as_long(
    script: str, said: str, starved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fuzz

    monkeypatch.setattr(fuzz, "command", lambda target: [sys.executable, "-c", script])
    assert fuzz._was_starved("gguf", said, {}) is starved
    monkeypatch.setattr(fuzz, "TIMEOUT_S", 0)
    assert not fuzz._was_starved("gguf", said, {})


@pytest.mark.slow
def test_eight_threads_get_what_one_gets() -> None:
    ended = subprocess.run([sys.executable, str(HERE / "threads.py"), "4"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no wrong results, errors or hangs" in ended.stdout


NAMES = (
    *("batch", "openai_body", "grammar", "journal", "settings", "chat_import", "markdown", "terminal_text"),
    *("tokenizer", "gguf_vocabulary", "template", "keys", "records"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_fuzzing_found_to_reach_other_lines(name: str) -> None:
    import fuzz
    import targets

    inputs = fuzz.stored()[name]
    assert inputs
    for data in inputs:
        targets.TARGETS[name](data)


@pytest.mark.parametrize("name", NAMES)
def test_mutations_of_seeds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import targets

    assert {*NAMES} == {*targets.TARGETS}
    draw = random.Random(1)
    for seed in targets.seeds(name):
        with monkeypatch.context() as patched:  # valid, or mutations of it would not get deep
            patched.setattr(targets, "_named", lambda error: pytest.fail(str(error)))
            targets.TARGETS[name](seed)
        for _ in range(20):
            data = bytearray(seed)
            for _ in range(draw.randint(1, 3)):
                at = draw.randrange(len(data))
                data[at : at + draw.randrange(3)] = draw.choice(
                    (b"", b"\0", b"9", b'"', b"[", b"\xff", b"\n")
                )
            targets.TARGETS[name](bytes(data))
