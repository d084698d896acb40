"""Replies with a thought: markers found from templates, channels, budgets, history; nothing is lost."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from thinking_models import CHATML, HARMONY, OPENED, THINK, sentencepiece_thinker, thinking_model

from ropechat import Engine, Grammar, Job, Message, Role, Sampling
from ropechat.engine.templates.template import ChatTemplate
from ropechat.errors import RequestError
from ropechat.trace import Step

SHARED = Path(__file__).parents[3] / "shared" / "goldens" / "templates" / "jinja"
HARMONY_TOKENS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>")
FEW = {"type": "object", "additionalProperties": False}
DIGITS = {"type": "integer", "minimum": 0, "maximum": 99}
GOES_ON = ((2, -100.0),)  # never the token that ends a turn
ASKED = [Message(Role.USER, "Who are you?")]
PLAIN = ("smollm2", "llama3.2", "qwen2.5", "gemma2", "mistral_nemo", "phi4", "recon_gemma_3", "kimi_k2")


@pytest.fixture(scope="module", params=["ids", "text"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A model that may think; its markers are tokens of their own, or text."""
    folder = tmp_path_factory.mktemp("model") / "thinker"
    return Engine.load(thinking_model(folder, CHATML, THINK if request.param == "ids" else ()), cache="off")


def fed(engine: Engine, text: str) -> list[int]:
    """Ids with which a reply begins; names of control tokens become these."""
    return engine.tokenizer.encode(text)


def steps_of(engine: Engine, sampling: Sampling, begun: str = "<think>\nI", **more: Any) -> list[Step]:
    return list(engine.reply(ASKED, sampling, prefix=fed(engine, begun), **more))


def hot(**given: Any) -> Sampling:
    return Sampling(temperature=1.0, top_k=0, top_p=1.0, **{"logit_bias": GOES_ON, **given})


# --- what a template says ---


@pytest.mark.parametrize("name", PLAIN)
def test_templates_without_thoughts(name: str) -> None:
    path = SHARED / f"{name}.jinja"
    if not path.is_file():
        pytest.skip("no ../shared/goldens beside this checkout")
    assert ChatTemplate(path.read_text(), name, {"bos_token": "<s>"}).find_thoughts(set()) is None


def test_several_messages_are_one_reply(tmp_path: Path) -> None:
    model = Engine.load(thinking_model(tmp_path / "m", HARMONY, HARMONY_TOKENS), cache="off")
    thoughts = model.prompts.thoughts
    assert thoughts is not None
    assert thoughts.format.start == "<|channel|>analysis<|message|>"
    assert thoughts.format.end == "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert (thoughts.format.answer, thoughts.is_text) == ("<|channel|>final<|message|>", False)
    assert thoughts.format.has_effort
    said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    spelled = model.spell(ASKED, fed(model, said))
    assert "".join(one.reasoning for one in spelled) == "Hm."
    assert "".join(one.text for one in spelled) == "Yes."
    direct = model.spell(ASKED, fed(model, "<|channel|>final<|message|>Yes."))
    assert ("".join(one.text for one in direct), {one.channel for one in direct}) == (
        "Yes.",
        {"marker", "answer"},
    )
    sampling = hot(max_tokens=5, seed=1, thinking_budget=4)
    steps = list(model.reply(ASKED, sampling, prefix=fed(model, "<|channel|>analysis<|message|>Hm")))
    assert [step.channel for step in steps].count("thought") == 4 - len(fed(model, "Hm"))
    assert [step.channel for step in steps][-5:] == ["answer"] * 5
    low = model.prompt_ids(ASKED, thinking=Sampling(think="low").thinking)
    assert "Reasoning: low" in model.tokenizer.decode(low)


def test_a_thought_is_left_out_of_later_prompts_as_the_template_says(engine: Engine) -> None:
    said = Message(Role.ASSISTANT, "An answer.", "A thought.")
    again = engine.prompts._rendered(
        engine.tokenizer.escaper(engine.prompts.control_ids), [*ASKED, said, *ASKED], None
    )
    assert "A thought." not in again
    assert "An answer." in again
    assert engine.thinks
    template = engine.prompts.template
    assert template is not None
    last = template.render([*ASKED, said], add_generation_prompt=False)
    assert "<think>\nA thought.\n</think>\n\nAn answer." in last


def test_templates_that_want_blocks() -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for block in m.content %}{% if block.type == 'thinking' %}[THINK]{{ block.thinking }}[/THINK]"
        "{% else %}{{ block.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    template = ChatTemplate(source, "blocks")
    found = template.find_thoughts(set())
    assert found is not None
    assert (found.start, found.end, found.key) == ("[THINK]", "[/THINK]", "content")
    text = template.render([*ASKED, Message(Role.ASSISTANT, "Yes", "Hm")], add_generation_prompt=False)
    assert text == "[user]Who are you?[assistant][THINK]Hm[/THINK]Yes"


def test_no_form_is_found_where_a_template_prints_what_it_does_not_know() -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{# thinking #}"
    assert ChatTemplate(source, "prints").find_thoughts(set()) is None


# --- replies ---


def test_the_prompt_says_where_a_reply_begins(tmp_path: Path) -> None:
    opened = Engine.load(thinking_model(tmp_path / "m", OPENED, THINK), cache="off")
    thoughts = opened.prompts.thoughts
    assert thoughts is not None
    by_mode = {
        mode: opened.prompt_ids(ASKED, thinking=Sampling(think=mode).thinking)
        for mode in ("auto", "on", "off")
    }
    assert {mode: thoughts.opening(ids) for mode, ids in by_mode.items()} == {
        "auto": "open",
        "on": "open",
        "off": "answer",
    }
    steps = list(opened.reply(ASKED, hot(max_tokens=4, seed=2, thinking_budget=3)))
    assert [step.channel for step in steps][:3] == ["thought"] * 3
    assert [step.channel for step in steps][-4:] == ["answer"] * 4
    steps = list(opened.reply(ASKED, hot(max_tokens=4, seed=2, think="off")))
    assert {step.channel for step in steps} == {"answer"}


@pytest.mark.parametrize("budget", [0, 1, 5, 20])
def test_a_budget_closes_the_thought_at_its_token(engine: Engine, budget: int) -> None:
    sampling = hot(max_tokens=6, seed=3, thinking_budget=budget)
    given = fed(engine, "<think>")
    steps = list(engine.reply(ASKED, sampling, prefix=given, top_k=4))
    channels = [step.channel for step in steps]
    thought = channels.count("thought")
    assert thought == budget
    markers = [step for step in steps if step.channel == "marker"]
    assert all(step.stages[0].name == "forced" and step.stages[0].kept == 1 for step in markers)
    assert b"".join(step.bytes for step in markers) == b"\n</think>\n\n"
    assert channels == ["thought"] * budget + ["marker"] * len(markers) + ["answer"] * 6
    assert steps[-1].finish_reason == "length"


@pytest.mark.slow
def test_thought_and_answer_are_the_tokens_none_lost_or_doubled(engine: Engine) -> None:
    rng = random.Random(7)
    ends = fed(engine, "</think>")
    for seed in range(30):
        budget = rng.choice((-1, 3, 9))
        bias = [(id, rng.choice((0.0, 6.0))) for id in set(ends)]
        sampling = hot(max_tokens=8, seed=seed, thinking_budget=budget, logit_bias=tuple(bias))
        stop = rng.choice((None, ["e"]))
        begun = rng.choice(("<think>", "<think>\nI am", "Hello", "<think>a</think>\n\nB"))
        given = fed(engine, begun)
        steps = []
        for step in engine.reply(ASKED, sampling, prefix=given, stop=stop):
            steps.append(step)
            if len(steps) > 60:
                break
        again = list(
            engine.reply(ASKED, sampling, prefix=[*given, *(step.id for step in steps[:4])], stop=stop)
        )
        assert [step.id for step in again][: len(steps) - 4] == [step.id for step in steps[4:]][: len(again)]
        whole = [*given, *(step.id for step in steps)]
        spelled = engine.spell(ASKED, whole)
        channels = [said.channel for said in spelled]
        order = [
            channel for index, channel in enumerate(channels) if channels[index - 1 : index] != [channel]
        ]
        assert order in (
            ["marker", "thought"],
            ["marker", "thought", "marker"],
            ["marker", "thought", "marker", "answer"],
            ["marker"],
            ["marker", "answer"],
            ["answer"],
        ), (begun, order)
        shown = "".join(said.reasoning + said.text for said in spelled)
        of_text = [one.bytes for one in spelled if one.channel != "marker" and one.bytes[:2] != b"<|"]
        said = b"".join(of_text).decode("utf-8", "ignore")
        said = said.replace("</think", "")  # of a marker that is text only the last token is a marker
        assert shown.replace("\n", "").replace("\ufffd", "") == said.replace("\n", ""), begun


def test_a_character_before_the_end_marker_is_of_the_thought(tmp_path: Path) -> None:
    """A character of byte tokens is held back until its last byte; the marker that follows ends it."""
    model = Engine.load(sentencepiece_thinker(tmp_path / "model"), cache="off")
    euro, newline = [3 + byte for byte in "\u20ac".encode()], 3 + 0x0A
    end, letter = fed(model, "</think>a")[-2:]
    for thought, text in ((euro, "\u20ac"), (euro[:2], "\ufffd\ufffd"), ([*euro, newline], "\u20ac\n")):
        spelled = model.spell(ASKED, [*thought, end, newline, newline, *euro, letter])
        assert "".join(one.reasoning for one in spelled) == text
        assert "".join(one.text for one in spelled) == "\u20ac a"


def test_a_schema_begins_behind_the_thought(engine: Engine) -> None:
    grammar = Grammar.json_schema({**FEW, "properties": {"a": DIGITS}, "required": ["a"]})
    for seed in range(4):
        sampling = hot(max_tokens=60, seed=seed, thinking_budget=5, grammar=grammar)
        steps = list(engine.reply(ASKED, sampling, prefix=fed(engine, "<think>")))
        assert "a" in json.loads("".join(step.text for step in steps))
        assert [step.channel for step in steps].count("thought") == 5
        free = list(engine.reply(ASKED, hot(max_tokens=60, seed=seed, grammar=grammar, thinking_budget=2)))
        assert "a" in json.loads("".join(step.text for step in free))


def test_stop_strings_are_of_the_answer(engine: Engine) -> None:
    sampling = hot(max_tokens=30, seed=5, thinking_budget=12)
    free = steps_of(engine, sampling)
    thought = "".join(step.reasoning for step in free)
    stopped = steps_of(engine, sampling, stop=[thought.strip()[:3]])
    assert "".join(step.reasoning for step in stopped) == thought


def test_drafts_change_nothing(tmp_path: Path) -> None:
    grammar = Grammar.choices(["yes", "no", "maybe"])
    found = []
    for speculative in ("off", "always"):
        model = Engine.load(
            thinking_model(tmp_path / speculative, OPENED, THINK), cache="off", speculative=speculative
        )
        jobs = [
            Job(ASKED, Sampling(temperature=0.3, seed=seed, max_tokens=9, thinking_budget=11, grammar=chosen))
            for seed in range(4)
            for chosen in (None, grammar)
        ]
        found.append([(done.text, done.reasoning, done.ids) for _, done in model.generate_many(jobs)])
    assert found[0] == found[1]
    assert all(len(ids) > 11 for _, _, ids in found[0])


def test_a_batch_gives_what_a_reply_gives(engine: Engine) -> None:
    sampling = hot(max_tokens=7, seed=11, thinking_budget=4)
    alone = list(engine.reply(ASKED, sampling))
    (_, done), *_ = engine.generate_many([Job(ASKED, sampling)], top_k=2)
    assert done.ids == tuple(step.id for step in alone)
    assert done.text == "".join(step.text for step in alone)
    assert done.reasoning == "".join(step.reasoning for step in alone)
    assert done.reasoning_tokens == sum(step.channel != "answer" for step in alone)


def test_texts_and_ids_are_continued_without_channels(engine: Engine) -> None:
    steps = list(engine.generate("<think>\nI am", hot(max_tokens=5, seed=1, thinking_budget=1)))
    assert {step.channel for step in steps} == {"answer"}


def test_what_a_model_cannot_do_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(RequestError, match="think: this model's chat template has no efforts"):
        engine.prompt_ids(ASKED, thinking=Sampling(think="low").thinking)
    plain = Engine.load("builtin")
    assert not plain.thinks
    with pytest.raises(RequestError, match="think: this model has no thoughts"):
        plain.prompt_ids(ASKED, thinking=Sampling(think="on").thinking)
    assert plain.prompt_ids(ASKED, thinking=Sampling(think="off").thinking) == plain.prompt_ids(ASKED)
    with pytest.raises(ValueError, match="think: must be one of auto, on"):
        Sampling(think="maybe")


def test_closing_ids_end_a_thought(engine: Engine) -> None:
    given = [*fed(engine, "<think>\nI am"), *engine.closing_ids]
    steps = list(engine.reply(ASKED, hot(max_tokens=5, seed=1), prefix=given))
    assert [step.channel for step in steps] == ["answer"] * 5
    assert all(not math.isnan(step.logprob) for step in steps)
