"""The base of all dialogs: a title, a line of keys, the key that closes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeVar

from rich.style import Style
from textual.await_complete import AwaitComplete
from textual.await_remove import AwaitRemove
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList

from ropechat.tui.commands import registry as keys
from ropechat.tui.widgets.bars import KeyHints
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.strip import Strip
    from textual.widgets.option_list import Option

    from ropechat.tui.commands.keymap import Item, Keymap

Result = TypeVar("Result")
REMOVAL_DELAY_S = 0.5  # seconds from when a dialog is left until its widgets go


def bindings(context: str, opener: str = "") -> list[BindingType]:
    """The key bindings of a dialog. opener: the command whose keys also close it."""
    found = keys.bindings(command for command in keys.DIALOGS if command.context == context)
    if opener:
        found.append(Binding(keys.BY_ID[opener].keys, "leave", id=opener, show=False))
    return [*found]


class ChoiceList(OptionList):
    """An OptionList whose chosen row is visible without colours."""

    def render_line(self, y: int) -> Strip:
        """Draw a row; Textual ignores `reverse` in style sheets."""
        strip = super().render_line(y)
        shown = self.app.native_ansi_color or self.app.no_color
        if shown and any(s.style and s.style.meta.get("option") == self.highlighted for s in strip):
            return strip.apply_style(Style(reverse=True))
        return strip


class Dialog(ModalScreen[Result]):
    """A dialog over the chat. heading: its title; items: the keys in its last line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *keys.bindings(keys.COMMON),
        Binding(keys.BY_ID["app.help"].keys, "app.command('app.help')", id="app.help", show=False),
    ]
    context: ClassVar[str] = "sheet"
    heading: ClassVar[str] = ""
    items: ClassVar[Sequence[Item]] = ("sheet.leave",)

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Close with a result, and what lies over it too; once: a second key may come before it is closed."""
        if not self.is_current:
            return AwaitComplete()
        while not self.is_active:  # Textual would close the topmost one instead, and give it this result
            self.app.screen.dismiss(None)
        return super().dismiss(result)

    def __init__(self, keymap: Keymap) -> None:
        super().__init__()
        self.keymap = keymap
        self.key_hints = KeyHints(self.items, keymap)
        self._sure = ""  # what the next press of the same key does permanently

    def on_mount(self) -> None:
        """Set the title, unless the dialog did."""
        if not self.query_one(".sheet").border_title:
            self.title_with("")

    def remove(self) -> AwaitRemove:
        """Defer the removal: it lays out the whole chat again and would delay the chosen action.

        Returns an empty AwaitRemove: awaiting it does not wait for the removal.
        """
        self.app.set_timer(REMOVAL_DELAY_S, super().remove)
        return AwaitRemove([])

    def title_with(self, words: str) -> None:
        """Set the title to the heading and `words`."""
        sheet = self.query_one(".sheet")
        more = f" · {one_line(words)}" if words else ""
        sheet.border_title = Content.assemble(self.heading, (more, "not bold $quiet"))

    def say(self, text: str, style: str = "$warning") -> None:
        """Show a text in the last line; "" shows the keys again."""
        self.key_hints.say(text, style)

    def is_sure(self, what: str, question: str) -> bool:
        """Whether a key is pressed again for the same item; the first press shows the question."""
        if self._sure == what:
            self._sure = ""
            return True
        self._sure = what
        self.say(question)
        return False

    def list_options(self, options: Iterable[Option], chosen: int | None) -> None:
        """Fill the list of the dialog, and highlight one option."""
        rows = self.query_one(OptionList)
        rows.clear_options()
        rows.add_options(options)
        rows.highlighted = chosen

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_move(self, by: int) -> None:
        """Move in the list, or scroll the text."""
        for options in self.query(OptionList):
            if by > 0:
                options.action_cursor_down()
            else:
                options.action_cursor_up()
            return
        for text in self.query(VerticalScroll):
            text.scroll_relative(y=by, animate=False)
