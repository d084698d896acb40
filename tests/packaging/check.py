"""What `make wheel` and `make sdist` have made: the right files, small enough, for the named platform.

    python tests/packaging/check.py dist/*

Raises AssertionError. auditwheel reads which glibc a wheel for Linux needs; twine reads the metadata.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 17_000_000  # bytes of a wheel, with the built-in model
SDIST_LIMIT = 20_000_000
MANUAL = "data/share/man/man1"
MODULE = "ropechat/engine/_core.abi3.so"
LICENSES = {"LICENSE", "THIRD-PARTY-NOTICES.txt"}
TOP = {"Cargo.toml", "Cargo.lock", "README.md", "pyproject.toml"}
NOT_FOR_USERS = ("tests/", "docs/", "training/", ".github/", ".ci/", "target/", "dist/")


def tracked(*below: str) -> set[str]:
    """The files of git below these folders."""
    shown = subprocess.run(
        ["git", "ls-files", "-z", *below], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {name for name in shown.stdout.split("\0") if name and (ROOT / name).exists()}


def manual(folder: str) -> dict[str, bytes]:
    """The manual pages in a folder of data, by their paths."""
    sys.path.insert(0, str(ROOT))
    from ropechat.cli.man import pages

    return {f"{folder}/{MANUAL}/{name}": text.encode() for name, text in pages()}


def check_wheel(path: Path) -> None:
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        info = next(name.partition("/")[0] for name in names if name.endswith(".dist-info/RECORD"))
        data = info.replace(".dist-info", ".data")
        found = {name: wheel.read(name) for name in names if name.startswith(data)}
    assert found == manual(data), f"{data}: must have the manual pages of today; run `make manual`"
    assert "-abi3-" in path.name, f"{path.name}: must be for any Python from 3.11 on"
    rest = {name for name in names if not name.startswith((info, data))}
    same("ropechat/", rest, {*tracked("ropechat"), MODULE})
    assert {f"{info}/licenses/{name}" for name in LICENSES} <= names, "a licence is missing"
    size = path.stat().st_size
    assert size <= LIMIT, f"{path.name}: {size / 1e6:.2f} MB, at most {LIMIT / 1e6:.0f}"
    print(f"{path.name}: {size / 1e6:.2f} MB, {len(names)} files")
    if "linux" in path.name:
        named = re.search(r"manylinux_2_(\d+)", path.name)
        shown = tool("auditwheel", "show", str(path))
        needed = re.search(r'platform tag:\s*"manylinux_2_(\d+)_', shown)
        assert named is not None, path.name
        assert needed is not None, shown
        assert int(needed[1]) <= int(named[1]), shown
        print(f"needs glibc 2.{needed[1]}; its name says 2.{named[1]}")


def check_sdist(path: Path) -> None:
    with tarfile.open(path) as packed:
        names = {member.name.partition("/")[2] for member in packed if member.isfile()}
    members = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["members"]
    crates = {name for name in tracked(*members) if name.endswith((".rs", "Cargo.toml"))}
    crates -= tracked("rust/kernels/loom")  # a workspace of its own, of tests
    needed = {*tracked("ropechat"), *crates, *LICENSES, *TOP, *manual("ropechat.engine._core.data")}
    assert needed <= names, f"missing: {sorted(needed - names)}"
    extra = sorted(name for name in names if name.startswith(NOT_FOR_USERS) or name.endswith(".so"))
    assert not extra, f"too much: {extra}"
    size = path.stat().st_size
    assert size <= SDIST_LIMIT, f"{path.name}: {size / 1e6:.2f} MB, at most {SDIST_LIMIT / 1e6:.0f}"
    print(f"{path.name}: {size / 1e6:.2f} MB, {len(names)} files")


def same(where: str, found: set[str], wanted: set[str]) -> None:
    assert found == wanted, f"{where}: missing {sorted(wanted - found)}, too much {sorted(found - wanted)}"


def tool(name: str, *arguments: str) -> str:
    """What a program beside this Python prints."""
    words = [str(Path(sys.executable).with_name(name)), *arguments]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main(*names: str) -> None:
    assert names, "no file is named"
    for path in map(Path, names):
        (check_wheel if path.suffix == ".whl" else check_sdist)(path)
    print(tool("twine", "check", "--strict", *names).strip())


if __name__ == "__main__":
    main(*sys.argv[1:])
