"""Going on from given tokens, on a compiled (small, random) model: the same draws, one token computed."""

import json

import pytest
from model_folders import CHATML, byte_tokenizer
from models import write_llama

from ropechat.conversation import Message, Node, Role, remaining_sampling, replace_token
from ropechat.engine.engine import Engine
from ropechat.sampling import Sampling
from ropechat.trace import Step

ASKED = [Message(Role.USER, "Tell me a story.")]
SAMPLING = Sampling(temperature=1.0, top_k=50, top_p=0.98, repetition_penalty=1.1, max_tokens=1000, seed=11)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """260 tokens, one per byte; nothing ends a text, so that answers are as long as they may be."""

    folder = write_llama(tmp_path_factory.mktemp("fork"), vocab_size=260, max_position_embeddings=4096)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    config = {"bos_token": "<s>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = Engine.load(folder, threads=1)
    loaded.stop_ids = frozenset()
    return loaded


@pytest.fixture(scope="module")
def answer(engine: Engine) -> Node:
    """An answer of 1,000 tokens."""
    steps = list(engine.reply(ASKED, SAMPLING, top_k=20))
    assert len(steps) == 1000
    return Node("n", "q", Role.ASSISTANT, steps=steps, sampling=SAMPLING)


def fork(engine: Engine, answer: Node, index: int, id: int) -> tuple[list[Step], list[tuple[int, int]]]:
    """The steps after the fork, and how the prompt was read."""
    read: list[tuple[int, int]] = []
    prefix = [*(step.id for step in answer.steps[:index]), id]
    steps = list(
        engine.reply(
            ASKED,
            remaining_sampling(answer, index),
            prefix=prefix,
            top_k=20,
            on_prefill=lambda done, total: read.append((done, total)),
        )
    )
    return steps, read


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1, 63, 64, 500, 998])
def test_the_same_token_brings_the_same_rest(engine: Engine, answer: Node, index: int) -> None:
    steps, read = fork(engine, answer, index, answer.steps[index].id)
    assert steps == answer.steps[index + 1 :]  # ids, texts, logprobs, alternatives, stages, draws, the reason
    [before, after] = read
    total = len(engine.prompt_ids(ASKED)) + index + 1
    assert after == (total, total)
    assert before[1] - before[0] == 1  # of the whole prompt, one token was computed


def test_another_token_costs_one_token(engine: Engine, answer: Node) -> None:
    drawn = answer.steps[700]
    other = next(id for id, _ in drawn.top if id != drawn.id)
    steps, read = fork(engine, answer, 700, other)
    assert read[0][1] - read[0][0] == 1
    assert len(steps) == 299
    record = replace_token(drawn, other)
    assert record.logprob == dict(drawn.top)[other]
    assert steps[0].position == drawn.position + 1
    again, _ = fork(engine, answer, 700, other)
    assert again == steps


def test_a_stopped_answer_goes_on_as_if_it_had_not(engine: Engine, answer: Node) -> None:
    """The same seed, no fork: the rest is what would have come."""
    prefix = [step.id for step in answer.steps[:321]]
    rest = list(engine.reply(ASKED, SAMPLING, prefix=prefix, top_k=20))
    assert [step.id for step in rest[:679]] == [step.id for step in answer.steps[321:]]
    assert "".join(step.text for step in answer.steps[:321] + rest[:678]) == "".join(
        step.text for step in answer.steps[:999]
    )


def test_texts_are_those_of_one_answer(engine: Engine, answer: Node) -> None:
    """Also in the middle of a character: the model is random, so most bytes are no whole character."""
    ids = [step.id for step in answer.steps[:-1]]
    spelled = engine.spell(ASKED, ids)
    assert [said.text for said in spelled] == [step.text for step in answer.steps[:-1]]
    assert [said.bytes for said in spelled] == [step.bytes for step in answer.steps[:-1]]


def test_what_a_user_wrote_never_becomes_a_control_token(engine: Engine) -> None:
    text = "so <|im_end|> it is ☃"
    ids = engine.reply_ids(ASKED, text)
    assert bytes(ids).decode() == text
    assert "".join(said.text for said in engine.spell(ASKED, ids)) == text
