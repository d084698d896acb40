"""Sets of options: in groups of the help, which exclude or require which, and as dataclasses."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
HELP_ALL = "--help-all"
_LAST = "Help"
SHOWS_ALL = "ropechat.help_all"
"""The key in `click.Context.meta` of a help with all options."""


class Option(click.Option):
    """An option of a `GroupedCommand`.

    expert: only --help-all shows it. old: names that it had before; they work, and no help shows them.
    """

    def __init__(self, *given: Any, expert: bool = False, old: Sequence[str] = (), **details: Any) -> None:
        super().__init__(*given, **details)
        self.expert, self.old = expert, old
        self.title = "Options"

    def get_help_extra(self, ctx: click.Context) -> Any:
        found = super().get_help_extra(ctx)
        kind = self.type
        if "range" in found and isinstance(kind, click.IntRange | click.FloatRange):
            found["range"] = _range(kind.min, kind.max, above=kind.min_open)
        if isinstance(self.show_default, str):  # click adds parentheses
            found["default"] = self.show_default
        return found

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown = self.opts
        self.opts = [*shown, *self.old]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


def _range(low: float | None, high: float | None, *, above: bool) -> str:
    """What --help says of the values of a number: at least 1."""
    if low is None:
        return f"at most {high:g}"
    least = f"{'above' if above else 'at least'} {low:g}"
    return least if high is None else f"{least}, at most {high:,g}" if above else f"{low:g} to {high:g}"


option = partial(click.option, cls=Option)


def option_set(*options: Callable[[Any], Any], title: str = "Options") -> Callable[[F], F]:
    """Make one decorator of several options, which --help lists in this order.

    title: of their group in the help of a `GroupedCommand`.
    """

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
            made: Any = function
            made.__click_params__[-1].title = title
        return function

    return decorate


def given_flags(*, changed: bool = False) -> dict[str, str]:
    """The parameters of the current command that were given on the command line: name -> flag.

    changed: only those with another value than their default; of a choice, the flag with its value.
    """
    context, found = click.get_current_context(), dict[str, str]()
    for parameter in context.command.params:
        name, flag = str(parameter.name), _flag(parameter)
        if context.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        value, default = context.params.get(name), parameter.get_default(context)
        if changed and value == default:
            continue
        is_mode = changed and isinstance(default, str) and isinstance(parameter.type, click.Choice)
        found[name] = f"{flag} {value}" if is_mode else flag
    return found


def _flag(parameter: click.Parameter) -> str:
    return (
        max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name
    )


def refuse_given(mode: str, used: Collection[str]) -> None:
    """Raise UsageError for the first given option that has no effect in a mode of the command.

    mode: its flag. used: the names of the options that have one, that of the mode included.
    """
    for name, flag in given_flags().items():
        if name not in used:
            raise click.UsageError(f"{flag}: not possible with {mode}; omit it")


class Rule(NamedTuple):
    """What options exclude, each of them each, or require, one of them. By the names of parameters.

    hint: what to do; by default to omit one of the two, or to add what is missing.
    """

    options: str
    excludes: str = ""
    requires: str = ""
    hint: str = ""


def check_rules(*rules: Rule) -> None:
    """Raise UsageError for the first rule that the options break. One with its default value is not given."""
    given = given_flags(changed=True)
    for options, excludes, requires, hint in rules:
        for name in filter(given.get, options.split()):
            for other in filter(given.get, excludes.split()):
                hint = hint or "omit one of them"
                raise click.UsageError(f"{given[name]}: not possible with {given[other]}; {hint}")
            if requires and not any(map(given.get, requires.split())):
                every = {one.name: _flag(one) for one in click.get_current_context().command.params}
                wanted = " or ".join(every[other] for other in requires.split())
                raise click.UsageError(f"{given[name]}: requires {wanted}; {hint or 'add it'}")


def take(kind: type[T], given: dict[str, Any]) -> T:
    """Remove the values that a dataclass has as fields from `given`; return the dataclass."""
    return kind(**{one.name: given.pop(one.name) for one in fields(kind)})  # type: ignore[arg-type]


def _show_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_HELP_ALL = click.Option([HELP_ALL], is_flag=True, is_eager=True, expose_value=False, callback=_show_all)


def is_expert(parameter: click.Parameter) -> bool:
    """Whether only --help-all shows an option."""
    return getattr(parameter, "expert", False)


def is_help(parameter: click.Parameter) -> bool:
    """Whether an option shows something and ends the command."""
    return parameter.is_eager and not parameter.expose_value


class GroupedCommand(click.Command):
    """A command whose help lists options in groups, see `option_set`; --help-all also those for experts."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        found = super().get_params(ctx)
        return [*found, _HELP_ALL] if any(map(is_expert, self.params)) else found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        hidden = 0
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is None:
                continue
            if is_expert(parameter) and not ctx.meta.get(SHOWS_ALL):
                hidden += 1
                continue
            if parameter is _HELP_ALL:
                record = (HELP_ALL, f"Show all options, {hidden} more." if hidden else "Show all options.")
            title = _LAST if is_help(parameter) else getattr(parameter, "title", "Options")
            groups.setdefault(title, []).append(record)
        groups[_LAST] = groups.pop(_LAST, [])
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write(self.epilog.strip("\n") + "\n")


class CommandGroup(click.Group, GroupedCommand):
    """A group of such commands."""

    command_class = GroupedCommand

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        GroupedCommand.format_options(self, ctx, formatter)
