"""`ropechat completion`: the script by which a shell completes commands, options, models and chats."""

import re

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    get_completion_class,
)

from ropechat.cli.common import StdoutWriter
from ropechat.cli.option_groups import GroupedCommand
from ropechat.cli.route import with_command

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_ROPECHAT_COMPLETE"
_EXAMPLES = """
  eval "$(ropechat completion bash)"    # in ~/.bashrc
  eval "$(ropechat completion zsh)"     # in ~/.zshrc, after compinit
  ropechat completion fish > ~/.config/fish/completions/ropechat.fish
"""


class _Complete(ShellComplete):
    """What the shells have in common."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Also without a command, as `ropechat -m`; after `--dtype=` the values come with the option."""
        found = super().get_completions(with_command(args) if args else args, incomplete)
        option, equals, _ = incomplete.partition("=")
        if equals and option.startswith("--"):
            for item in found:
                item.value = f"{option}={item.value}" if item.type == "plain" else item.value
        return found


class _Bash(_Complete, BashComplete):
    """Bash, which takes a colon (qwen3:0.6b) or an equals sign for the end of a word."""

    _split = ""
    """What the word has before the part that bash replaces."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, last = super().get_completion_args()
        words: list[str] = []
        for word in (*args, last):
            if words and words[-1] != "" and (word.startswith((":", "=")) or words[-1].endswith((":", "="))):
                words[-1] += word
            else:
                words.append(word)
        whole = words.pop()
        cut = max(whole.rfind(":"), whole.rfind("=")) + 1
        self._split = whole[:cut] if whole != last else ""
        return words, whole

    def format_completion(self, item: CompletionItem[str]) -> str:
        return f"{item.type},{item.value.removeprefix(self._split)}"


class _Zsh(_Complete, ZshComplete):
    """Zsh; click's script takes all of `--option=file` for the name of a file."""

    source_template = re.sub(
        r"( +)(_path_files \S+)",
        r"""\1local before=$IPREFIX word=$PREFIX
\1[[ $PREFIX == --* ]] && compset -P 1 '*='
\1\2
\1IPREFIX=$before PREFIX=$word""",
        ZshComplete.source_template,
    )


class _Fish(_Complete, FishComplete):
    """Fish; click's script cuts a description, or the name of a file, at its first comma, and proposes files
    without the option of `--option=file`.
    """

    source_template = re.sub(
        r"(__fish_complete_\w+ [^;]+);",
        r"""\1 | string replace -r '^' -- (string match -r -- '^--[^=]+=|^' (commandline -t));""",
        FishComplete.source_template.replace('string split ","', 'string split --max 1 ","'),
    )


def register() -> None:
    """Have click use these classes."""
    for kind in (_Bash, _Zsh, _Fish):
        add_completion_class(kind)


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script by which a shell completes ropechat.

    It completes commands, options and their values, names of models, and ids of chats with their titles. A
    shell that has read the script asks ropechat, so nothing is to be done after an update.
    """
    from ropechat.cli.group import ropechat

    register()
    kind = get_completion_class(shell)
    assert kind is not None
    StdoutWriter().write(kind(ropechat, {}, "ropechat", VARIABLE).source())
