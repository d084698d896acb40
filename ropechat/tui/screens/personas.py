"""Personas: choose, save, delete a system text with a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ropechat.chat import personas
from ropechat.chat.errors import explain
from ropechat.errors import RopechatError
from ropechat.tui.format.lists import NOT_SAVED, persona_line, persona_rows
from ropechat.tui.screens.dialog import ChoiceList, Dialog, bindings
from ropechat.tui.widgets.input import SanitizedInput
from ropechat.util.text import one_line
from ropechat.util.width import cell_width, fit

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.tui.commands.keymap import Keymap

NOTE = "/system TEXT writes one, /system - none; the next question begins a branch."


class PersonasScreen(Dialog["str | None"]):
    """No system text, the one in use, and every persona; the result is the text to use."""

    BINDINGS = bindings("personas")
    context = "personas"
    heading = "personas"
    items = (("⏎", "choose"), "personas.name", "personas.delete", "sheet.leave")

    def __init__(self, system: str | None, keymap: Keymap) -> None:
        super().__init__(keymap)
        self._system = system or ""
        self._rows: list[tuple[str, str]] = []  # name, text

    def compose(self) -> ComposeResult:
        with Vertical(id="personas", classes="sheet"):
            yield Static(Content.styled(NOTE + "\n", "$quiet"), markup=False)
            yield ChoiceList(id="texts", markup=False)
            yield SanitizedInput(id="name", placeholder="name of this system text")
            yield self.key_hints

    def on_mount(self) -> None:
        self.query_one("#name").display = False
        self._list()
        self.query_one(OptionList).focus()

    def on_resize(self) -> None:
        self._list()

    def _list(self) -> None:
        try:
            kept = personas.load()
        except RopechatError as error:
            kept = {}
            self.say(explain(error), "$error")
        self._rows = persona_rows(self._system, kept)
        options = [Option(self._line(name, text)) for name, text in self._rows]
        self.list_options(options, [text for _, text in self._rows].index(self._system))

    def _line(self, name: str, text: str) -> Content:
        width = min(24, max(cell_width(one_line(name)) for name, _ in self._rows))
        room = max(10, min(96, self.app.size.width - 4) - width - 5)
        line = persona_line(name, text == self._system, width)
        return Content.assemble(*line, ("  " + fit(one_line(text), room), "$quiet"))

    def _chosen(self) -> tuple[str, str]:
        return self._rows[self.query_one(OptionList).highlighted or 0]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._rows[event.option_index][1])

    def action_name(self) -> None:
        """Ask for a name."""
        if not self._chosen()[1]:
            self.say("there is no text to save; /system TEXT sets one")
            return
        field = self.query_one("#name", Input)
        field.display, field.value = True, ""
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Save the system text under the name."""
        event.stop()
        try:
            path = personas.save(event.value.strip(), self._chosen()[1])
        except RopechatError as error:
            self.say(explain(error))
            return
        self._end_naming()
        self._list()
        self.say(f"kept: {path}", "$quiet")

    def action_leave(self) -> None:
        """Close, or end naming."""
        if self.query_one("#name").display:
            self._end_naming()
        else:
            self.dismiss(None)

    def _end_naming(self) -> None:
        self.query_one("#name").display = False
        self.query_one(OptionList).focus()
        self.say("")

    def action_delete(self) -> None:
        """Delete at the second press; the text in use stays in use."""
        name, text = self._chosen()
        if not text or name == NOT_SAVED:
            self.say("this persona is not saved")
        elif self.is_sure(name, f"the same key again deletes the persona {name}"):
            try:
                personas.delete(name)
            except RopechatError as error:
                self.say(explain(error), "$error")
                return
            self._list()
            self.say(f"deleted: {name}", "$quiet")
