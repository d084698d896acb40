"""The entries of the command palette."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import SystemCommand

from ropechat.tui.commands import registry as keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ropechat.tui.commands.keymap import Keymap

SKIPPED = ("chat.interrupt", "answer.stop", "app.palette", *(f"alternative.{n}" for n in range(1, 10)))


def entries(
    keymap: Keymap, labels: Mapping[str, str], run: Callable[[keys.Command], object]
) -> Iterator[SystemCommand]:
    """Yield every command of the chat with its keys. labels: other labels by id; run: runs a command."""
    for command in (*keys.COMMANDS, *keys.READING):
        if command.id not in SKIPPED:
            shown = keymap.shown(command.id)
            help = f"{command.help}  ({shown})" if shown else command.help
            label = labels.get(command.id, command.label).capitalize()
            yield SystemCommand(label, help, lambda command=command: run(command))
