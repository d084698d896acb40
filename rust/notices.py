"""Write THIRD-PARTY-NOTICES.txt: the licences of the crates that are linked into the wheel's extension.

    python rust/notices.py          # `make notices`, after a change of Cargo.lock

The texts are those in the crates' own packages. Of a crate with a choice that includes MIT, the MIT text is
taken. Procedural macros and crates that only build or test others are not linked.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[1]
FILE = TOP / "THIRD-PARTY-NOTICES.txt"
ROOT = "ropechat-python"
HEAD = """ropechat's extension module contains, statically linked, the following Rust crates. Each is used
under the licence whose text follows its name. (Written by rust/notices.py.)
"""


def run(*words: str) -> str:
    return subprocess.run(words, cwd=TOP, check=True, capture_output=True, text=True).stdout


def linked_crates() -> Iterator[dict[str, Any]]:
    """The packages that the extension links on this platform, without our own."""
    host = re.search(r"host: (\S+)", run("rustc", "-vV"))
    assert host is not None
    words = ["--format-version", "1", "--locked", "--offline", "--filter-platform", host[1]]
    found = json.loads(run("cargo", "metadata", *words))
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    waiting = [id for id, package in packages.items() if package["name"] == ROOT]
    seen = set(waiting)
    while waiting:
        for needed in nodes[waiting.pop()]["deps"]:
            package = packages[needed["pkg"]]
            is_linked = any(kind["kind"] is None for kind in needed["dep_kinds"])
            is_macro = any("proc-macro" in target["kind"] for target in package["targets"])
            if is_linked and not is_macro and package["id"] not in seen:
                seen.add(package["id"])
                waiting.append(package["id"])
                if package["source"] is not None:  # None: a crate of this workspace
                    yield package


def licence(package: dict[str, Any]) -> str:
    """The text that must go with a crate. Ends the program for a crate without one."""
    folder = Path(package["manifest_path"]).parent
    named = re.compile(r"(?i)(licen[cs]e|copying|notice|unlicense)([-_.].*)?")
    files = sorted(path for path in folder.iterdir() if named.fullmatch(path.name) and path.is_file())
    mit = [path for path in files if "mit" in path.name.lower()]
    chosen = mit[:1] if mit and re.search(r"\bMIT\b", package["license"]) else files
    if not chosen:
        raise SystemExit(f"{package['name']}: no licence file in {folder}")
    return "\n\n".join(path.read_text(encoding="utf-8").strip() for path in chosen)


def notices() -> str:
    by_text: dict[str, list[str]] = {}
    standard = "The Rust standard library, Copyright (c) The Rust Project Contributors (MIT OR Apache-2.0)"
    for package in sorted(linked_crates(), key=lambda one: (one["name"], one["version"])):
        name = f"{package['name']} {package['version']} ({package['license']})"
        by_text.setdefault(licence(package), []).append(name)
    plain = next(text for text in by_text if text.startswith("Permission is hereby granted"))  # MIT, no names
    by_text[plain].append(standard)
    parts = ["\n".join([*names, "", text]) for text, names in by_text.items()]
    line = "-" * 78
    return HEAD + "".join(f"\n{line}\n{part}\n" for part in parts)


if __name__ == "__main__":
    FILE.write_text(notices(), encoding="utf-8")
