"""The questions of newcomers that judge the built-in model: as many as they say, and true of the program."""

import json
import re
from collections import Counter
from pathlib import Path

import training
from ropechat.cli.group import LateGroup
from ropechat.tui.commands import registry

FILE = Path(training.__file__).with_name("newcomers.jsonl")
ASKED = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def test_there_are_as_many_as_the_card_says() -> None:
    assert Counter(one["group"] for one in ASKED) == {"program": 50, "general": 150, "dialogue": 40}
    assert len({one["id"] for one in ASKED}) == len({tuple(one["turns"]) for one in ASKED}) == len(ASKED)
    for one in ASKED:
        assert len(one["turns"]) in ((2, 3, 4) if one["group"] == "dialogue" else (1,))


def test_what_they_expect_of_the_program_is_there() -> None:
    keys = {key for command in registry.ALL for key in command.keys.split(",")}
    typed = {command.slash for command in registry.ALL}
    commands = set(LateGroup().list_commands(None))  # type: ignore[arg-type]
    for one in ASKED:
        expects = one["expects"]
        assert {name.lower() for name in re.findall(r"\bF\d+", expects)} <= keys, one
        assert {f"ctrl+{key.lower()}" for key in re.findall(r"Ctrl\+(\w)", expects)} <= keys, one
        assert set(re.findall(r"(?<![\w.])/([a-z]+)", expects)) <= typed, one
        assert set(re.findall(r"`ropechat ([a-z]+)", expects)) <= commands, one
