"""Fixtures of the engine's tests."""

from pathlib import Path

import pytest
from model_folders import load_bytes

from ropechat.engine.engine import Engine


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A bigram stand-in whose numbers can be recomputed."""
    loaded: Engine = load_bytes(monkeypatch, tmp_path)
    return loaded
