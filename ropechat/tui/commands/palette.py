"""The command palette: commands, the most used first, found by their names and descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import on
from textual.app import SystemCommand
from textual.await_complete import AwaitComplete
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.widgets import Input, OptionList

from ropechat.tui.commands import registry as keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ropechat.tui.commands.keymap import Keymap

SKIPPED = ("chat.interrupt", "answer.stop", "app.palette", *(f"alternative.{n}" for n in range(1, 10)))
DESCRIBED = 0.5  # the weight of a match in the description


def entries(
    keymap: Keymap, labels: Mapping[str, str], run: Callable[[keys.Command], object]
) -> Iterator[SystemCommand]:
    """Yield every command of the chat with its keys, the most used first.

    labels: other labels by id; run: runs a command.
    """
    place = {id: number for number, id in enumerate(keys.BY_USE)}
    every = [one for one in (*keys.COMMANDS, *keys.READING) if one.id not in SKIPPED]
    for command in sorted(every, key=lambda one: place.get(one.id, len(place))):
        shown = keymap.shown(command.id)
        help = f"{command.help}  ({shown})" if shown else command.help
        label = labels.get(command.id, command.label).capitalize()
        yield SystemCommand(label, help, lambda command=command: run(command))


def themes(names: Mapping[str, bool], use: Callable[[str], object]) -> Iterator[SystemCommand]:
    """Yield every theme. names: {name: whether it is dark}; they are not listed before a word is typed."""
    for name, dark in names.items():
        help = f"Colours: a {'dark' if dark else 'light'} theme"
        yield SystemCommand(f"Theme {name}", help, lambda name=name: use(name), discover=False)


class OncePalette(CommandPalette):
    """A palette that runs one command: keys and clicks that come before it is gone do nothing.

    Textual runs the command again, and raises ScreenStackError when it closes a second time; with a dialog
    over it, it would close that one instead.
    """

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Close, once."""
        return super().dismiss(result) if self.is_active else AwaitComplete()

    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def ignore_unless_on_top(self, event: Input.Submitted | OptionList.OptionSelected) -> None:
        """Keep Textual's handlers from the second event."""
        if not self.is_active:
            event.stop()
            event.prevent_default()


class ChatCommands(Provider):
    """The app's commands, in their order; a typed word is also looked for in their descriptions."""

    async def discover(self) -> Hits:
        """Every command."""
        for name, help, run, listed in self.app.get_system_commands(self.screen):
            if listed:
                yield DiscoveryHit(name, run, help=help)

    async def search(self, query: str) -> Hits:
        """The commands whose name, or all words in whose description, match."""
        matcher = self.matcher(query)
        words = query.casefold().split()
        for name, help, run, *_ in self.app.get_system_commands(self.screen):
            score = matcher.match(name)
            if all(word in f"{name} {help}".casefold() for word in words):
                score = max(score, DESCRIBED)
            if score > 0:
                yield Hit(score, matcher.highlight(name), run, help=help)
