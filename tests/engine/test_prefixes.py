"""Prompts that begin alike: what they share is computed once, at any window, and results stay the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_llama

from ropechat.engine.engine import Engine
from ropechat.engine.scheduler import Completion
from ropechat.sampling import Sampling

GREEDY = Sampling(temperature=0, max_tokens=2, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("prefixes"), seed=3, max_position_embeddings=512)


def prompts(rng: np.random.Generator, prefixes: int, count: int) -> list[list[int]]:
    """Prompts with `prefixes` beginnings of 301 tokens in turn."""
    beginnings = rng.integers(0, 100, (prefixes, 301)).tolist()
    return [beginnings[i % prefixes] + rng.integers(0, 100, 3).tolist() for i in range(count)]


def complete(
    folder: Path, given: list[list[int]], **options: Any
) -> tuple[list[tuple[int, Completion]], float]:
    """The completions, and the share of the prompts' tokens that came from the cache."""
    engine = Engine.load(folder, dtype="f32", threads=2, prefix_bytes=options.pop("prefix_bytes", None))
    found = list(engine.generate_many(given, GREEDY, **options))
    tokens = sum(result.prompt_tokens for _, result in found)
    return found, sum(result.cached_tokens for _, result in found) / tokens


@pytest.mark.slow
def test_one_prefix_at_any_window(folder: Path, rng: np.random.Generator) -> None:
    given = prompts(rng, 1, 256)
    expected, share = complete(folder, given, window=1)
    assert share >= 0.97
    for window in (16, 64, 256):
        for grouped in (False, True):
            found, share = complete(folder, given, window=window, grouped=grouped)
            assert found == expected
            assert share >= 0.97, f"window {window}, grouped {grouped}"


@pytest.mark.parametrize("prefixes", [16, 32])
def test_prefixes_in_turn(folder: Path, rng: np.random.Generator, prefixes: int) -> None:
    given = prompts(rng, prefixes, 12 * prefixes)
    expected, share = complete(folder, given, window=8)
    assert share >= 0.9
    found, share = complete(folder, given, window=64, grouped=True)
    assert found == expected
    assert share >= 0.9


def test_grouped_prompts_share_what_memory_cannot_keep(folder: Path, rng: np.random.Generator) -> None:
    """Without memory for ended sequences, only those in progress share."""
    given = prompts(rng, 4, 64)
    as_given, least = complete(folder, given, window=4, prefix_bytes=0)
    in_order, more = complete(folder, given, window=4, prefix_bytes=0, grouped=True)
    as_finished, most = complete(folder, given, window=4, prefix_bytes=0, grouped=True, ordered=False)
    assert as_given == in_order == sorted(as_finished, key=lambda result: result[0])
    assert least < 0.1 < 0.4 < more
    assert most > 0.6
