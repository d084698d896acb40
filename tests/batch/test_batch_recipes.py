"""The recipes of docs/batch.md run as they stand."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "batch.md"
RECIPES = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_recipes_are_found() -> None:
    assert len(RECIPES) == 12


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=range(1, len(RECIPES) + 1))
def test_a_recipe(recipe: str, tmp_path: Path) -> None:
    if "jq" in recipe and shutil.which("jq") is None:
        pytest.skip("no jq on this machine")
    launcher = Path(sys.executable).with_name("ropechat")
    if not launcher.exists():
        pytest.skip("ropechat is not installed beside this Python")
    environ = {**os.environ, "PATH": f"{launcher.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", recipe], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr
    outputs = [path for path in tmp_path.iterdir() if path.name.endswith(".run.json")]
    assert outputs or done.stdout.strip()
