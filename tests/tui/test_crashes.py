"""The whole chat, killed."""

from __future__ import annotations

import random
from pathlib import Path

import app_crashes
import pytest

pytestmark = pytest.mark.slow


def test_the_chat_killed_at_random_moments(tmp_path: Path) -> None:
    """3 kills; `python tests/support/app_crashes.py N` does more."""
    found = app_crashes.kills(tmp_path, 3, random.Random(), longest=1.5)
    assert {name: found[name] for name in app_crashes.ALL_FAULTS} == dict.fromkeys(
        app_crashes.ALL_FAULTS, 0
    ), found
