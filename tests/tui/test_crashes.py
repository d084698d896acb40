"""The whole chat, killed."""

from __future__ import annotations

import random
from pathlib import Path

import app_crashes
import pytest
from repeats import repeats

pytestmark = pytest.mark.slow


@repeats(2, 200)
def test_the_chat_killed_at_random_moments(count: int, tmp_path: Path) -> None:
    found = app_crashes.kills(tmp_path, count, random.Random(), longest=1.5)
    assert {name: found[name] for name in app_crashes.ALL_FAULTS} == dict.fromkeys(
        app_crashes.ALL_FAULTS, 0
    ), found
