"""Questions about single commands, options and models of the catalog; the answers are made from the code."""

import functools
import random
import re

from training.commands import (
    ASKED,
    MATERIAL,
    command_answer,
    commands,
    filled,
    model_answer,
    option_answer,
    options,
)
from training.outside import made_up
from training.patterns import Part, draw, fill
from training.turns import Turn, literal


@functools.cache
def _patterns(*keys: str) -> list[str]:
    """A list of patterns of commands.toml."""
    found = MATERIAL
    for key in keys:
        found = found[key]
    return [filled(pattern) for pattern in found]


@functools.cache
def asked_options() -> dict[str, float]:
    """Options that are asked about, and how often: those of `run` and `chat` more than others."""
    names = sorted({typed for command in ASKED for typed in options()[command]} - {"-h", "--help"})
    known = options()["run"].keys() | options()["chat"].keys()
    return {name: 1.0 if name in known else 0.3 for name in names}


@functools.cache
def _asked_commands() -> dict[str, float]:
    return {name: 0.6 if " " in name else 1.0 for name in commands()}


def _command(rng: random.Random, part: Part) -> list[Turn] | None:
    name = rng.choices(list(_asked_commands()), list(_asked_commands().values()))[0]
    by_name = rng.random() < 0.4
    goal = name if by_name else draw(_patterns("purposes", name), rng, part)
    in_shell = name in MATERIAL["in_shell_only"] or rng.random() < 0.5
    asked = "ask_command" if by_name else "ask_shell" if in_shell else "ask_purpose"
    wording = draw(_patterns(asked), rng, part)
    if not goal or not wording:
        return None
    key = re.escape(f"ropechat {name}")
    copied = (name,) if by_name else ()
    return [Turn(f"commands.{name}", fill(wording, x=goal), command_answer(name), (key,), copied)]


def _option(rng: random.Random, part: Part) -> list[Turn] | None:
    name = rng.choices(list(asked_options()), list(asked_options().values()))[0]
    answer, key = option_answer(name), literal(name.lstrip("-"))
    if rng.random() < 0.08:
        name = f"--{made_up(rng).lower()}"
        answer, key = MATERIAL["no_option"], ("do not know",)
    wording = draw(_patterns("ask_option"), rng, part)
    if wording is None:
        return None
    return [Turn("commands.option", fill(wording, x=name), answer, key, copied=(name.lstrip("-"),))]


def _model(rng: random.Random, part: Part) -> list[Turn] | None:
    from ropechat.models.catalog import read_catalog

    short = rng.choice([short for model in read_catalog() for short in model.short])
    wording = draw(_patterns("ask_model"), rng, part)
    if wording is None:
        return None
    answer = model_answer(short)
    return [
        Turn("commands.model", fill(wording, x=short), answer, literal(short.split(":")[0]), copied=(short,))
    ]


def question(rng: random.Random, part: Part) -> list[Turn] | None:
    """A question about a command, an option, or a model of the catalog."""
    return rng.choices((_command, _option, _model), (6, 4, 1))[0](rng, part)
