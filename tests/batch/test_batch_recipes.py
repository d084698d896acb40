"""The recipes of docs/batch.md run as they stand."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "batch.md"
RECIPES = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_recipes_are_found() -> None:
    assert len(RECIPES) == 16


def cases() -> list[Any]:
    """The recipes; two need extras."""
    found = []
    for number, recipe in enumerate(RECIPES, 1):
        needs = "--ray" in recipe or "ropechat eval" in recipe
        marks = (pytest.mark.extras, pytest.mark.timeout(300)) if needs else (pytest.mark.slow,)
        found.append(pytest.param(recipe, id=str(number), marks=marks))
    return found


@pytest.mark.parametrize("recipe", cases())
def test_a_recipe(recipe: str, tmp_path: Path) -> None:
    if "jq" in recipe and shutil.which("jq") is None:
        pytest.skip("no jq on this machine")
    launcher = Path(sys.executable).with_name("ropechat")
    if not launcher.exists():
        pytest.skip("ropechat is not installed beside this Python")
    environ = {**os.environ, "PATH": f"{launcher.parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    environ["HF_HOME"] = str(tmp_path / "hub")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", recipe], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr
    outputs = [path for path in tmp_path.iterdir() if path.name.endswith(".run.json")]
    assert outputs or done.stdout.strip()
