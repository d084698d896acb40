"""The settings with their origins, and a way to change them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ropechat.errors import RopechatError
from ropechat.tui.screens.dialog import ChoiceList, Dialog, bindings
from ropechat.tui.widgets.input import SanitizedInput
from ropechat.util.text import one_line
from ropechat.util.width import fit

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from ropechat.settings.file import EffectiveSetting, SettingsFile
    from ropechat.tui.commands.keymap import Keymap

NAME, VALUE = 28, 16  # cells


def shown(value: object) -> str:
    """A value as the settings file writes it; – for none."""
    if isinstance(value, list):
        return os.pathsep.join(value) or "–"
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


class SettingsScreen(Dialog[None]):
    """Every setting; a change is written to the settings file. changed: called with name and value."""

    BINDINGS = bindings("settings")
    context = "settings"
    heading = "settings"
    items = (("⏎", "change"), "settings.less", "settings.more", "settings.default", "sheet.leave")

    def __init__(self, editor: SettingsFile, keymap: Keymap, changed: Callable[[str, object], None]) -> None:
        super().__init__(keymap)
        self._editor, self._changed = editor, changed
        self._rows: list[EffectiveSetting] = []
        self._field = SanitizedInput(placeholder="value; empty for the default", id="value")

    def compose(self) -> ComposeResult:
        self._field.display = False
        with Vertical(id="settings", classes="sheet"):
            yield ChoiceList(id="rows", markup=False)
            yield Static(id="about", markup=False)
            yield self._field
            yield self.key_hints

    def on_mount(self) -> None:
        self._fill(0)
        self.query_one(OptionList).focus()

    def _fill(self, chosen: int) -> None:
        try:
            self._rows = self._editor.rows()
        except RopechatError as error:
            self.say(str(error))
            return
        self.list_options([Option(self._line(row)) for row in self._rows], chosen)
        self._tell()

    def _line(self, row: EffectiveSetting) -> Content:
        changed = row.origin != "default"
        return Content.assemble(
            (fit(row.setting.name, NAME), "bold" if changed else ""),
            (fit(one_line(shown(row.value)), VALUE), "$primary" if changed else "$foreground"),
            (f"  {one_line(_short(row.origin))}", "$quiet"),
        )

    @property
    def _row(self) -> EffectiveSetting | None:
        at = self.query_one(OptionList).highlighted
        return self._rows[at] if at is not None and at < len(self._rows) else None

    def _tell(self) -> None:
        row = self._row
        if row is not None:
            words = f"{row.setting.help} · from {row.origin}" if row.origin != "default" else row.setting.help
            self.query_one("#about", Static).update(Content.styled(one_line(words), "$quiet"))

    def on_option_list_option_highlighted(self) -> None:
        self._tell()

    def on_option_list_option_selected(self) -> None:
        """The next choice; without choices a field."""
        row = self._row
        if row is not None and row.setting.choices and len(row.setting.choices) < 4:
            self.action_step(1)
        elif row is not None:
            self._field.display = True
            self._field.value = "" if row.value is None else shown(row.value)
            self._field.focus()
            if row.setting.choices:
                self.say("one of " + ", ".join(map(shown, row.setting.choices)), "$quiet")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Set the value, or show what it must be."""
        event.stop()
        row = self._row
        if row is not None and self._write(row, _parse(row, event.value.strip())):
            self._end_typing()

    def action_step(self, by: int) -> None:
        """The next or previous choice."""
        row = self._row
        if row is None or not row.setting.choices:
            self.say("⏎ asks for a value")
            return
        at = row.setting.choices.index(row.value) if row.value in row.setting.choices else 0
        self._write(row, row.setting.choices[(at + by) % len(row.setting.choices)])

    def action_default(self) -> None:
        """Remove the value from the file."""
        row = self._row
        if row is not None:
            self._write(row, None)

    def _write(self, row: EffectiveSetting, value: object) -> bool:
        try:
            path = self._editor.change(row.setting.name, value)
        except RopechatError as error:
            self.say(str(error))
            return False
        at = self.query_one(OptionList).highlighted or 0
        self._fill(at)
        now = self._rows[at]
        beaten = value is not None and now.value != value
        words = f"{now.origin} overrides it: {shown(now.value)}" if beaten else f"written to {path}"
        self.say(words, "$warning" if beaten else "$quiet")
        self._changed(now.setting.name, now.value)
        return True

    def action_leave(self) -> None:
        """Back, or end typing."""
        if self._field.display:
            self._end_typing()
            self.say("")
        else:
            self.dismiss(None)

    def _end_typing(self) -> None:
        self._field.display = False
        self.query_one(OptionList).focus()


def _parse(row: EffectiveSetting, text: str) -> object:
    """The value of a typed text; None for an empty one."""
    return row.setting.reads(text) if text else None


def _short(origin: str) -> str:
    """The name of a path and the text after it."""
    return origin.rpartition("/")[2]
