"""What the loaded model does with positions, view by view: see `ropechat.inspector.rope`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from ropechat.errors import RopechatError
from ropechat.tui.screens.dialog import Dialog, bindings
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from textual.app import ComposeResult

    from ropechat.tui.commands.keymap import Keymap

SCROLL_BAR = 1  # columns


class RopeScreen(Dialog[None]):
    """The views that need no text; the command `ropechat rope` has the others."""

    BINDINGS = bindings("rope")
    context = "rope"
    heading = "positions"
    items = ("rope.left", "rope.right", ("↓ ↑", "scroll"), "sheet.leave")

    def __init__(self, rope_spec: Callable[[int], Mapping[str, Any]], length: int, keymap: Keymap) -> None:
        """rope_spec: `Engine.rope_spec` of the loaded model. length: the chat's, in tokens."""
        super().__init__(keymap)
        self._rope_spec, self._length = rope_spec, length
        self._at = 0
        self._count = 1
        self._text = Static("", markup=False)

    def compose(self) -> ComposeResult:
        """One view and the keys."""
        with Vertical(classes="sheet whole broad"):
            with VerticalScroll(can_focus=False):
                yield self._text
            yield self.key_hints

    def on_resize(self) -> None:
        """Draw at this width."""
        self._show()

    def action_turn(self, by: int) -> None:
        """The next view, or the one before; round at the ends."""
        self._at = (self._at + by) % self._count
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self._show()

    def _show(self) -> None:
        # a coroutine that is given up before it begins would warn: one is made when its turn comes
        self.run_worker(self._draw, exclusive=True)  # type: ignore[arg-type]

    async def _draw(self) -> None:
        width = self.query_one(".sheet").size.width - SCROLL_BAR
        color = not self.app.no_color
        try:
            name, lines, self._count = await asyncio.to_thread(self._lines, width, color)
        except RopechatError as error:  # another model is being loaded
            self.say(one_line(str(error)), "$error")
            return
        self.title_with(f"{name} · {self._at + 1} of {self._count}")
        self._text.update(Text.from_ansi("\n".join(lines), no_wrap=True))

    def _lines(self, width: int, color: bool) -> tuple[str, list[str], int]:
        """The name and the lines of a view, and how many views there are. Imports numpy, so late."""
        from ropechat.inspector.rope import report, term
        from ropechat.inspector.rope.spec import spec_of

        names, wishes = report.CONFIG_VIEWS, report.Wishes(length=self._length)
        spec = spec_of(self._rope_spec(self._length), self._length)
        views = list(report.spec_views(spec, (names[self._at],), wishes))
        return names[self._at], list(term.render(views, max(width, 20), color=color)), len(names)
