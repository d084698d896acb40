"""What could follow a token: the tree of continuations, whose paths become answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.score_worker import ScoreWorker
from ropechat.conversation import spoken
from ropechat.inspector.growth import Growth
from ropechat.tui.features.answers import AnswersFeature
from ropechat.tui.ui import ChatUi, Feature, command, event

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.tui.screens.continuations import ContinuationsScreen, Taken

BEFORE = 400  # characters of the text before a token that are shown


class ContinuationsFeature(Feature):
    """Opens the tree of the token under the cursor; without one, of what follows the newest answer."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.answers = ui[AnswersFeature]
        self._opened: ContinuationsScreen | None = None

    @command("read.follow")
    def show(self) -> None:
        """Open the tree."""
        from ropechat.tui.screens.continuations import ContinuationsScreen

        if (place := self.answers.place()) is None:
            return
        node, index = place
        messages, thinking = self.session.asked(node.id)
        ids = [step.id for step in node.steps]

        def found(engine: Engine) -> tuple[list[int], list[int]]:
            return [*engine.prompt_ids(messages, thinking=thinking), *ids[:index]], ids[index:]

        self._opened = ContinuationsScreen(
            Growth(found),
            ScoreWorker(self.chat.inference).submit,
            "".join(map(spoken, node.steps[:index]))[-BEFORE:],
            self.keymap,
            "go on from here",
        )
        self.ui.push(self._opened, lambda taken: self._take(node.id, index, taken))

    def _take(self, id: str, index: int, taken: Taken) -> None:
        node = self.session.tree.nodes.get(id)
        if node is not None:
            position = node.prompt_tokens + index
            self.answers.take(id, index, taken.tree.steps(taken.node, position))

    def dialog_closed(self) -> None:
        """Read on at the token."""
        if self._opened is not None and not self._opened.is_current and self.transcript.cursor is not None:
            self.ui.give_keys(self.transcript)
            self._opened = None

    @event(ev.ModelLoaded)
    def _replaced(self, event: ev.ModelLoaded) -> None:
        """Close the tree of the model before."""
        if self._opened is not None:
            self._opened.dismiss(None)
