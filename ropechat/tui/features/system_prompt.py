"""The system text of the next question: typed, or of a persona."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.chat import personas
from ropechat.chat.errors import explain
from ropechat.errors import RopechatError
from ropechat.tui.features.turns import TurnsFeature
from ropechat.tui.features.writing import WritingFeature
from ropechat.tui.ui import ChatUi, Feature, command
from ropechat.util.text import closest_name, one_line

if TYPE_CHECKING:
    from ropechat.tui.render.blocks import Block


def _no_persona(words: str, kept: list[str]) -> str:
    meant = closest_name(words, kept)
    hint = f"did you mean {meant}?" if meant else f"saved: {', '.join(kept)}"
    hint = hint if kept else "none is saved yet; /persona save NAME saves the system text as one"
    return f"{one_line(words):.40}: unknown persona; {hint}"


class SystemPromptFeature(Feature):
    """The commands that set system texts."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.turns, self.writing = ui[TurnsFeature], ui[WritingFeature]
        self._turning: Block | None = None  # the notice that the next question begins a branch

    def dialog_closed(self) -> None:
        self.learn_personas()

    def learn_personas(self) -> None:
        """Load the names of the saved system texts."""
        try:
            self.session.personas = {text: name for name, text in personas.load().items()}
        except RopechatError as error:
            self.ui.hint(explain(error))

    def open(self) -> None:
        """Open the dialog of personas."""
        from ropechat.tui.screens.personas import PersonasScreen

        self.ui.push(PersonasScreen(self.session.system, self.keymap), self.use)

    def use(self, text: str) -> None:
        """Set another system text for the next question, or ("") none."""
        self.learn_personas()
        self.session.set_system_prompt(text)
        self.turns.take_back(self._turning)
        if not self.session.tree.nodes:
            self.turns.show()
        elif self.session.starts_branch:
            self._turning = self.turns.notice(
                "notice",
                f"The next question starts a new branch, under {self.turns.describe_system(text)}: "
                "the model will read nothing of the chat above.",
            )
        self.writing.count()
        self.ui.refresh()

    @command("prompt.system")
    def _system(self, words: str) -> str:
        if not words:
            self.open()
            return ""
        self.use("" if words == "-" else words)
        return "no system text from the next question on" if words == "-" else ""

    @command("prompt.persona")
    def _persona(self, words: str) -> str:
        if not words:
            self.open()
            return ""
        verb, _, name = words.partition(" ")
        try:
            if verb == "save" and name.strip():
                if not self.session.system:
                    return "there is no system text to save; /system TEXT sets one"
                path = personas.save(name.strip(), self.session.system)
                self.learn_personas()
                return f"saved: {path}"
            kept = personas.load()
        except RopechatError as error:
            return explain(error)
        if words not in kept:
            return _no_persona(words, list(kept))
        self.use(kept[words])
        return ""
