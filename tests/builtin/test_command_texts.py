"""What the built-in model learns about the command line is what the command line is."""

import re
import tomllib
from typing import Any

import click
import pytest

from ropechat.models.catalog import read_catalog
from training import command_line, commands
from training.material import FOLDER
from training.patterns import expand, wordings

OTHERS = {"--cached", "--help", "--version", "--yes"}  # of every command, or of the group
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*|(?<![\w-])-[a-zA-Z](?![\w-])")
_COMMAND = re.compile(r"`ropechat ([a-z]+)(?: ([a-z]+))?")


def _texts(value: Any, place: str = "") -> list[tuple[str, str]]:
    """Every answer of a table: (where, text)."""
    if isinstance(value, dict):
        return [found for key, one in value.items() for found in _texts(one, f"{place}.{key}")]
    if isinstance(value, list):
        return [found for one in value for found in _texts(one, place)]
    is_answer = place.endswith((".answer", ".more", ".example", ".what", ".no_option"))
    return [(place, value)] if isinstance(value, str) and is_answer else []


def _answers() -> list[tuple[str, str]]:
    written = [
        (path.name, text)
        for path in sorted(FOLDER.glob("*.toml"))
        if path.name != "commands.toml"
        for _, text in _texts(tomllib.loads(path.read_text(encoding="utf-8")))
    ]
    written += [(topic["id"], text) for topic in commands.topics() for _, text in _texts(topic)]
    written += [(name, commands.command_answer(name)) for name in commands.commands()]
    written += [(name, commands.example(name) or "") for name in commands.commands()]
    written += [(name, commands.option_answer(name)) for name in command_line.asked_options()]
    written += [("model", commands.model_answer(model.short[0])) for model in read_catalog()]
    return written


def test_every_command_and_option_of_an_answer_exists() -> None:
    known = {typed for options in commands.options().values() for typed in options} | OTHERS | {"-V", "-h"}
    for place, text in _answers():
        text = re.sub(r"ropechat eval .*", "", text)  # has options of the harness too
        for typed in _OPTION.findall(text):
            assert typed in known, (place, text)
        for name, under in _COMMAND.findall(text):
            assert name in commands.commands(), (place, text)
            if isinstance(commands.commands()[name], click.Group) and under:
                assert f"{name} {under}" in commands.commands(), (place, text)


def test_no_answer_spells_a_control_token() -> None:
    """It would be learned as the token itself, in the middle of an answer."""
    assert not [place for place, text in _answers() if "<|" in text]


def test_every_option_stands_with_a_command_that_has_it() -> None:
    """In `ropechat run --json-schema FILE`, `run` has the option."""
    for place, text in _answers():
        for line in re.findall(r"`ropechat ([^`]+)`", text):
            words = line.split(" | ")[0].split()
            name = next((key for key in (" ".join(words[:2]), words[0]) if key in commands.commands()), None)
            if name in (None, "eval"):  # the harness has options of its own
                continue
            assert name is not None
            typed = {word.split("=")[0] for word in words[1:] if _OPTION.fullmatch(word.split("=")[0])}
            assert typed <= {*commands.options()[name], *OTHERS}, (place, line)


def test_every_command_has_questions() -> None:
    purposes = commands.MATERIAL["purposes"]
    assert set(purposes) == set(commands.commands())
    assert set(commands.MATERIAL["in_shell_only"]) < set(purposes)
    for name, patterns in purposes.items():
        assert sum(wordings(commands.filled(pattern)) for pattern in patterns) >= 3, name
        assert commands.purpose(name)[0].islower(), name


def test_every_option_has_a_sentence() -> None:
    for name in command_line.asked_options():
        answer = commands.option_answer(name)
        assert answer.startswith("`-"), name
        assert len(answer.split()) >= 4, name
        assert not re.search(r": \.(\s|$)", answer), name


def test_the_models_named_are_in_the_catalog() -> None:
    shorts = {short for model in read_catalog() for short in model.short}
    for place, text in _answers():
        for name in re.findall(r"\b(?:smollm|qwen|gemma|llama|olmo|phi|mistral|gpt-oss)[\w.-]*:[\w.]+", text):
            assert name.rstrip(".") in shorts, (place, text)


def test_numbers_of_the_code() -> None:
    """What the answers quote without a fact of the code."""
    from ropechat.cli import exit_codes
    from ropechat.settings.spec import DTYPES, KV_DTYPES

    codes = next(topic for topic in commands.topics() if topic["id"] == "exit_codes")["answer"][0]
    for code in (exit_codes.REFUSED, exit_codes.SOME_FAILED, exit_codes.BUG, exit_codes.IO_FAILED):
        assert re.search(rf"\b{code}\b", codes)
    for _, text in _answers():
        for dtype in re.findall(r"--(?:against-)?dtype ([bfq]\w+)", text):
            assert dtype in DTYPES, text
        for dtype in re.findall(r"--kv-dtype (\w+)", text):
            assert dtype in KV_DTYPES, text


def test_names_in_texts_are_replaced() -> None:
    for topic in commands.topics():
        for text in [*topic["ask"], *(text for _, text in _texts(topic))]:
            assert not re.search(r"<[a-z]", text), (topic["id"], text)
    with pytest.raises(KeyError):
        commands.filled("<nothing>")


def test_every_topic_has_many_wordings() -> None:
    import random

    for topic in commands.topics():
        assert sum(map(wordings, topic["ask"])) >= 40, topic["id"]
        for pattern in topic["ask"]:
            assert expand(pattern, random.Random(1))
        for key in topic["keys"]:
            for answer in topic["answer"]:
                shown = re.sub(r"\{/?[\w.]+\}", "Ctrl+X", answer)
                assert re.search(key, shown, re.IGNORECASE), (topic["id"], key)
