"""The line of help below the composer: it shows one tip at a time, until the user has done it once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ropechat import builtin

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.widgets import Static

    from ropechat.chat.live import LiveChat
    from ropechat.tui.controllers.view import View


class Tip(NamedTuple):
    """text: with {id} for the key of a command. learned: commands of which one was run."""

    name: str
    text: str
    learned: tuple[str, ...] = ()


TIPS = (
    Tip("ask", "Type a question, then {composer.send}. {composer.complete} puts an example here."),
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


class TipsController:
    """Shows the first tip that applies and was not learned; after the last one, none.

    remember: stores a choice.
    """

    def __init__(
        self,
        chat: LiveChat,
        view: View,
        line: Static,
        remember: Callable[[str, object], None],
        *,
        wanted: bool,
    ) -> None:
        self.view, self.session, self._line = view, chat.session, line
        self.wanted, self._remember = wanted, remember
        self._learned: set[str] = set()
        self._shown: str | None = None

    def ran(self, command: str) -> None:
        """Note that a command was run."""
        self._learned |= {tip.name for tip in TIPS if command in tip.learned}

    def want(self, *, shown: bool) -> None:
        """Show or hide tips."""
        self.wanted = shown
        self.refresh()

    def refresh(self) -> None:
        """Show the current tip."""
        if self.wanted:
            self._observe()
            if {tip.name for tip in TIPS} <= self._learned:
                self.wanted = False
                self._remember("tips", False)
        text = self._text() if self.wanted else ""
        if text != self._shown:
            self._shown = text
            self._line.update(text)
            self._line.set_class(bool(text), "-told")

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
        keymap = self.view.keymap
        tip = next(tip for tip in TIPS if tip.name not in self._learned)
        text = tip.text
        for id in ("read.left", *(word.partition("}")[0] for word in tip.text.split("{")[1:])):
            shown = keymap.beside_text(id) if id.startswith("read.") else keymap.first(id)
            text = text.replace("{" + id + "}", shown)
        return text
