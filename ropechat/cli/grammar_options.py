"""The options that say what answers must match: --json-schema, --regex, --choices, --lark."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import complete_file
from ropechat.cli.option_groups import option, option_set
from ropechat.errors import RequestError

if TYPE_CHECKING:
    from ropechat.sampling.grammar import Grammar

OPTIONS = ("json_schema", "regex", "choices", "lark")


grammar_options = option_set(
    option(
        "--json-schema",
        metavar="FILE|JSON",
        shell_complete=complete_file,
        help='Answers are JSON of this JSON schema: a file, or an object such as \'{"type": "integer"}\'.',
    ),
    option("--regex", metavar="RE", help="Answers match this regular expression as a whole."),
    option("--choices", metavar="A,B,...", help="Answers are one of these texts."),
    option(
        "--lark",
        expert=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Answers match this Lark grammar (llguidance's dialect).",
    ),
    option(
        "--json-flexible",
        is_flag=True,
        expert=True,
        help="With --json-schema: allow whitespace in JSON; without, it is compact.",
    ),
    title="Structured output",
)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def grammar_of(given: dict[str, Any]) -> "Grammar | None":
    """Remove the options from `given`; return the grammar that they ask for, checked.

    Raises UsageError, RequestError if it cannot be used, FileAccessError.
    """
    asked = {name: given.pop(name) for name in OPTIONS}
    flexible: bool = given.pop("json_flexible")
    chosen = [name for name, value in asked.items() if value is not None]
    if len(chosen) > 1:
        first, second = (_flag(name) for name in chosen[:2])
        raise click.UsageError(f"{second}: must not be given together with {first}")
    if not chosen:
        return None
    from ropechat.engine.grammars import (  # imported here: rarely needed
        check_grammar,
        read_grammar,
        schema_of,
    )
    from ropechat.sampling.grammar import Grammar

    (name,) = chosen
    value = asked[name]
    if name in ("json_schema", "lark"):
        try:
            if name == "json_schema":
                return schema_of(value, flexible=flexible)
            return read_grammar(value, "lark")
        except RequestError as error:
            raise RequestError(f"{_flag(name)}: {error}") from None
    if name == "regex":
        return check_grammar(Grammar.regex(value), "--regex")
    return check_grammar(Grammar.choices(text.strip() for text in value.split(",")), "--choices")


@contextlib.contextmanager
def naming_option(grammar: "Grammar | None") -> Iterator[None]:
    """While a grammar is compiled for a model: an error names its option. Raises RequestError."""
    try:
        yield
    except RequestError as error:
        kind, _, text = str(error).partition(": ")
        if grammar is None or kind != "grammar":
            raise
        raise RequestError(f"{_flag(grammar.kind)}: {text}") from None
