"""Chat templates render as transformers renders them."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest
from model_folders import CHATML, GOLDEN

from ropechat.conversation import Message, Role
from ropechat.engine.templates.template import ChatTemplate, warm
from ropechat.errors import ChatTemplateError, RequestError, UnsafePathError

CASES = sorted((GOLDEN / "templates").glob("own_*.json"))
CONVERSATIONS = json.loads((GOLDEN / "templates" / "conversations.json").read_text())
PUBLISHED = Path(__file__).parents[3] / "shared" / "goldens" / "templates"  # others' templates: not kept here
TURN = [Message(Role.USER, "hi")]
SYSTEM_AND_TURN = [Message(Role.SYSTEM, " be kind "), *TURN]
REFUSES_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}" + CHATML
)


def chat(turns: list[dict[str, str]]) -> list[Message]:
    return [Message(Role(turn["role"]), turn["content"]) for turn in turns]


def check_golden(path: Path) -> int:
    """Every rendering of one file is that of transformers; how many there are."""
    data = json.loads(path.read_text())
    now = datetime.datetime.fromisoformat(data["frozen_now"])
    template = ChatTemplate(data["template"], "x", data["special_tokens_visible_to_template"])
    for case in data["cases"]:
        messages, prompt = chat(CONVERSATIONS[case["conversation"]]), case["add_generation_prompt"]

        def render(case: Any = case, messages: list[Message] = messages, prompt: bool = prompt) -> str:
            return template.render(messages, case["kwargs"], add_generation_prompt=prompt, now=now)

        if "expected" in case:
            assert render() == case["expected"]
        else:
            with pytest.raises(ChatTemplateError, match=re.escape(case["error"].partition(": ")[2])):
                render()
    return len(data["cases"])


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden_renderings(path: Path) -> None:
    check_golden(path)


def test_renderings_of_published_templates() -> None:
    files = [path for path in sorted(PUBLISHED.glob("*.json")) if path.stem != "index"]
    if not files:
        pytest.skip("no ../shared/goldens beside this checkout")
    assert (len(files), sum(check_golden(path) for path in files)) == (53, 740)


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


def test_the_callers_messages_and_variables_are_not_the_templates() -> None:
    template = ChatTemplate("{% set x = messages[0].pop('role') %}x", "x")
    with pytest.raises(ChatTemplateError):
        template.render(TURN)
    given = {"tools": [{"name": "f"}]}
    with pytest.raises(ChatTemplateError):
        ChatTemplate("{{ tools.append(1) }}{{ tools[0].update(name='g') }}", "x").render(TURN, given)
    assert ([message.content for message in TURN], given) == (["hi"], {"tools": [{"name": "f"}]})


# ---- Where a template comes from


def test_where_a_template_comes_from(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path, {}) is None
    config = {
        "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": CHATML}]
    }
    named = ChatTemplate.load(tmp_path, config)
    assert named is not None
    assert named.render(TURN) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert (named.names, named.select("tool_use").render(TURN)) == (["default", "tool_use"], "t")
    with pytest.raises(ChatTemplateError, match="no template named 'rag'; available: default, tool_use"):
        named.select("rag")
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}{{ bos_token }}")
    file = ChatTemplate.load(tmp_path, {**config, "eos_token": {"content": "</s>"}, "bos_token": None})
    assert file is not None
    assert (file.render(TURN), file.names) == ("</s>", ["default"])


def test_a_folder_of_more_templates(tmp_path: Path) -> None:
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("t{{ eos_token }}")
    (folder / "broken.jinja").write_bytes(b"\xff")
    (folder / "notes.txt").write_text("x")
    template = ChatTemplate.load(tmp_path, {"eos_token": "</s>"})
    assert template is not None
    with pytest.raises(
        ChatTemplateError, match=r"no template named default \(available: broken, tool_use\); choose"
    ):
        template.render(TURN)
    assert template.select("tool_use").render(TURN) == "t</s>"
    with pytest.raises(
        ChatTemplateError, match=r"broken\.jinja: chat_template: must be UTF-8 \(byte 0 is not\)"
    ):
        template.select("broken").render(TURN)
    (tmp_path / "chat_template.jinja").write_text("d")
    template = ChatTemplate.load(tmp_path, {"chat_template": "not this"})
    assert template is not None
    assert (template.render(TURN), template.names) == ("d", ["broken", "default", "tool_use"])


@pytest.mark.parametrize("value", [5, {"a": 1}, [], [{"name": "default"}], [1]])
def test_values_that_are_no_template(value: object, tmp_path: Path) -> None:
    """The model still loads; whoever wants the template is told."""
    template = ChatTemplate.load(tmp_path, {"chat_template": value})
    assert template is not None
    assert template.names == []
    with pytest.raises(ChatTemplateError, match=r"tokenizer_config\.json: chat_template: .*--raw"):
        template.prompt(TURN)


def test_a_file_that_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("x" * (256 << 10) + "x")
    template = ChatTemplate.load(tmp_path, {})
    assert template is not None
    with pytest.raises(
        ChatTemplateError, match=r"\.jinja: chat_template: must be at most 262,144 bytes \(got 262,145\)"
    ):
        template.render(TURN)


def test_the_process_is_started_early_where_there_may_be_a_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []
    monkeypatch.setattr("ropechat.engine.templates.process.SHARED.start", lambda: starts.append(1))
    config = tmp_path / "tokenizer_config.json"
    for content in (None, "{}", '{"chat_template": "x"}'):
        if content is not None:
            config.write_text(content)
        warm(str(tmp_path))
    assert len(starts) == 1
    config.unlink()
    (tmp_path / "chat_template.jinja").write_text("x")
    warm(str(tmp_path))
    warm("org/name")
    assert len(starts) == 3
    config.mkdir()
    (tmp_path / "chat_template.jinja").unlink()
    warm(str(tmp_path))
    assert len(starts) == 3


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/x.jinja"])
def test_a_folder_where_a_file_should_be(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir(parents=True)
    with pytest.raises(UnsafePathError, match=r"\.jinja: must be a regular file"):
        ChatTemplate.load(tmp_path, {})


# ---- Variables


def test_variables() -> None:
    template = ChatTemplate("{{ enable_thinking }} {{ n + 1 }} {{ tools|tojson }}", "x")
    assert template.render(TURN, {"enable_thinking": False, "n": 2, "tools": ["é<"]}) == 'False 3 ["é<"]'
    assert (template.mentions("enable_thinking"), template.mentions("enable_thinkng")) == (True, False)


@pytest.mark.parametrize("variables", [{"messages": []}, {"a b": 1}, {"": 1}, {"x": object()}, {"x": {1, 2}}])
def test_variables_that_none_can_have(variables: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="template variable: "):
        ChatTemplate("x", "x").render(TURN, variables)


def test_text_that_is_no_unicode() -> None:
    with pytest.raises(
        RequestError, match=r"message 2: must be valid Unicode \(got a lone surrogate at character 1\)"
    ):
        ChatTemplate(CHATML, "x").render([*TURN, Message(Role.ASSISTANT, "a\udc80")])


# ---- System messages


def test_a_system_message_that_is_refused_goes_before_the_first_user_message() -> None:
    template = ChatTemplate(REFUSES_SYSTEM, "x")
    assert template.folds_system is None
    with pytest.raises(ChatTemplateError, match="rejects these messages: no system role here"):
        template.render(SYSTEM_AND_TURN)
    assert template.prompt(SYSTEM_AND_TURN, add_generation_prompt=False) == (
        "<|im_start|>user\n be kind \n\nhi<|im_end|>\n"
    )
    assert template.folds_system
    assert template.prompt(TURN) == ChatTemplate(CHATML, "x").render(TURN)
    assert [message.content for message in SYSTEM_AND_TURN] == [" be kind ", "hi"]


@pytest.mark.parametrize(
    ("source", "folds"),
    [
        (CHATML, False),
        ("{% for m in messages %}{{ m.content | trim }}{% endfor %}", False),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", False),
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", True),
    ],
)
def test_a_system_message_that_is_left_out(source: str, folds: bool) -> None:
    template = ChatTemplate(source, "x")
    assert "be kind" in template.prompt(SYSTEM_AND_TURN).lower()
    assert template.folds_system is folds


def test_refused_roles_are_explained() -> None:
    source = (
        "{% if messages[-1].role == messages[-2].role %}{{ raise_exception('must alternate') }}{% endif %}x"
    )
    template = ChatTemplate(source, "x")
    with pytest.raises(ChatTemplateError) as caught:
        template.prompt([*SYSTEM_AND_TURN, *TURN])
    assert str(caught.value) == (
        "x: chat_template line 1: rejects these messages: must alternate; message 3 is from the user, but "
        "most templates expect the assistant: user and assistant must alternate, after at most one system "
        "message"
    )
    assert template.folds_system is None


def test_an_error_names_the_line() -> None:
    with pytest.raises(ChatTemplateError, match="x: chat_template line 3: 'a' is undefined; use --raw"):
        ChatTemplate("1\n{% macro m() %}\n{{ a.b.c }}{% endmacro %}\n\n{{ m() }}", "x").render(TURN)
