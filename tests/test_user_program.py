"""A user's program with types: it runs, and type checkers understand every call of it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import user_program

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "support" / "user_program.py"


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert user_program.main(tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"cat.html", "tree.jsonl", "matrix.csv", "out.jsonl"}
    assert capsys.readouterr().out.splitlines()[-1] == "2"


def check(*command: str | Path, **details: object) -> None:
    done = subprocess.run(command, capture_output=True, text=True, **details)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_understands_it(tmp_path: Path) -> None:
    """From a folder of the user, whose settings count, not those of this project."""
    shutil.copy(PROGRAM, tmp_path)
    words = ["--strict", "--cache-dir", tmp_path / "cache", PROGRAM.name]
    check(sys.executable, "-m", "mypy", *words, cwd=tmp_path, env={"MYPYPATH": str(ROOT), "PATH": ""})


@pytest.mark.extras
def test_pyright_understands_it(tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    checker = Path(sys.executable).with_name("basedpyright")
    if not checker.exists():
        pytest.skip("basedpyright is not installed")
    check(checker, "--pythonpath", sys.executable, PROGRAM.name, cwd=tmp_path)
