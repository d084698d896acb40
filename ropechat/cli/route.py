"""Which command a command line without one means: the chat, or a question."""

import re
from collections.abc import Sequence

HELP = ("-h", "--help")
OWN_OPTIONS = (*HELP, "-V", "--version")
_NAME = re.compile(r"[\w./\\:@~=-]+", re.ASCII)  # a command, a model or a path
_CONTINUES = ("-c", "--continue")


def is_question(word: str) -> bool:
    """Whether a word can only be a question: it has a space, or a sign that names do not have."""
    return bool(word.strip()) and _NAME.fullmatch(word) is None


def with_command(given: Sequence[str]) -> list[str]:
    """The command line with its command: `run` for a question, `chat` for nothing or options alone."""
    if not given:
        return ["chat"]
    if given[0].startswith("-") and given[0] not in OWN_OPTIONS:
        return ["run" if _asks(given) else "chat", *given]
    return ["run", *given] if is_question(given[0]) and not _exists(given[0]) else list(given)


def _asks(given: Sequence[str]) -> bool:
    """Whether options are followed by a question; `run` knows which words are values of options."""
    if not any(is_question(word) or word in _CONTINUES for word in given):
        return False
    import click  # imported here: the chat begins without it

    from ropechat.cli.run import run

    context = click.Context(run, help_option_names=list(HELP))
    try:
        values, *_ = run.make_parser(context).parse_args(list(given))
    except click.ClickException:
        return False
    words = values.get("words")
    return bool(words) and isinstance(words, tuple)  # else click's mark for nothing


def _exists(path: str) -> bool:
    import os

    return os.path.exists(path)
