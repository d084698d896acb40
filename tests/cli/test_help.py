"""What --help says of every command, and the names that options had before."""

import re
from typing import Any

import click
import pages
import pytest
from click.testing import CliRunner

from ropechat.cli.common import Count
from ropechat.cli.group import ropechat
from ropechat.cli.option_groups import HELP_ALL, Option, is_expert

COMMANDS = {"": ropechat, **dict(pages.commands())}
OLD = {
    "rope": {"--text": "text", "--out": "out", "--view": "names"},
    "inspect": {"--head": "head", "--sampler-top-k": "stages_top_k", "--out": "out"},
    "compare": {"--top": "top", "--top-k": "top_k", "--given": "given_file"},
    "tree": {"--top-k": "top_k"},
    "why": {"--head": "head"},
    "matrix": {"--prompts": "prompts_file", "--answers": "answers_file"},
    "batch": {
        "--in": "input_format",
        "--out": "output_format",
        "--window": "window",
        "--timeout-row": "timeout",
    },
    "api": {"--window": "window"},
    "models rm": {"--read": "kv_cache"},
}


def shown(name: str, *words: str) -> str:
    found = CliRunner().invoke(ropechat, [*name.split(), *words], env={"COLUMNS": "80"})
    assert found.exit_code == 0, found.output
    return found.output


def options(command: click.Command) -> list[Option]:
    return [one for one in command.params if isinstance(one, Option)]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_has_examples_and_says_what_each_option_does(name: str) -> None:
    command, short = COMMANDS[name], shown(name, "--help")
    everything = shown(name, HELP_ALL) if any(map(is_expert, command.params)) else short
    assert max(map(len, everything.splitlines())) <= 80
    assert "Examples:\n  " in short
    if isinstance(command, click.Group):
        assert not re.search(r"\w\.\.\.$", short, re.MULTILINE), "the first sentence of a command is too long"
    for one in options(command):
        assert one.help
        flag = max(one.opts, key=len)
        assert flag in everything
        assert is_expert(one) or flag in short


@pytest.mark.parametrize("name", [name for name, one in COMMANDS.items() if len(options(one)) > 6])
def test_long_helps_are_in_groups(name: str) -> None:
    assert "\nOptions:" not in shown(name, "--help")
    assert shown(name, "--help").rstrip().endswith(COMMANDS[name].epilog.rstrip().splitlines()[-1].strip())  # type: ignore[union-attr]


def test_options_for_experts_are_in_the_whole_help_only() -> None:
    short, everything = shown("run", "--help"), shown("run", HELP_ALL)
    assert "--dry-base" not in short
    assert "--dry-base" in everything
    assert "Show all options, " in short
    assert "Show all options.\n" in everything


@pytest.mark.parametrize(("name", "flag"), [(name, flag) for name, found in OLD.items() for flag in found])
def test_an_old_name_means_what_it_meant(name: str, flag: str) -> None:
    command: Any = COMMANDS[name]
    (option,) = (one for one in options(command) if one.name == OLD[name][flag])
    new = max(option.opts, key=len)
    names = ["-h", "--help"]  # click remembers those of the first call
    parser = command.make_parser(click.Context(command, help_option_names=names))

    def parsed(word: str) -> Any:
        return parser.parse_args([word] if option.is_flag else [word, "1"])[0][option.name]

    assert parsed(flag) == parsed(new)
    assert f" {flag} " not in shown(name, "--help")


def test_one_name_means_one_thing() -> None:
    """Options with one name have one kind of value in all commands, but for those listed here."""
    differ = {
        "--answer",  # several in matrix
        "--dtype",  # of bench: one more
        "--file",  # several in inspect and why
        "--output",  # a folder in man
        "--prompt",  # several in matrix
        "--resume",  # a stored chat, or a batch
        "--shape",  # a name in bench; of rope also "list"
        "--threads",  # several in bench
    }
    kinds: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for one in options(command):
            is_number = isinstance(one.type, Count | type(click.INT))
            kind = ("number" if is_number else type(one.type).__name__, one.multiple, one.is_flag)
            kinds.setdefault(max(one.opts, key=len), set()).add(f"{kind}")
    assert {flag for flag, found in kinds.items() if len(found) > 1} <= differ
