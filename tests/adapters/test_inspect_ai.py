"""ropechat as a provider of the real inspect_ai."""

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

pytestmark = [pytest.mark.extras, pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore")]
pytest.importorskip("inspect_ai", reason="inspect_ai is not installed (make test-all)")

from inspect_ai import Task, eval  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.model import (  # noqa: E402
    ChatMessageSystem,
    ChatMessageUser,
    ContentImage,
    GenerateConfig,
    ResponseSchema,
    get_model,
)
from inspect_ai.scorer import includes  # noqa: E402
from inspect_ai.solver import generate  # noqa: E402
from inspect_ai.util import json_schema  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from ropechat.conversation import Message, Role  # noqa: E402
from ropechat.engine.certainty import Answer  # noqa: E402
from ropechat.engine.engine import Engine  # noqa: E402
from ropechat.sampling import Sampling  # noqa: E402
from ropechat.sampling.grammar import Grammar  # noqa: E402

GREEDY = GenerateConfig(temperature=0, max_tokens=6)


def test_an_answer_with_logprobs_is_the_engines() -> None:
    async def ask() -> Any:
        async with get_model("ropechat/builtin") as model:
            config = GenerateConfig(temperature=0.8, max_tokens=5, seed=4, logprobs=True, top_logprobs=2)
            messages = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content="What is RoPE?")]
            return await model.generate(messages, config=config)

    output = asyncio.run(ask())
    messages = [Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "What is RoPE?")]
    engine = Engine.load("builtin")
    steps = list(engine.reply(messages, Sampling(temperature=0.8, max_tokens=5, seed=4, top_k=40), top_k=2))
    assert output.completion == "".join(step.text for step in steps)
    assert output.stop_reason == "max_tokens"
    content = output.choices[0].logprobs.content
    assert [token.logprob for token in content] == [step.logprob for step in steps]
    assert [top.logprob for top in content[0].top_logprobs] == [value for _, value in steps[0].top]
    assert (output.usage.input_tokens, output.usage.output_tokens) == (len(engine.prompt_ids(messages)), 5)


def test_calls_at_the_same_time_share_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 calls take a few more passes than one, not 32 times as many; their texts are those of one by one."""
    passes: list[int] = []
    generate_many = Engine.generate_many

    def counted(*given: Any, **options: Any) -> Any:
        return generate_many(*given, **options, on_tokens=passes.append)

    monkeypatch.setattr(Engine, "generate_many", counted)

    async def ask(window: int) -> list[str]:
        async with get_model("ropechat/builtin", window=window, memoize=False) as model:
            asked = [model.generate(f"Tell me about {number}.", config=GREEDY) for number in range(32)]
            return [output.completion for output in await asyncio.gather(*asked)]

    together = asyncio.run(ask(32))
    many, widest = len(passes), max(passes)
    passes.clear()
    assert asyncio.run(ask(1)) == together
    assert widest >= 16  # inspect_ai begins with 20 connections
    assert len(passes) > 4 * many


def test_choices_differ_and_are_repeatable() -> None:
    story = "Tell me a short story."

    async def ask() -> list[str]:
        async with get_model("ropechat/builtin", memoize=False) as model:
            config = GenerateConfig(temperature=1.5, max_tokens=30, seed=1, num_choices=3)
            return [choice.message.text for choice in (await model.generate(story, config=config)).choices]

    first = asyncio.run(ask())
    assert len({*first}) == 3
    assert asyncio.run(ask()) == first


class Reply(BaseModel):
    is_hot: bool
    size: Literal["low", "lower"]


def test_an_answer_of_a_schema_says_how_sure_it_is() -> None:
    schema = ResponseSchema(name="reply", json_schema=json_schema(Reply))

    async def ask() -> Any:
        async with get_model("ropechat/builtin", memoize=False) as model:
            config = GenerateConfig(
                temperature=1, max_tokens=60, seed=2, num_choices=2, response_schema=schema
            )
            return await model.generate("Is it hot?", config=config)

    choices = asyncio.run(ask()).choices
    for choice in choices:
        assert Reply.model_validate_json(choice.message.text)
        assert set(choice.message.metadata["fields"]) == {"is_hot", "size"}
    grammar = Grammar.json_schema(schema.json_schema.model_dump(exclude_none=True, by_alias=True))
    engine, messages = Engine.load("builtin"), [Message(Role.USER, "Is it hot?")]
    steps = list(
        engine.reply(messages, Sampling(temperature=1, max_tokens=60, seed=2, grammar=grammar), top_k=1)
    )
    assert choices[0].message.text == "".join(step.text for step in steps)
    found = engine.certainty(engine.prompt_ids(messages), Answer.of_steps(steps), grammar)
    assert choices[0].message.metadata == found


def test_what_is_not_offered_is_refused() -> None:
    async def ask(content: Any, **config: Any) -> None:
        async with get_model("ropechat/builtin") as model:
            await model.generate(content, config=GenerateConfig(**config))

    with pytest.raises(ValueError, match="frequency_penalty: not supported"):
        asyncio.run(ask("x", frequency_penalty=1.0))
    image = ChatMessageUser(content=[ContentImage(image="data:image/png;base64,AAAA")])
    with pytest.raises(ValueError, match="must be text"):
        asyncio.run(ask([image]))


def test_a_task_is_evaluated(tmp_path: Path) -> None:
    samples = [Sample(input=f"Say {word}.", target="a") for word in ("one", "two", "three")]
    task = Task(dataset=samples, solver=generate(), scorer=includes(), config=GREEDY)
    (log,) = eval(task, model="ropechat/builtin", log_dir=str(tmp_path), display="none")
    assert log.status == "success"
    assert len(log.samples or []) == 3
