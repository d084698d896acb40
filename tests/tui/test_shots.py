"""The pictures of README and docs can be taken, here with the built-in model."""

import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
TAKE = """
import asyncio, sys
from pathlib import Path
import shots
home = Path(sys.argv[1])
shots.furnish(home)
scenes = [shots.first, shots.reading, shots.branches]
asyncio.run(shots.play(scenes, "80x24", home / "to", set(shots.KEPT), home, "builtin"))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pictures_are_taken(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TAKE, str(tmp_path)], cwd=SUPPORT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = {path.name for path in (tmp_path / "to").iterdir()}
    assert found == {"first-80x24.svg", "tokens-80x24.svg", "branches-80x24.svg"}
    assert "first sentence" in (tmp_path / "to" / "tokens-80x24.svg").read_text().replace("\u00a0", " ")
