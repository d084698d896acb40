"""Chat templates on the command line: the command that shows them, their options, what is said of them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door
from model_folders import CHATML, adds_bos, byte_folder, byte_tokenizer

from ropechat.engine.templates.template import SYSTEM_FOLDED

GREEDY = ["--temperature", 0, "--max-tokens", 2]
REFUSES_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
)
SHOWS = "{{ a is string }} {{ a }}\n{{ messages[-1].content }}"
HI = "<|im_start|>user\nhi<|im_end|>\n"
REPLY = "<|im_start|>assistant\n"


def folder(path: Path, template: Any) -> Path:
    return byte_folder(
        path / "model", tokenizer_config={"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder(tmp_path, CHATML)


# ---- ropechat template


def test_the_text_that_a_model_is_fed(door: Door, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert door("template", "-m", model, "--user", "hi") == (0, HI + REPLY, "")
    assert door("template", model, "--user", "hi", "--no-generation-prompt") == (0, HI, "")
    system = "<|im_start|>system\nbe kind<|im_end|>\n"
    assert door("template", model, "--system", "be kind", "--user", "hi") == (0, system + HI + REPLY, "")
    monkeypatch.setenv("ROPECHAT_MODEL", str(model))
    assert door("template") == (0, HI.replace("hi", "Hello!") + REPLY, "")


def test_messages_of_a_file(door: Door, model: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "é"}]
    (tmp_path / "m.json").write_text(json.dumps(messages))
    rendered = HI + REPLY + "é<|im_end|>\n"
    assert door("template", model, "--messages", tmp_path / "m.json") == (0, rendered + REPLY, "")
    stdin = json.dumps({"messages": messages, "x": 1}).encode()
    assert door("template", model, "--messages", "-", "--user", "hi", stdin=stdin) == (
        0,
        rendered + HI + REPLY,
        "",
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("{}", "must be a list of messages, or an object with messages"),
        ("5", "messages: must be a non-empty list (got 5)"),
        (
            '[{"role": "robot", "content": ""}]',
            "messages[0].role: must be one of system, user, assistant, tool, developer (got 'robot')",
        ),
        ('[{"role": "user"}]', "messages[0].content: must be a string (missing)"),
    ],
)
def test_a_file_that_holds_no_messages(
    content: str, words: str, door: Door, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "m.json").write_text(content)
    code, out, err = door("template", model, "--messages", tmp_path / "m.json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {tmp_path / 'm.json'}: ")
    assert words in err
    missing = tmp_path / "none"
    code, _, err = door("template", model, "--messages", missing)
    assert (code, err) == (2, f"error: {missing}: file not found\n")


def test_names_and_source(door: Door, tmp_path: Path) -> None:
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": "{{ 't' }}"}]
    model = folder(tmp_path, named)
    assert door("template", model, "--list") == (0, "default\ntool_use\n", "")
    assert door("template", model, "--template", "tool_use", "--source") == (0, "{{ 't' }}\n", "")
    assert door("template", model, "--template", "tool_use") == (0, "t", "")
    code, _, err = door("template", model, "--template", "rag")
    assert (code, err.count("\n")) == (2, 1)
    assert "no template named 'rag'; available: default, tool_use" in err


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("true", "False True"),
        ("3", "False 3"),
        ('"x"', "True x"),
        ("x=y", "True x=y"),
        ("", "True "),
        ("[1]", "False [1]"),
    ],
)
def test_values_of_variables(value: str, shown: str, door: Door, tmp_path: Path) -> None:
    model = folder(tmp_path, SHOWS)
    assert door("template", model, "--user", "hi", "--template-var", f"a={value}") == (0, f"{shown}\nhi", "")


@pytest.mark.parametrize("text", ["a", "=1", "a b=1", "messages=[]"])
def test_variables_that_are_none(text: str, door: Door, model: Path) -> None:
    for command in (["template", model], ["run", "-m", model, "a"], ["chat", "-m", model]):
        code, out, err = door(*command, "--template-var", text)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("error: --template-var: ")


def test_a_slip_of_the_pen_is_noted(door: Door, model: Path) -> None:
    note = "note: --template-var: nope: this model's chat template does not use it; it has no effect\n"
    assert door("template", model, "--user", "hi", "--template-var", "nope=1") == (0, HI + REPLY, note)
    assert note in door("run", "-m", model, *GREEDY, "hi", "--template-var", "nope=1")[2]


def test_no_template(door: Door, tmp_path: Path) -> None:
    model = byte_folder(tmp_path / "plain")
    code, out, err = door("template", model)
    assert (code, out) == (2, "")
    assert "chat_template: this model has none" in err
    for option in (["--template", "x"], ["--template-var", "a=1"]):
        code, out, err = door("run", "-m", model, "hi", *option)
        assert (code, out) == (2, "")
        assert "chat_template: this model has none" in err
        assert door("run", "-m", model, "--raw", "hi", *option)[0] == 2


# ---- What a conversation uses


def prompt_tokens(result: tuple[int, str, str]) -> int:
    assert result[0] == 0, result[2]
    return int(json.loads(result[1])["usage"]["prompt_tokens"])


def test_run_and_chat_use_names_and_variables(door: Door, tmp_path: Path) -> None:
    named = [{"name": "default", "template": SHOWS}, {"name": "long", "template": "long" + SHOWS}]
    model = folder(tmp_path, named)
    run = ["run", "-m", model, *GREEDY, "--json", "hi"]
    assert prompt_tokens(door(*run)) == len("False \nhi")
    assert prompt_tokens(door(*run, "--template-var", "a=12")) == len("False 12\nhi")
    assert prompt_tokens(door(*run, "--template", "long", "--template-var", "a=b")) == len("longTrue b\nhi")
    code, out, _ = door("chat", "-m", model, *GREEDY, "--template", "long", stdin=b"a\n")
    assert (code, out) == (0, "bc\n")


def test_inspect_shows_the_prompt_token_by_token(door: Door, model: Path) -> None:
    inspect = ["inspect", "-m", model, "--format", "jsonl", "hi"]
    code, out, err = door(*inspect, "--chat")
    records = [json.loads(line) for line in out.splitlines()]
    ids = [record["id"] for record in records if record.get("type", "token") == "token" and "id" in record]
    assert (code, err) == (0, "")
    assert ids == [258, *b"user\nhi", 259, 10, 258, *b"assistant\n"]
    assert door(*inspect)[0] == 0
    code, out, err = door(*inspect, "--template-var", "a=1")
    assert (code, out) == (2, "")
    assert "--template-var: requires --chat or --messages" in err


def roles(out: str) -> list[tuple[str, str]]:
    """The text of a trace, cut by its spans; neighbours with the same role together."""
    meta, *tokens, _, summary = [json.loads(line) for line in out.splitlines()]
    assert summary["tokens"] == len(tokens)
    data, found = meta["text"].encode(), list[tuple[str, bytes]]()
    for token in tokens:
        piece = data[slice(*token["span"])]
        if found and found[-1][0] == token["role"]:
            piece = found.pop()[1] + piece
        found.append((token["role"], piece))
    assert b"".join(piece for _, piece in found) == data
    return [(role, piece.decode()) for role, piece in found]


@pytest.mark.parametrize("said", ["hi", "user", "assistant\n", "a<|im_end|>\n<|im_start|>user\n日"])
def test_inspect_tells_the_message_from_the_template(said: str, door: Door, model: Path) -> None:
    code, out, err = door("inspect", "-m", model, "--chat", "--format", "jsonl", said)
    assert (code, err) == (0, "")
    assert json.loads(out.splitlines()[0])["text"] == door("template", model, "--user", said)[1]
    assert roles(out) == [
        *(("special", "<|im_start|>"), ("template", "user\n"), ("text", said), ("special", "<|im_end|>")),
        *(("template", "\n"), ("special", "<|im_start|>"), ("template", "assistant\n")),
    ]


def test_the_templates_words_are_in_no_sum(door: Door, model: Path) -> None:
    table = door("inspect", "-m", model, "--chat", "hi")[1].splitlines()
    tokens = [
        json.loads(line)
        for line in door("inspect", "-m", model, "--chat", "--format", "jsonl", "hi")[1].splitlines()
    ]
    first = 1 + len("|user\n")
    own = [token["logprob"] for token in tokens[first : first + 2]]
    assert [token["token"] for token in tokens[first : first + 2]] == ["h", "i"]
    assert [line.split(":")[0] for line in table[-4:-1]] == ["template", "text", "special"]
    assert table[-3].split(": ", 1)[1] == table[-1].split(", ", 1)[1]
    bits = -sum(own) / math.log(2)
    assert table[-1].startswith(f"{len(tokens) - 3} tokens, 2 scored: {bits:.2f} bits, perplexity ")


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("[{{ messages[0].content | trim }}]", [("template", "["), ("text", "hi"), ("template", "]")]),
        ("[{{ messages[0].content }}]", [("template", "["), ("text", " hi\n"), ("template", "]")]),
        (
            "hi{{ messages[0].content | upper }}hi",
            [("template", "hi"), ("text", " HI\n"), ("template", "hi")],
        ),
        ("{{ messages[0].content }}", [("text", " hi\n")]),
    ],
)
def test_templates_that_change_the_message(
    template: str, parts: list[tuple[str, str]], door: Door, tmp_path: Path
) -> None:
    code, out, err = door("inspect", "-m", folder(tmp_path, template), "--chat", "--format", "jsonl", " hi\n")
    assert (code, err) == (0, "")
    assert roles(out) == parts


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'yes' if messages[0].content == 'hi' else 'no' }}",
        "{{ messages[0].content }}{{ messages[0].content }}",
        "{{ messages[0].content | length }}{{ messages[0].content }}",
        "{% if messages[0].content != 'hi' %}{{ raise_exception('no') }}{% endif %}hi",
    ],
)
def test_a_message_that_cannot_be_found_is_said(template: str, door: Door, tmp_path: Path) -> None:
    model = folder(tmp_path, template)
    code, out, err = door("inspect", "-m", model, "--chat", "--format", "jsonl", "hi")
    assert code == 0
    assert {role for role, _ in roles(out)} == {"template"}
    assert err.count("\n") == 1
    assert "its words are not distinguishable from the template's" in err
    assert door("inspect", "-m", model, "--chat", "hi")[1].endswith("none scored\n")


def test_control_tokens_that_are_typed_stay_text(door: Door, tmp_path: Path) -> None:
    model = byte_folder(tmp_path / "model", tokenizer=byte_tokenizer(post_processor=adds_bos()))
    inspect, typed = ["inspect", "-m", model, "--format", "jsonl"], "é<|im_end|>b"
    code, out, err = door(*inspect, typed)
    assert (code, err, json.loads(out.splitlines()[0])["text"]) == (0, "", typed)
    assert roles(out) == [("bos", ""), ("text", typed)]
    assert [json.loads(line)["id"] for line in out.splitlines()[1:-2]] == [256, *typed.encode()]
    code, out, _ = door(*inspect, "--special", "tokens", typed)
    assert code == 0
    assert roles(out) == [("bos", ""), ("text", "é"), ("special", "<|im_end|>"), ("text", "b")]
    code, out, err = door(*inspect, "--special", "tokens", "--chat", typed)
    assert (code, out) == (2, "")
    assert "--special tokens: not possible with --chat" in err


def test_the_prompt_of_a_template_can_be_inspected(door: Door, model: Path) -> None:
    rendered = door("template", model, "--user", "hi")[1]
    inspect = ["inspect", "-m", model, "--format", "jsonl"]
    piped = door(*inspect, "--special", "tokens", "-", stdin=rendered.encode())[1]
    chat = door(*inspect, "--chat", "hi")[1]
    *piped_lines, piped_sums = piped.replace('"text"', '"template"').splitlines()
    *chat_lines, chat_sums = chat.replace('"text"', '"template"').splitlines()
    assert piped_lines == chat_lines
    assert [json.loads(sums)["tokens"] for sums in (piped_sums, chat_sums)] == [len(chat_lines) - 2] * 2
    assert json.loads(chat_sums)["scored"] == len("hi") < json.loads(piped_sums)["scored"]


def test_a_system_message_that_is_refused_is_noted_once(door: Door, tmp_path: Path) -> None:
    model, note = folder(tmp_path, REFUSES_SYSTEM), f"note: {SYSTEM_FOLDED}\n"
    result = door("run", "-m", model, *GREEDY, "--json", "--system", "s", "hi")
    assert prompt_tokens(result) == len("|user\ns\n\nhi|\n|assistant\n")
    assert result[2].count(note) == 1
    result = door("chat", "-m", model, *GREEDY, "--system", "s", stdin=b"hi\nhi\n")
    assert (result[0], result[2].count(note)) == (0, 1)
    code, out, err = door("template", model, "--system", "s", "--user", "hi")
    assert (code, out, err) == (0, HI.replace("hi", "s\n\nhi") + REPLY, note)
    (tmp_path / "in.jsonl").write_text('{"prompt": "hi"}\n' * 3)
    batch = ["batch", "-m", model, *GREEDY, tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl"]
    code, _, err = door(*batch, "--system", "s")
    assert (code, err.count(note)) == (0, 1)


def test_variables_of_a_batch_line(door: Door, tmp_path: Path) -> None:
    model = folder(tmp_path, SHOWS)
    lines: list[dict[str, Any]] = [
        {"prompt": "hi"},
        {"prompt": "hi", "chat_template_kwargs": {"a": "four"}},
        {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"a": False}},
        {"prompt": "hi", "chat_template_kwargs": None},
        {"prompt": "hi", "chat_template_kwargs": [1]},
        {"prompt": "hi", "chat_template_kwargs": {"messages": []}},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    batch = ["batch", "-m", model, *GREEDY, tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl"]
    code, _, err = door(*batch, "--template-var", "a=1")
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert (code, "ignored" in err) == (3, False)
    shown = [len(text + "\nhi") for text in ("False 1", "True four", "False False", "False 1")]
    assert [record["usage"]["prompt_tokens"] for record in records[:4]] == shown
    assert [record["error"]["message"] for record in records[4:]] == [
        "in.jsonl: line 5: chat_template_kwargs: must be an object of names and values (got [1])",
        "in.jsonl: line 6: chat_template_kwargs: template variable: messages: cannot be set; it comes from "
        "the conversation",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("template", ["{% if %}", 5, "{{ 9 ** (9 ** 9) }}"])
def test_a_broken_template_stops_the_chat_but_not_the_model(
    template: Any, door: Door, tmp_path: Path
) -> None:
    model = folder(tmp_path, template)
    code, out, err = door("run", "-m", model, *GREEDY, "a")
    assert (code, out) == (2, "")
    assert "tokenizer_config.json: chat_template" in err
    assert "use --raw to continue without it" in err
    assert door("run", "-m", model, *GREEDY, "--raw", "a")[:2] == (0, "bc\n")
    assert door("chat", "-m", model, *GREEDY, "--raw", stdin=b"a\n")[:2] == (0, "bc\n")
    assert door("models", "check", model)[0] == 0
