"""Law 1: a row's logits are bit-identical whatever else is in the batch, however the prompt is cut, however
many threads run, whether its prefix came from the cache, and whether it is scored or generated.

Every comparison is of whole rows (log-sum-exp, entropy, every logprob of the vocabulary) with ==, on models
whose sizes fit no register. The chunk size of `step` is varied in Rust; here a prompt grows by pieces.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core import CancelToken, Rows, add, add_score, drain, generate, load, logits, say, score
from models import write_llama
from reference import Model, forward

SHAPES: dict[str, dict[str, Any]] = {
    "one-kv-head": {},
    "head-dim-8-tied": {
        "hidden_size": 40,
        "head_dim": 8,
        "num_attention_heads": 5,
        "tie_word_embeddings": True,
    },
    "head-dim-20-biases": {
        "hidden_size": 60,
        "head_dim": 20,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "mlp_bias": True,
        "vocab_size": 211,
    },
    "bf16-sharded": {"dtype": "bf16", "shards": 3, "hidden_size": 54, "num_key_value_heads": 3},
    "f16-tied": {"dtype": "f16", "tie_word_embeddings": True, "intermediate_size": 33, "vocab_size": 17},
    "proportional": {
        "rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.7}
    },
    "one-of-each": {
        "hidden_size": 2,
        "head_dim": 2,
        "num_attention_heads": 1,
        "intermediate_size": 1,
        "num_hidden_layers": 1,
    },
}


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = SHAPES[request.param]
    return write_llama(tmp_path_factory.mktemp(request.param), seed=len(request.param), **shape)


@pytest.fixture
def ids(model: Path, rng: np.random.Generator) -> list[int]:
    """Long enough for several tiles of attention and several prefill chunks."""
    return prompt(model, rng, 300)


def prompt(model: Path, rng: np.random.Generator, length: int) -> list[int]:
    vocab = Model.load(model).config["vocab_size"]
    out: list[int] = rng.integers(0, vocab, length).tolist()
    return out


def same(found: Rows, expected: Rows) -> None:
    """Every row that was found is the expected one, bit for bit."""
    assert found
    for position, row in found.items():
        assert row == expected[position], f"the row for position {position} differs"


@pytest.mark.slow
def test_the_oracle_agrees(model: Path, ids: list[int], isa: str) -> None:
    expected = forward(ids, Model.load(model)).T
    np.testing.assert_allclose(logits(load(model), ids), expected, rtol=1e-5, atol=1e-3)


def test_threads(model: Path, ids: list[int], isa: str) -> None:
    expected = logits(load(model, threads=1), ids)
    for threads in (2, 3):
        assert np.array_equal(logits(load(model, threads=threads), ids), expected), f"{threads} threads"


def test_logits_and_scores_are_the_same_rows(model: Path, ids: list[int]) -> None:
    expected, (rows,) = logits(load(model), ids), score(load(model), ids)
    assert sorted(rows) == list(range(1, len(ids) + 1))  # a row speaks about the position after it
    for position, (logsumexp, _, top_ids, top_logprobs) in rows.items():
        row = expected[position - 1].astype(np.float64)
        assert logsumexp == pytest.approx(np.logaddexp.reduce(row), rel=1e-12)
        assert list(top_ids) == sorted(range(len(row)), key=lambda id: (-row[id], id))
        np.testing.assert_allclose(top_logprobs, row[list(top_ids)] - logsumexp, rtol=0, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [2, 7, 33])
@pytest.mark.parametrize("threads", [1, 3])
def test_batch(model: Path, rng: np.random.Generator, batch: int, threads: int, isa: str) -> None:
    """Prompts of 1 .. 45 tokens, scored alone and all in the same steps."""
    prompts = [prompt(model, rng, int(length)) for length in rng.integers(1, 46, batch)]
    together = score(load(model, threads=threads), *prompts)
    for ids, rows in zip(prompts, together, strict=True):
        (alone,) = score(load(model), ids)
        assert rows.keys() == alone.keys()
        same(rows, alone)


@pytest.mark.slow
def test_scored_or_generated(model: Path, ids: list[int], isa: str) -> None:
    """What a token was drawn from is what it is scored under."""
    for length in (1, 63, 64, 65, 200):
        out, rows, _ = generate(load(model), ids[:length], 24)
        assert len(out) == 24
        (scored,) = score(load(model), ids[:length] + out)
        same(rows, scored)


@pytest.mark.slow
@pytest.mark.parametrize("piece", [1, 2, 31, 32, 64])
def test_a_prompt_that_grows(model: Path, ids: list[int], piece: int, isa: str) -> None:
    """One engine is given a longer and longer prompt: all but the last piece comes from its cache."""
    (expected,) = score(load(model), ids)
    engine = load(model, threads=2)
    reused = []
    for end in range(piece, len(ids) + 1, piece):
        _, rows, kept = generate(engine, ids[:end], 1)
        same(rows, expected)
        reused.append(kept)
    assert reused[0] == 0
    assert max(reused) >= len(ids) // 2, f"the cache hardly served: {reused}"
    assert all(kept < end for kept, end in zip(reused, range(piece, len(ids) + 1, piece), strict=True))


def test_prefix_from_the_cache(model: Path, ids: list[int], rng: np.random.Generator, isa: str) -> None:
    """The same prompt again, and another one with the same beginning."""
    engine = load(model)
    first = generate(engine, ids[:150], 8)
    again = generate(engine, ids[:150], 8)
    assert again[2] > 100
    assert again[:2] == first[:2]
    branch = ids[:97] + prompt(model, rng, 40)
    assert generate(engine, branch, 8)[:2] == generate(load(model), branch, 8)[:2]
    assert generate(engine, ids[:150], 8)[:2] == first[:2]  # the branch wrote into nobody's blocks


def test_company_of_every_kind(model: Path, ids: list[int], rng: np.random.Generator) -> None:
    """A generation joined, step by step, by prefills, scores and samples that come and go."""
    (_, expected, _) = generate(load(model), ids[:40], 30)
    engine = load(model, threads=2)
    own = add(engine, ids[:40], 30)
    rows: Rows = {}
    company: list[int] = []
    while len(rows) < 30:
        if len(company) < 5:
            other = prompt(model, rng, int(rng.integers(1, 120)))
            sampled = {"temperature": 1.0, "seed": 7, "repetition_penalty": 1.2}
            company.append(
                add_score(engine, other) if rng.random() < 0.5 else add(engine, other, 5, **sampled)
            )
        for event in engine.step([own, *company], CancelToken()):
            if event.sequence == own and event.row is not None:
                rows[event.position] = say(event.row)
        if rng.random() < 0.3:
            engine.free(company.pop(0))
    assert rows == expected


def test_seed_and_position_alone_decide_the_draw(model: Path, ids: list[int]) -> None:
    """The same seed and stream draw the same ids alone, in company and from a cached prefix."""
    sampled = {"temperature": 1.0, "seed": 11}
    alone = [generate(load(model), ids[:20], 20, **sampled, stream=stream)[0] for stream in range(4)]
    engine = load(model, threads=2)
    sequences = [add(engine, ids[:20], 20, **sampled, stream=stream) for stream in range(4)]
    together: dict[int, list[int]] = {sequence: [] for sequence in sequences}
    for event in drain(engine, sequences):
        if event.kind == "token":
            together[event.sequence].append(event.id)
    assert [together[sequence] for sequence in sequences] == alone
    assert len({tuple(ids) for ids in alone}) > 1
