"""`ropechat completion`: the script by which a shell completes commands, options, models and chats."""

from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from ropechat.cli.common import StdoutWriter
from ropechat.cli.option_groups import GroupedCommand

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_ROPECHAT_COMPLETE"
_EXAMPLES = """
  eval "$(ropechat completion bash)"    # in ~/.bashrc
  eval "$(ropechat completion zsh)"     # in ~/.zshrc, after compinit
  ropechat completion fish > ~/.config/fish/completions/ropechat.fish
"""


class _Bash(BashComplete):
    """Bash, which takes the colon of a name such as qwen3:0.6b for the end of a word."""

    name = "bash"
    _split = ""
    """What the word has before the part that bash replaces."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, last = super().get_completion_args()
        words: list[str] = []
        for word in (*args, last):
            if words and words[-1] != "" and (word.startswith(":") or words[-1].endswith(":")):
                words[-1] += word
            else:
                words.append(word)
        whole = words.pop()
        self._split = whole[: whole.rindex(":") + 1] if whole != last and ":" in whole else ""
        return words, whole

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type},{str(item.value).removeprefix(self._split)}"


def register() -> None:
    """Have click use these classes."""
    add_completion_class(_Bash)


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
