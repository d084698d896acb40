"""The pictures of README and docs can be taken, here with the built-in model."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

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


RECORD = """
import asyncio, sys
from pathlib import Path
import shots
from recording import Recorder
home = Path(sys.argv[1])
shots.furnish(home)
recorder = Recorder()
async def scene(stage):
    reel = shots.Reel(stage, recorder)
    await reel.hold(1.0, "a start")
    await reel.type("Hi there")
    await reel.answer("enter", "Enter asks")
    await reel.hold(2.0, "an answer", still=True)
asyncio.run(shots.play([scene], "60x20", home, set(), home, "builtin"))
(home / "recording.svg").write_text(recorder.svg())
"""


@pytest.mark.slow
def test_a_recording_is_made(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RECORD, str(tmp_path)], cwd=SUPPORT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "recording.svg").read_text()
    root = ElementTree.fromstring(text)
    for caption in ("a start", "an answer"):
        assert text.count(f">{caption}</text>") == 1
    (group,) = [
        one
        for one in root.iter()
        if one.attrib.get("class") == "still" and "an answer" in "".join(one.itertext())
    ]
    name = group.attrib["style"].removeprefix("animation-name:")
    assert f"@keyframes {name}{{0.000%{{visibility:hidden}}" in text
    assert not re.search(r"(?:href|url|@import)", text)
