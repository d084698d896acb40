"""Speculation changes nothing: steps, traces and completions are the same with drafts and without.

Every field is compared. `Step` does not compare `drafted`, the one field that says which of the two it was.
"""

import random
from dataclasses import replace
from typing import Any

import pytest
from core import add, generate, generate_with_cancels, load
from golden_cases import GOLDEN
from repeats import repeats

from ropechat import Engine, Grammar, Job, Sampling
from ropechat.errors import RequestError
from ropechat.inspector.draws import recorded_draws
from ropechat.inspector.records import token_record
from ropechat.trace import Step

FAMILIES = (
    *("llama3_new", "qwen3_new", "gemma3_text_new", "gpt_oss_old", "phi3_longrope_old", "llama_dynamic_old"),
    *("deepseek_v3_old", "gpt2_old", "bitnet", "mixtral_old"),
    *("qwen3_next", "lfm2", "falcon_h1", "recurrent_gemma", "minimax", "deepseek_v4"),  # recurrent states
)
WORDS = ("Tim", "the dog", "a big red ball", "went to the park", "and", "was happy", ".", '{"name": "', "\n")
GRAMMARS = (
    Grammar.json_schema({"type": "array", "items": {"enum": ["Tim", "dog", "ball"]}, "minItems": 4}),
    Grammar.regex("([a-z]{2,5} ){4,12}"),
    Grammar.choices(["the dog was happy and the dog was happy", "no"]),
)


PAIRS = (  # a model and its draft model
    *("builtin+builtin", "llama3_new+qwen3_new", "gemma3_text_new+gemma3_text_new", "qwen3_new+qwen3_next"),
    *("phi3_longrope_old+phi3_longrope_old", "gpt2_old+llama3_new", "deepseek_v3_old+gpt2_old"),
    *("qwen3_next+qwen3_next", "falcon_h1+falcon_h1"),
)


def of(model: str, mode: str) -> Engine:
    name, draft = (one if one in ("", "builtin") else GOLDEN / one for one in (*model.split("+"), "")[:2])
    dtype = "auto" if name == "builtin" else "f32"
    return Engine.load(name, threads=2, speculative=mode, dtype=dtype, draft=draft or None)


@pytest.fixture(scope="module", params=["builtin", *FAMILIES, *PAIRS])
def engines(request: pytest.FixtureRequest) -> tuple[Engine, Engine]:
    """One without drafts, and one with as many as there can be."""
    return of(request.param.partition("+")[0], "off"), of(request.param, "always")


def any_settings(source: random.Random, vocab_size: int) -> Sampling:
    """Random settings; half of them make repeats likely."""
    biases = [(source.randrange(vocab_size), source.uniform(-5, 8)) for _ in range(source.choice((0, 0, 3)))]
    return Sampling(
        temperature=source.choice((0.0, 0.0, 0.2, 0.7, 1.0, 1.6)),
        top_k=source.choice((0, 0, 1, 5, 40)),
        top_p=source.choice((1.0, 1.0, 0.9, 0.3)),
        min_p=source.choice((0.0, 0.0, 0.05)),
        repetition_penalty=source.choice((1.0, 1.0, 0.7, 0.9, 1.2)),
        max_tokens=source.choice((1, 2, 17, 48)),
        seed=source.randrange(1 << 64),
        logit_bias=tuple(dict(biases).items()),
    )


def any_ids(source: random.Random, vocab_size: int) -> list[int]:
    """Ids with repeats: pieces of a few phrases."""
    phrases = [[source.randrange(vocab_size) for _ in range(source.randint(1, 9))] for _ in range(3)]
    return [id for _ in range(source.randint(1, 9)) for id in source.choice(phrases)]


def any_text(source: random.Random) -> str:
    return " ".join(source.choice(WORDS) for _ in range(source.randint(2, 30)))


def answers(engine: Engine, seed: int, count: int) -> list[list[Step]]:
    """Answers to random prompts with random settings, each alone."""
    source = random.Random(seed)
    found = []
    for _ in range(count):
        sampling = any_settings(source, engine.facts["vocab_size"])
        stop = None
        if engine.tokenizer.present:
            sampling = replace(sampling, grammar=source.choice((None, None, *GRAMMARS)))
            stop = source.choice((None, None, ["dog", "py."], [" the "]))
            prompt: Any = any_text(source)
        else:
            prompt = any_ids(source, engine.facts["vocab_size"])
        found.append(list(engine.generate(prompt, sampling, top_k=source.choice((0, 0, 4)), stop=stop)))
    return found


@pytest.mark.slow
@repeats(15, 500)
def test_answers_alone(count: int, engines: tuple[Engine, Engine]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    plain, drafting = engines
    for more in range(30):  # most of the time no draft of 15 answers of random weights is right
        expected, found = (answers(engine, seed + more, count) for engine in engines)
        assert found == expected
        assert not any(step.drafted for steps in expected for step in steps)
        if any(step.drafted for steps in found for step in steps):
            break
    else:
        pytest.fail("no drafted token was ever right")
    # The records of a trace are the same but for the mark.
    for with_drafts, without in zip(found, expected, strict=True):
        pair = []
        for engine, steps in ((drafting, with_drafts), (plain, without)):
            trace = recorded_draws(steps, Sampling(), engine.trace_facts(4))
            pair.append([token_record(token, engine.token_bytes) for token in trace])
        for record, step in zip(pair[0], with_drafts, strict=True):
            assert record.pop("drafted", False) == step.drafted
        assert pair[0] == pair[1]


@pytest.mark.slow
def test_answers_in_company(engines: tuple[Engine, Engine]) -> None:
    """Many prompts in a window, several answers to each, with stop strings and grammars."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    runs = []
    for engine in engines:
        source = random.Random(seed)
        jobs = []
        for _ in range(12):
            sampling = any_settings(source, engine.facts["vocab_size"])
            stop, prompt = None, None
            if engine.tokenizer.present:
                sampling = replace(sampling, grammar=source.choice((None, *GRAMMARS)))
                stop, prompt = source.choice((None, ["dog"], ["e"])), any_text(source)
            else:
                prompt = any_ids(source, engine.facts["vocab_size"])
            drawn = replace(sampling, seed=None) if source.random() < 0.5 else sampling
            jobs += [Job(prompt, drawn, stop, top_k=source.choice((0, 3)))] * source.choice((1, 3))
        tokens: list[int] = []
        window = source.choice((2, 7, 30))
        done = list(engine.generate_many(jobs, Sampling(seed=5), window=window, on_tokens=tokens.append))
        assert sum(tokens) == sum(completion.completion_tokens for _, completion in done)
        runs.append(done)
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_what_the_clock_decides_is_the_same() -> None:
    plain, drafting = of("builtin", "off"), of("builtin", "auto")
    biases = tuple((id, -100.0) for id in plain.stop_ids)
    ids = plain.tokenizer.encode("Tim and the dog went to the park and was happy. ") * 20
    ids = ids[: plain.facts["max_position_embeddings"] // 2]
    for temperature in (0.0, 0.3, 1.0):
        sampling = Sampling(temperature=temperature, max_tokens=200, logit_bias=biases, seed=1)
        expected = list(plain.generate(ids, sampling, top_k=2))
        assert list(drafting.generate(ids, sampling, top_k=2)) == expected
        assert len(expected) == 200


def test_a_value_that_is_none_is_refused() -> None:
    with pytest.raises(RequestError, match="speculative: must be auto, off or always"):
        Engine.load("builtin", speculative="maybe")


@pytest.mark.parametrize("name", ["llama3_new", "qwen3_next"])
def test_a_cancelled_step_leaves_no_draft(name: str) -> None:
    plain, drafting = (load(GOLDEN / name, speculative=mode) for mode in ("off", "always"))
    ids = [5, 6, 7, 8, 9] * 12
    expected, _, _ = generate(plain, ids, 40, logit_bias=[(5, 9.0), (6, 9.0)])
    sequence = add(drafting, ids, 40, logit_bias=[(5, 9.0), (6, 9.0)])
    found, drafted = generate_with_cancels(drafting, sequence, 40)
    assert found == expected
    assert drafted > 0
