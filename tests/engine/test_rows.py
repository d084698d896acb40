"""Logit rows in blocks, and two models' rows compared, beside NumPy."""

from pathlib import Path

import numpy as np
import pytest
from models import write_llama

from ropechat.engine.engine import Engine
from ropechat.errors import CancelledError, ContextFullError, NonFiniteError, RequestError
from ropechat.sampling import Sampling

V = 105
IDS = [1 + (7 * i * i + 3 * i) % (V - 1) for i in range(75)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return Engine.load(folder, dtype="f32", threads=2)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("first", [0, 1, 31, 32, 40, 74])
def test_blocks_are_the_rows_of_score(engine: Engine, first: int) -> None:
    blocks = list(engine.logit_rows(IDS, first=first))
    assert [len(block) for block in blocks[:-1]] == [32] * (len(blocks) - 1)
    rows = np.concatenate(blocks)
    assert rows.shape == (len(IDS) - first, V)
    assert rows.tobytes() == engine.logits(IDS)[first:].tobytes()
    trace = engine.score(IDS, top_k=V)
    for position, row in enumerate(rows[:-1], first):
        read = trace[position + 1].row
        assert read is not None
        logits = {id: logprob + read.logsumexp for id, logprob in read.top}
        assert [logits[id] for id in range(V)] == pytest.approx(row.tolist(), abs=1e-5)


def test_other_work_between_two_blocks_changes_nothing(engine: Engine) -> None:
    readers = [engine.logit_rows(IDS), engine.logit_rows(IDS[::-1], first=3)]
    found: list[list[np.ndarray]] = [[], []]
    for blocks in zip(*readers, strict=False):
        for rows, block in zip(found, blocks, strict=True):
            rows.append(block)
        list(engine.generate([5, 6, 7], Sampling(temperature=0, max_tokens=3)))
    alone = [engine.logits(IDS), engine.logits(IDS[::-1])[3:]]
    for rows, expected in zip(found, alone, strict=True):
        assert np.concatenate(rows).tobytes() == expected.tobytes()


def test_a_reader_that_is_left_gives_its_memory_back(engine: Engine) -> None:
    list(engine.logit_rows(IDS))
    before = engine.kv_bytes
    for _ in range(5):
        reader = engine.logit_rows(IDS)
        next(reader)
        reader.close()
    assert engine.kv_bytes == before


def test_cancel_ends_a_reader(engine: Engine) -> None:
    reader = engine.logit_rows(IDS)
    next(reader)
    engine.cancel()
    with pytest.raises(CancelledError):
        next(reader)
    assert len(next(engine.logit_rows(IDS))) == 32


def test_what_cannot_be_read(engine: Engine, folder: Path) -> None:
    with pytest.raises(RequestError, match="first row"):
        engine.logit_rows(IDS, first=len(IDS))
    with pytest.raises(RequestError, match="token id"):
        engine.logit_rows([V])
    with pytest.raises(ContextFullError):
        Engine.load(folder, dtype="f32", threads=1, context=16).logit_rows(IDS)


def test_compared_rows_are_what_numpy_says(engine: Engine) -> None:
    rng = np.random.default_rng(11)
    a = rng.normal(scale=3.0, size=(40, V)).astype(np.float32)
    b = a + rng.normal(scale=0.5, size=(40, V)).astype(np.float32)
    following = [int(id) for id in rng.integers(0, V, 40)]
    P, Q = log_probabilities(a), log_probabilities(b)
    M = np.log((np.exp(P) + np.exp(Q)) / 2)
    kl, back = (np.exp(P) * (P - Q)).sum(1), (np.exp(Q) * (Q - P)).sum(1)
    js = 0.5 * ((np.exp(P) * (P - M)).sum(1) + (np.exp(Q) * (Q - M)).sum(1))
    pairs = engine.compare_rows(a, b, following, top_k=4)
    assert [pair.kl for pair in pairs] == pytest.approx(kl.tolist(), rel=1e-12)
    assert [pair.kl_back for pair in pairs] == pytest.approx(back.tolist(), rel=1e-12)
    assert [pair.js for pair in pairs] == pytest.approx(js.tolist(), rel=1e-11)
    for i, (id, pair) in enumerate(zip(following, pairs, strict=True)):
        assert pair.logprobs == pytest.approx((P[i, id], Q[i, id]), rel=1e-12)
        assert pair.ranks == tuple(1 + int((rows[i] > rows[i, id]).sum()) for rows in (a, b))
        assert pair.a.top_ids == np.argsort(-a[i], kind="stable")[:4].tolist()
        assert pair.b.top_ids == np.argsort(-b[i], kind="stable")[:4].tolist()


def test_rows_beside_themselves_do_not_differ(engine: Engine) -> None:
    rows = engine.logits(IDS)
    for pair in engine.compare_rows(rows, rows, IDS):
        assert (pair.kl, pair.kl_back, pair.js) == (0.0, 0.0, 0.0)


def test_masked_and_broken_rows(engine: Engine) -> None:
    a = np.zeros((2, 4), np.float32)
    b = a.copy()
    b[1, 2] = -np.inf
    first, second = engine.compare_rows(a, b, [0, 2])
    assert (first.kl, second.kl) == (0.0, np.inf)
    assert second.kl_back == pytest.approx(np.log(4 / 3))
    assert second.logprobs == (pytest.approx(-np.log(4)), -np.inf)
    b[0, 1] = np.nan
    with pytest.raises(NonFiniteError, match=r"position 7: second model: the logit of id 1 .*got NaN"):
        engine.compare_rows(a, b, [0, 0], position=7)
    for others, following in ((b[:1], [0, 0]), (b, []), (b, [0, 4])):
        with pytest.raises((RequestError, NonFiniteError)):
            engine.compare_rows(a, others, following)
