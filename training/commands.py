"""What the command line is: sentences about commands, options and models, made from their definitions.

Also the topics of commands.toml, in whose texts `<name>` stands for a group of words of that file, for a
fact of the code (`facts`), or for a phrase of program.toml.
"""

import functools
import re
from typing import Any

import click

from ropechat.cli.route import HELP
from training.material import table
from training.program import spell_out

MATERIAL: dict[str, Any] = table("commands")
_NAME = re.compile(r"<([^<>|]+)>")  # not <|im_end|>
ASKED = ("run", "chat", "inspect", "batch", "bench", "serve")
"""Commands whose options are asked about; the first one that has an option says what it means."""


@functools.cache
def root() -> click.Group:
    """The program `ropechat`."""
    from ropechat.cli.group import ropechat

    return ropechat


def _context(command: click.Command, name: str = "ropechat") -> click.Context:
    """With the program's names of the help option: click keeps those of the first context of a command."""
    return click.Context(command, info_name=name, help_option_names=list(HELP))


@functools.cache
def commands() -> dict[str, click.Command]:
    """All commands by name: `run`, `models`, `models pull` ..."""
    context = _context(root())
    found: dict[str, click.Command] = {}
    for name in root().list_commands(context):
        command = root().get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {under}": each for under, each in command.commands.items()}
    return found


@functools.cache
def options() -> dict[str, dict[str, click.Option]]:
    """Commands by name; of each its options by the names that people type (`-m`, `--model`)."""
    return {
        name: {
            typed: parameter
            for parameter in command.params
            if isinstance(parameter, click.Option)
            for typed in (*parameter.opts, *parameter.secondary_opts)
        }
        for name, command in commands().items()
    }


def _sentence(text: str, end: str = ".;:") -> str:
    """A help text up to a sign of `end`, without parentheses, from a small letter on."""
    text = " ".join(re.sub(r"\s*[\[(][^()\[\]]*[\])]", "", text).split())
    text = re.sub(r":(?=[;.])", "", text)  # what the parentheses left
    first = re.split(rf"(?<=[^.])[{end}](?:\s|$)", text)[0].rstrip(".;:,")
    return first if first[1:2].isupper() else first[:1].lower() + first[1:]


_PLACES = {  # what stands for an argument in a help text
    "Hub MODEL": "model of the Hub",
    "MODEL": "a model",
    "FILE": "the settings file",
    "WORDS": "your words",
}


def purpose(name: str) -> str:
    """What a command does, as an infinitive: `compare two models, types or prompts on one text`."""
    said = _sentence(_short_helps().get(name) or commands()[name].help or "")
    for place, words in _PLACES.items():
        said = re.sub(rf"\b{place}\b", words, said)
    return re.sub(r"^(\w+) model\b", r"\1 a model", said)


@functools.cache
def _short_helps() -> dict[str, str]:
    """The help of each command in the list of `ropechat --help`."""
    lines = root().get_help(_context(root())).splitlines()
    rows = (re.fullmatch(r"  (\w+) {2,}(\S.*)", line) for line in lines)
    return {row[1]: row[2] for row in rows if row and row[1] in commands()}


@functools.cache
def example(name: str) -> str | None:
    """The first short example in the help of a command."""
    command = commands()[name]
    lines = command.get_help(_context(command, f"ropechat {name}")).splitlines()
    found = [line.split("  #")[0].strip() for line in lines if line.strip().startswith(f"ropechat {name} ")]
    return next((line for line in found if len(line) <= 70), None)


def command_answer(name: str) -> str:
    """What a command is for, in a sentence."""
    return f"Use `ropechat {name}` to {purpose(name)}."


def in_short(name: str) -> dict[str, Any]:
    """A command as an entry of a TOML file: its answer, and its example if it has a short one."""
    shown = example(name)
    return {"answer": [command_answer(name)]} | ({"example": f"For example: `{shown}`."} if shown else {})


def _default(option: click.Option) -> str | None:
    """The default of an option that takes a value, if there is a plain one."""
    value = option.default
    takes_value = not option.is_flag and not option.multiple
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool) and value != "-"
    return str(value) if takes_value and is_plain else None


def option_answer(typed: str) -> str:
    """What an option means, in a sentence or two, from its help text."""
    command = next(name for name in ASKED if typed in options()[name])
    option = options()[command][typed]
    turns_off = typed in option.secondary_opts
    names = " or ".join(f"`{name}`" for name in (option.secondary_opts if turns_off else option.opts))
    own = MATERIAL["option_helps"].get(typed)
    said = own or _sentence(option.help or "", ".")
    if turns_off and own is None:
        return f"{names} turns this off: {said}."
    default = _default(option)
    usual = f" The default is {default}." if default is not None else ""
    lead = MATERIAL["option_leads"].get(str(option.name), "means:")
    return f"{names} {lead} {said}.{usual}"


def model_answer(short: str) -> str:
    """A model of the catalog: its size, memory and use."""
    from ropechat.models.catalog import read_catalog
    from ropechat.util.text import format_bytes

    model = next(model for model in read_catalog() if short in model.short)
    return (
        f"{model.short[0]} is {model.name}: {format_bytes(model.size)} to download, "
        f"{format_bytes(model.needs)} of memory. {model.about} `ropechat chat -m {model.short[0]}` gets it."
    )


@functools.cache
def facts() -> dict[str, str]:
    """Numbers and names for the answers of commands.toml, from the code."""
    from ropechat.batch.source import FORMATS
    from ropechat.inspector.spec import BY_SUFFIX
    from ropechat.models.catalog import read_catalog
    from ropechat.settings.spec import DTYPES
    from ropechat.util.text import format_bytes

    catalog = read_catalog()
    by_size = sorted(catalog, key=lambda model: model.size)
    found = {
        "batch formats": ", ".join(name.upper() if len(name) <= 4 else name for name in FORMATS),
        "inspect formats": ", ".join(BY_SUFFIX),
        "quantized types": ", ".join(name for name in DTYPES if name.startswith("q")),
        "float types": ", ".join(name for name in DTYPES if name[1:].isdigit() or name == "bf16"),
        "commands": ", ".join(f"`{name}`" for name in commands() if " " not in name),
        "smallest": by_size[0].short[0],
        "biggest": by_size[-1].short[0],
        "number of models": str(len(catalog)),
    }
    for typed, option in (options()["run"] | options()["serve"]).items():
        if (default := _default(option)) is not None:
            found[f"default {typed}"] = default
    for model in catalog:
        found[f"size {model.short[0]}"] = format_bytes(model.size)
        found[f"needs {model.short[0]}"] = format_bytes(model.needs)
    return found


def _meaning(name: str) -> str:
    """What stands for `<name>`: words of commands.toml, a fact of the code, a phrase of program.toml."""
    return MATERIAL["words"].get(name) or facts().get(name) or spell_out(f"<{name}>")


def filled(text: str) -> str:
    """A text with its `<name>`s replaced. Raises KeyError for an unknown name."""
    while _NAME.search(text):
        text = _NAME.sub(lambda match: _meaning(match[1]), text)
    return text


def with_facts(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of a TOML file with the names in all its texts replaced."""

    def replaced(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(text) for text in value]
        return filled(value) if isinstance(value, str) else value

    return {key: replaced(value) for key, value in entry.items()}


@functools.cache
def topics() -> list[dict[str, Any]]:
    """The topics of commands.toml with their names replaced."""
    return [with_facts(topic) for topic in MATERIAL["topic"]]
