"""The licences of the crates in the wheel are those of the crates in Cargo.lock."""

import os
import pwd
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
NOTICES = (TOP / "THIRD-PARTY-NOTICES.txt").read_text()


def test_every_notice_is_of_a_locked_version() -> None:
    lock = tomllib.loads((TOP / "Cargo.lock").read_text())
    locked = {f"{one['name']} {one['version']}" for one in lock["package"]}
    noted = {line.partition(" (")[0] for line in NOTICES.splitlines() if line.endswith(")")} & locked
    names = {name.split()[0] for name in noted}
    assert names >= {"numpy", "pyo3", "llguidance", "derivre", "toktrie", "half"}
    for of_lock in locked - noted:
        assert f"\n{of_lock.split()[0]} " not in NOTICES, f"{of_lock}: run `make notices`"
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    assert "THIRD-PARTY-NOTICES.txt" in project["license-files"]


@pytest.mark.slow
def test_no_crate_lacks_its_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", pwd.getpwuid(os.getuid()).pw_dir)  # where rustup and cargo keep theirs
    if not (shutil.which("cargo") and shutil.which("rustc")):
        pytest.skip("no cargo here")
    module = runpy.run_path(str(TOP / "rust" / "notices.py"))
    try:
        assert module["notices"]() == NOTICES, "run `make notices`"
    except subprocess.CalledProcessError as error:
        pytest.skip(f"cargo has no crates here: {error.stderr[:200]}")
