"""The `ropechat` command: its subcommands by name, `chat` when none is named."""

import importlib
import os
import shlex
from collections.abc import Sequence

import click

from ropechat.cli.option_groups import HELP_ALL, CommandGroup, option
from ropechat.cli.route import HELP

_GROUPS = {
    "Ask": {
        "chat": "Talk with a model (also: ropechat without a command).",
        "run": 'Answer one question (also: ropechat "question").',
    },
    "Look inside": {
        "inspect": "Show the probability of each token of a text.",
        "tree": "Show the likeliest continuations of a text.",
        "why": "Show which parts of a context an answer comes from.",
        "matrix": "Show how probable answers are after prompts.",
        "compare": "Compare two models, types or prompts on one text.",
        "rope": "Show what a model does with positions.",
        "template": "Show the prompt that a chat template renders from messages.",
    },
    "Many prompts": {
        "batch": "Complete many prompts of a file or pipe.",
        "merge": "Merge the shards of a batch.",
        "eval": "Evaluate a model with lm-evaluation-harness.",
    },
    "Serve": {
        "serve": "Serve the chat to a browser on this machine.",
        "api": "Serve a model over HTTP in the form of OpenAI's API.",
    },
    "Manage": {
        "models": "List, download, show, check and remove models.",
        "chats": "List, search, export and delete stored conversations.",
        "config": "Show and check the settings.",
        "bench": "Measure how fast this machine is with a model.",
        "doctor": "Check what ropechat needs on this machine.",
        "completion": "Print the script by which a shell completes ropechat.",
        "man": "Show or write the manual pages.",
    },
}
COMMANDS = {name: help for group in _GROUPS.values() for name, help in group.items()}
_EXAMPLES = """
  ropechat                              # the chat
  ropechat "Why is the sky blue?"       # one answer, to stdout
  ropechat chat qwen3:0.6b              # a model from the Hub
  ropechat inspect "The cat sat on the mat."
  ropechat batch prompts.jsonl -o answers.jsonl
"""
_COMMANDS_WITH_SETTINGS = {
    "chat": True,
    "run": True,
    "batch": True,
    "api": True,
    "inspect": False,
    "tree": False,
    "why": False,
    "matrix": False,
    "compare": False,
    "rope": False,
    "template": False,
    "eval": False,
}  # whether they sample
ARGUMENTS = "ropechat.arguments"
"""The key of the command line's words in `click.Context.meta`."""


class LateGroup(CommandGroup):
    """Imports a command on use; help imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        function = "evaluate" if cmd_name == "eval" else cmd_name  # not the name of a builtin
        command = getattr(importlib.import_module(f"ropechat.cli.{cmd_name}"), function)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", help) for name, help in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise click.UsageError(_no_command(args), ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = tuple(args)
        if (
            not ctx.resilient_parsing
            and args[0] in _COMMANDS_WITH_SETTINGS
            and not {*HELP, HELP_ALL} & set(args)
        ):
            from ropechat.cli.common import read_user_settings

            ctx.obj = read_user_settings()
            ctx.default_map = {args[0]: ctx.obj.options(sampling=_COMMANDS_WITH_SETTINGS[args[0]])}
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            given = ctx.meta[ARGUMENTS]
            is_sentence = "unexpected extra" in error.message and not any(w.startswith("-") for w in given)
            if is_sentence and error.ctx is not None and error.ctx.parent is ctx:
                asked = f"{error.message}; to ask a question: {_as_question(given)}"
                raise click.UsageError(asked, error.ctx) from None
            raise


def _as_question(words: Sequence[str]) -> str:
    """The command that asks these words."""
    from ropechat.util.width import fit

    prompt = fit(" ".join(words), 40).rstrip().replace('"', '\\"')
    return f'`ropechat "{prompt}"`' if " " in prompt else f'`ropechat run "{prompt}"`'


def _no_command(args: list[str]) -> str:
    """The error for an unknown command: a typo, or a prompt without a command."""
    from ropechat.models.catalog import find_short
    from ropechat.util.text import closest_name
    from ropechat.util.width import fit

    first = fit(args[0], 40).rstrip()
    if os.path.exists(args[0]) or find_short(args[0]) is not None:
        return f"{first}: unknown command; did you mean `ropechat chat -m {shlex.quote(args[0])}`?"
    words = [word for word in args if not word.startswith("-")] or args
    meant = closest_name(args[0], COMMANDS)
    also = f"`ropechat {meant}`, or " if meant else ""
    return f"{first}: unknown command; did you mean {also}{_as_question(words)}?"


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"ropechat {version('ropechat')}")
    except PackageNotFoundError:
        click.echo("ropechat (not installed)")
    ctx.exit()


@click.group(
    cls=LateGroup,
    epilog=_EXAMPLES,
    context_settings={"help_option_names": list(HELP), "max_content_width": 100},
)
@option(
    "-V",
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version.",
)
def ropechat() -> None:
    """Chat with local language models and see every token's probability.

    Without a command, ropechat opens the chat; a question in quotes is answered, as by `run`. A model is a
    folder with config.json, *.safetensors and tokenizer.json, a .gguf file, or a repository of the Hugging
    Face Hub.
    """
