"""Sets of options, and a command whose help lists options in groups, with examples at the end."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def option_set(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Make one decorator of several options, which --help lists in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def given_flags() -> dict[str, str]:
    """The options of the current command that were given on the command line: name -> flag."""
    context = click.get_current_context()
    return {
        str(option.name): max(option.opts, key=len)
        for option in context.command.params
        if isinstance(option, click.Option)
        and context.get_parameter_source(str(option.name)) is click.core.ParameterSource.COMMANDLINE
    }


def refuse_given(mode: str, used: Collection[str]) -> None:
    """Raise UsageError for the first given option that has no effect in a mode of the command.

    mode: its flag. used: the names of the options that have one, that of the mode included.
    """
    for name, flag in given_flags().items():
        if name not in used:
            raise click.UsageError(f"{flag}: not possible with {mode}; omit it")


class GroupedCommand(click.Command):
    """groups: title -> names of parameters; others come under Options. examples: lines that run as is."""

    def __init__(
        self, *args: Any, groups: Mapping[str, Sequence[str]], examples: Sequence[str] = (), **details: Any
    ) -> None:
        super().__init__(*args, **details)
        self._groups = groups
        self._examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records: dict[str, tuple[str, str]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                records[str(parameter.name)] = record
        for title, names in self._groups.items():
            rows = [records.pop(name) for name in names if name in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if records:
            with formatter.section("Options"):
                formatter.write_dl(list(records.values()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self._examples:
            with formatter.section("Examples"):
                for line in self._examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
