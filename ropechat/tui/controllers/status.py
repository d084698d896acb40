"""The lines around the transcript: title, gauge, footer, and the frame of the composer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropechat.tui.format import status, theme
from ropechat.tui.widgets.bars import cells, whole_items

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.containers import Horizontal

    from ropechat.chat.live import LiveChat
    from ropechat.tui.controllers.hints import HintsController
    from ropechat.tui.controllers.inspector import InspectorController
    from ropechat.tui.controllers.view import View
    from ropechat.tui.widgets.bars import Bar, Part
    from ropechat.tui.widgets.token_transcript import TokenTranscript

Pairs = list[tuple[str, str]]  # keys with labels


@dataclass
class Lines:
    """The widgets around the transcript."""

    title: Bar
    gauge: Bar
    footer: Bar
    compose: Horizontal


class StatusController:
    """Updates them; unchanged lines cost nothing.

    download: the title's text about a download; figures: the gauge's text about the newest answer; footer:
    asked in this order for the keys of what has them, the first that has any is shown.
    """

    def __init__(
        self,
        chat: LiveChat,
        view: View,
        lines: Lines,
        transcript: TokenTranscript,
        hints: HintsController,
        reading: InspectorController,
        download: Callable[[], str],
        figures: Callable[[int], list[Part]],
        footer: Sequence[Callable[[], Pairs]],
    ) -> None:
        self.view, self.session, self.keymap = view, chat.session, view.keymap
        self.lines, self.transcript, self.hints, self.reading = lines, transcript, hints, reading
        self._download, self._figures = download, figures
        self._footer = (*footer, self._writing_keys)

    def refresh(self) -> None:
        """Update all lines."""
        lines, width = self.lines, self.view.app.size.width
        left, right = status.title(self.session, width)
        if words := self._download():
            right.insert(0, (f"  {words}  ", "$primary"))
        lines.title.show(left, right, status.title_links(self.session))
        taken = status.gauge(self.session, width)
        figures = self._with_legend(self._figures(width), width, width - cells(taken) - 2)
        if cells(taken) + cells(figures) > width:
            taken = status.gauge(self.session, width, share=False)
        facts = {text.strip(): "engine.facts" for text, _ in self._figures(width)}
        lines.gauge.show(taken, figures, {self.transcript.tint: "read.tint", **facts})
        if hint := self.hints.text:
            lines.footer.say(hint, max(1, self.view.app.size.height // 3))
        else:
            pairs = next(filter(None, (keys() for keys in self._footer)), [])
            lines.footer.show(whole_items(pairs, width))
        lines.compose.border_title = self.reading.reading_label()
        lines.compose.set_class(self.reading.reading, "-reading")

    def _with_legend(self, figures: list[Part], width: int, room: int) -> list[Part]:
        """The meaning of the tint, then as many figures as fit, the last ones first."""
        while figures and width < 120 and cells(figures) > room:
            figures = figures[1:]
        if self.transcript.page.view != "tokens":
            return figures
        app = self.transcript.app
        colours = theme.tint_styles(app.current_theme.dark, app.native_ansi_color, app.no_color)
        legend = status.legend(self.transcript.tint, tuple(map(theme.for_content, colours)))
        if cells(legend) > room:
            return figures
        while figures and cells([*legend, *figures]) > room:
            figures = figures[1:]
        return [*legend, *figures]

    def _writing_keys(self) -> Pairs:
        view = self.keymap.shown("view.toggle").partition(" ")[0]
        pairs = self.keymap.footer(self.session.generating)
        return [(key, self.other_view() if key == view else label) for key, label in pairs]

    def other_view(self) -> str:
        """The name of the view that the key switches to."""
        return "tokens" if self.transcript.page.view == "prose" else "prose"
