"""The lines around the transcript: title, gauge, footer, tips; and the facts of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ropechat import builtin
from ropechat.tui.features.models import ModelsFeature
from ropechat.tui.features.reading import ReadingFeature
from ropechat.tui.features.settings import SettingsFeature
from ropechat.tui.format import status, theme
from ropechat.tui.format.stats import gauge_figures
from ropechat.tui.ui import SIDE_PANEL, ChatUi, Feature, command, setting
from ropechat.tui.widgets.bars import cells, whole_items

if TYPE_CHECKING:
    from ropechat.tui.widgets.bars import Part


class Tip(NamedTuple):
    """text: with {id} for the key of a command. learned: commands of which one was run."""

    name: str
    text: str
    learned: tuple[str, ...] = ()


TIPS = (
    Tip("ask", "Type a question, then {composer.send}."),
    Tip(
        "inspect",
        "Click a word, or {chat.stop} then {read.left}: what else could the model have said?",
        ("view.inspect", "read.take"),
    ),
    Tip("fork", "Click another word of the list twice, or press its number: the answer forks there."),
    Tip(
        "compare",
        "{answer.compare} compares the two answers; {chat.branches} shows all of them as a tree.",
        ("answer.compare", "chat.branches"),
    ),
    Tip(
        "regenerate",
        "/regen writes another answer; the ‹ and › of its heading go between them.",
        ("answer.regenerate", "answer.several"),
    ),
    Tip("models", "{model.pick} gets a bigger model; the built-in one is tiny.", ("model.pick",)),
    Tip("sampling", "{sampling.open} changes the sampling, and shows its effect.", ("sampling.open",)),
    Tip("palette", "{app.palette} finds every command by a word: theme, export, dark.", ("app.palette",)),
    Tip("help", "{app.help} lists all keys. /settings turns these tips off.", ("app.help", "app.settings")),
)


class FactsFeature(Feature):
    """The engine's speed and memory: in the gauge, next to the transcript, or as a dialog."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.side_panel, self.panel = ui.side_panel, ui.engine_facts

    def figures(self, width: int) -> list[Part]:
        """The facts of the newest answer, as the gauge shows them."""
        last = self.session.last
        context, used = self.session.context, self.session.used
        full = context is not None and used is not None and used >= context
        if last is None or not last.answer.node.steps or (full and not self.session.generating):
            return []  # the line says that a question does not fit
        return [(one + "  ", "$quiet") for one in gauge_figures(last.answer, width)]

    @command("engine.facts")
    def open(self) -> None:
        """Show or hide the panel; a dialog if there is no room for it."""
        from ropechat.tui.screens.facts import FactsScreen

        if self.ui.app.size.width >= SIDE_PANEL:
            self.side_panel.show(self.panel, not self.panel.display)
            self.ui.refresh()
        else:
            self.ui.push(FactsScreen(self.session, self.keymap))

    def refresh(self) -> None:
        """Update the panel; close it if there is no room for it."""
        if self.panel.display and self.ui.app.size.width < SIDE_PANEL:
            self.side_panel.show(self.panel, False)
        if self.panel.display:
            self.panel.redraw()


class TipsFeature(Feature):
    """The line below the composer: the first tip that applies and was not learned, if any is left."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.wanted, self._settings = ui.options.tips, ui[SettingsFeature]
        self._learned: set[str] = set()
        self._shown: str | None = None
        ui.ran = self._ran

    def _ran(self, command: str) -> None:
        """Note that a command was run."""
        self._learned |= {tip.name for tip in TIPS if command in tip.learned}

    @setting("tips")
    def _want(self, shown: bool) -> None:
        """Show or hide tips."""
        self.wanted = shown
        self.refresh()

    def refresh(self) -> None:
        """Show the current tip."""
        if self.wanted:
            self._observe()
            if {tip.name for tip in TIPS} <= self._learned:
                self.wanted = False
                self._settings.remember("tips", False)
        text = self._text() if self.wanted else ""
        if text != self._shown:
            self._shown = text
            self.ui.tip.update(text)
            self.ui.tip.set_class(bool(text), "-told")

    def _observe(self) -> None:
        """Record what the user has already done, as the chat shows."""
        last, info = self.session.last, self.session.info
        node = self.session.tree.nodes.get(last.node or "") if last is not None else None
        if last is not None:
            self._learned.add("ask")
        if node is not None and node.origin is not None and node.origin.kind == "fork":
            self._learned |= {"inspect", "fork"}
        if info is not None and info.name != builtin.NAME:
            self._learned.add("models")

    def _text(self) -> str:
        if self.session.info is None:
            return ""
        tip = next(tip for tip in TIPS if tip.name not in self._learned)
        text = tip.text
        for id in ("read.left", *(word.partition("}")[0] for word in tip.text.split("{")[1:])):
            shown = self.keymap.beside_text(id) if id.startswith("read.") else self.keymap.first(id)
            text = text.replace("{" + id + "}", shown)
        return text


class StatusFeature(Feature):
    """The lines around the transcript; what did not change costs nothing."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.reading, self._models, self._facts = ui[ReadingFeature], ui[ModelsFeature], ui[FactsFeature]

    def refresh(self) -> None:
        """Update all lines."""
        ui, width = self.ui, self.ui.app.size.width
        left, right = status.title(self.session, width)
        if words := self._models.download_words():
            right.insert(0, (f"  {words}  ", "$primary"))
        ui.title_bar.show(left, right, status.title_links(self.session))
        taken = status.gauge(self.session, width)
        figures = self._with_legend(self._facts.figures(width), width, width - cells(taken) - 2)
        if cells(taken) + cells(figures) > width:
            taken = status.gauge(self.session, width, share=False)
        facts = {text.strip(): "engine.facts" for text, _ in self._facts.figures(width)}
        ui.gauge.show(taken, figures, {self.transcript.tint: "read.tint", **facts})
        if hint := ui.footer_text:
            ui.footer.say(hint, max(1, self.ui.app.size.height // 3))
        else:
            pairs = next(filter(None, (one.footer_keys() for one in ui.features)), []) or self._writing_keys()
            ui.footer.show(whole_items(pairs, width))
        self._show_reading(width)

    def _show_reading(self, width: int) -> None:
        """While reading, a bar in the place of the rule above the composer."""
        bar, reading = self.ui.reading_bar, self.reading.reading
        bar.display = reading
        self.ui.compose_line.set_class(reading, "-reading")
        if reading:
            back = [] if self.session.generating else [self.keymap.first("chat.stop")]
            keys = " ".join([*back, self.keymap.first("read.write")])
            right = [(keys, "$primary"), (" write  ", "$quiet")]
            left = [("  READING", "bold $secondary")]
            items = whole_items(self.reading.bar_keys(), width - cells(left) - cells(right))
            bar.show([*left, *items], right, {keys: "read.write", "write": "read.write"})

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

    def _writing_keys(self) -> list[tuple[str, str]]:
        view = self.keymap.shown("view.toggle").partition(" ")[0]
        pairs = self.keymap.footer(self.session.generating)
        return [(key, self.other_view() if key == view else label) for key, label in pairs]

    def other_view(self) -> str:
        """The name of the view that the key switches to."""
        return "tokens" if self.transcript.page.view == "prose" else "prose"
