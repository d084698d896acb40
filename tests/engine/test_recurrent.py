"""Sequences of hybrid models: keys and values and a recurrent state, which belongs to one length.

Whatever a sequence goes back to, or takes over from another one, its rows have the bits of a fresh run.
"""

from pathlib import Path

import numpy as np
import pytest
from core import CancelToken, add, add_score, drain, generate, load, logits, say, score, scored
from golden_cases import GOLDEN, Golden

HYBRIDS = [
    GOLDEN / name
    for name in (
        "lfm2",
        "lfm3",
        "qwen3_5_moe_text",
        "qwen3_next",
        "qwen4_exp_text",
        "olmo_hybrid",
        "granitemoehybrid",
        "falcon_h1",
        "nemotron_h",
        "jamba",
        "kimi_linear",
        "bailing_hybrid",
        "minimax",
        "recurrent_gemma",
        "zamba2",
        "zaya",
        "inkling_text",
        "deepseek_v4",
    )
]
BLOCK = 32  # tokens; a state is kept at the end of some blocks only


@pytest.fixture(params=HYBRIDS, ids=lambda path: path.name)
def directory(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_a_prompt_in_pieces(directory: Path) -> None:
    """The prompt grows token by token and by more: each piece goes on from a state, and no bit differs."""
    ids = Golden.read(directory).ids("long")
    (fresh,) = score(load(directory), ids)
    engine = load(directory, threads=2)
    for length in (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5, len(ids)):
        for position, row in score(engine, ids[:length])[0].items():
            assert row == fresh[position], f"{length} tokens: the row for position {position} differs"


def test_another_ending(directory: Path) -> None:
    """A text that leaves another one in the middle of a block goes on from the last state before."""
    ids = Golden.read(directory).ids("long")
    other = [*ids[: 2 * BLOCK + 9], *reversed(ids[: BLOCK // 2])]
    (fresh,) = score(load(directory), other)
    engine = load(directory, threads=2)
    first = add(engine, ids, max_tokens=3)
    list(drain(engine, [first]))
    number = engine.score(other, readout_top_k=engine.facts["vocab_size"], start=2 * BLOCK + 9)
    assert engine.reused(number) in (BLOCK, 2 * BLOCK)
    (found,) = scored(engine, {number: other})
    assert found
    for position, row in found.items():
        assert row == fresh[position], f"the row for position {position} differs"


def test_in_company_and_after_a_cancel(directory: Path) -> None:
    golden = Golden.read(directory)
    texts = [golden.ids("long"), golden.ids("p33"), golden.ids("p7"), golden.ids("long")[5:70]]
    alone = [score(load(directory), ids)[0] for ids in texts]
    engine = load(directory, threads=2)
    cancelled = CancelToken()
    cancelled.cancel()
    sequences = {add_score(engine, ids): ids for ids in texts}
    for event in engine.step(list(sequences), CancelToken()):
        if event.row is not None and event.kind == "score":
            expected = alone[list(sequences).index(event.sequence)]
            assert say(event.row) == expected[event.position]
    with pytest.raises(Exception, match="cancel"):
        engine.step(list(sequences), cancelled)
    for number, expected in zip(sequences, alone, strict=True):
        for event in drain(engine, [number]):
            if event.row is not None and event.kind == "score":
                assert say(event.row) == expected[event.position]


def test_generation_goes_on_from_its_own_state(directory: Path) -> None:
    """The same prompt again, and the answer as a part of the next prompt: what a chat does."""
    golden = Golden.read(directory)
    prompt, expected = golden.ids("p33"), golden.tensors["greedy.output_ids"].tolist()
    engine = load(directory)
    for _ in range(2):
        number = add(engine, prompt, max_tokens=len(expected))
        assert [event.id for event in drain(engine, [number]) if event.kind == "token"] == expected
        engine.free(number)
    number = add(engine, prompt + expected[:-1], max_tokens=1)
    assert engine.reused(number) == BLOCK
    assert [event.id for event in drain(engine, [number]) if event.kind == "token"] == expected[-1:]


def test_drafts_leave_states_at_the_ends_of_blocks(directory: Path) -> None:
    """The next turn goes on from a state inside an answer whose tokens were drafted."""
    plain, drafting = (load(directory, speculative=mode) for mode in ("off", "always"))
    prompt, biases = [5, 6, 7, 8, 9] * 8, [(5, 30.0), (6, 29.5)]
    expected, _, _ = generate(plain, prompt, 3 * BLOCK, logit_bias=biases)
    number = add(drafting, prompt, 3 * BLOCK, logit_bias=biases)
    tokens = [event for event in drain(drafting, [number]) if event.kind == "token"]
    assert [event.id for event in tokens] == expected
    assert any(event.drafted for event in tokens)
    drafting.free(number)
    number = add(drafting, prompt + expected, max_tokens=1)
    assert drafting.reused(number) in (3 * BLOCK, 4 * BLOCK)


def test_memory_is_given_back(directory: Path) -> None:
    """States are counted with the blocks, and those of ended sequences stay few."""
    engine = load(directory)
    sizes = []
    for seed in range(6):
        ids = np.random.default_rng(seed).integers(0, engine.facts["vocab_size"], 100).tolist()
        logits(engine, ids)
        sizes.append(engine.kv_bytes)
    assert sizes[-1] == sizes[1], sizes
