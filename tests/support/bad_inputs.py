"""A corpus of files made to harm, by a script that lies beside a checkout of the project's own machines."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "shared" / "bad_inputs" / "make_bad_inputs.py"


class Corpus:
    """The files in a folder, and what is expected of each: `id`, `path`, `outcome`, `names` ..."""

    def __init__(self, folder: Path) -> None:
        if not SCRIPT.is_file():
            pytest.skip("no ../shared/bad_inputs beside this checkout")
        subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True, stdout=subprocess.DEVNULL)
        self.folder = folder
        manifest = json.loads((folder / "manifest.json").read_text())
        self.canary = Path(manifest["canary"])
        self.canary.unlink(missing_ok=True)
        self._cases: list[dict[str, Any]] = manifest["cases"]

    def all(self) -> list[dict[str, Any]]:
        """All of them."""
        return self._cases

    def cases(self, group: str) -> list[dict[str, Any]]:
        """Those of a group."""
        return [case for case in self._cases if case["group"] == group]


def unsaid(case: dict[str, Any], text: str) -> list[str]:
    """The names that a message should hold and does not."""
    text = text.lower()
    missing = [name for name in case.get("names", []) if name.lower() not in text]
    one_of = case.get("names_any", [])
    return missing if not one_of or any(name.lower() in text for name in one_of) else [*missing, *one_of]
