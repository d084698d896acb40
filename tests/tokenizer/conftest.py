"""Fixtures of the tokenizer's tests."""

from pathlib import Path

import pytest

from ropechat.tokenizer import cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files are kept, of any size."""
    monkeypatch.setattr("ropechat.tokenizer.cache.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(cache, "_MIN_FILE_BYTES", 0)
    monkeypatch.setenv("ROPECHAT_CACHE", "auto")
    return tmp_path / "cache" / "tokenizers"
