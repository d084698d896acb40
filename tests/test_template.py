"""Chat templates render as transformers renders them."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from model_folders import CHATML, GOLDEN

from ropechat.conversation import Message, Role
from ropechat.errors import ChatTemplateError
from ropechat.template import ChatTemplate

CASES = sorted((GOLDEN / "templates").glob("own_*.json"))
CONVERSATIONS = json.loads((GOLDEN / "templates" / "conversations.json").read_text())
TURN = [Message(Role.USER, "hi")]


def chat(turns: list[dict[str, str]]) -> list[Message]:
    return [Message(Role(turn["role"]), turn["content"]) for turn in turns]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden_renderings(path: Path) -> None:
    data = json.loads(path.read_text())
    now = datetime.datetime.fromisoformat(data["frozen_now"])
    template = ChatTemplate(data["template"], "x", data["special_tokens_visible_to_template"])
    for case in data["cases"]:
        messages = chat(CONVERSATIONS[case["conversation"]])

        def render(case: dict[str, Any] = case, messages: list[Message] = messages) -> str:
            prompt = case["add_generation_prompt"]
            return template.render(messages, prompt, strftime_now=now.strftime, **case["kwargs"])

        if "expected" in case:
            assert render() == case["expected"]
        else:
            with pytest.raises(ChatTemplateError, match=case["error"].partition(": ")[2]):
                render()


def test_there_are_golden_cases() -> None:
    assert len(CASES) == 6


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.x }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ lipsum() }}",
        "{% include 'x' %}",
        "{% for x in range(10**9) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{% if %}",
        "{{ messages | nope }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "",
        "{{ 'a' * 5000000 }}",
        "{{ raise_exception('no') }}",
        "x" * (256 << 10) + "x",
    ],
)
def test_refusals_are_errors_of_ours(source: str) -> None:
    template = ChatTemplate(source, "file.jinja")
    with pytest.raises(ChatTemplateError, match=r"^file\.jinja: chat_template"):
        template.render(TURN)


def test_generation_tag_and_loop_controls() -> None:
    source = (
        "{% for m in messages %}{% generation %}[{{ m.content }}]{% endgeneration %}{% break %}{% endfor %}"
    )
    assert ChatTemplate(source, "x").render([*TURN, *TURN]) == "[hi]"


def test_the_callers_messages_are_not_the_templates(tmp_path: Path) -> None:
    template = ChatTemplate("{% set x = messages[0].pop('role') %}x", "x")
    with pytest.raises(ChatTemplateError):
        template.render(TURN)
    assert [message.content for message in TURN] == ["hi"]


def test_where_a_template_comes_from(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path, {}) is None
    config = {
        "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": CHATML}]
    }
    named = ChatTemplate.load(tmp_path, config)
    assert named is not None
    assert named.render(TURN) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}{{ bos_token }}")
    file = ChatTemplate.load(tmp_path, {**config, "eos_token": {"content": "</s>"}, "bos_token": None})
    assert file is not None
    assert file.render(TURN) == "</s>"


@pytest.mark.parametrize("value", [5, {"a": 1}, [], [{"name": "default"}], [1]])
def test_values_that_are_no_template(value: object, tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match=r"tokenizer_config\.json: chat_template: "):
        ChatTemplate.load(tmp_path, {"chat_template": value})
