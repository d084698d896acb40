"""Step mode: an answer that the user draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropechat.chat.score_worker import ScoreWorker
from ropechat.tui.features.answers import AnswersFeature
from ropechat.tui.features.turns import TurnsFeature
from ropechat.tui.features.writing import WritingFeature
from ropechat.tui.format.status import why_ended
from ropechat.tui.ui import ChatUi, Feature, command
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from ropechat.inspector.text_reader import Done, Job


class StepFeature(Feature):
    """The command that opens step mode: at the token under the cursor, or at the newest answer."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.turns, self.writing, self.answers = ui[TurnsFeature], ui[WritingFeature], ui[AnswersFeature]

    @command("answer.step")
    def _step(self, words: str) -> str:
        """/step: draw an answer to a new question; without words at the cursor, or at the newest answer."""
        session = self.session
        if session.info is None or session.coming:
            return "no model is loaded yet"
        if words and (whole := self.writing.expand(words)) is not None:
            self.chat.when_idle(lambda: self._open(whole))
        elif not words and session.last is None:
            return "/step QUESTION: take the tokens of the answer yourself"
        elif not words:
            cursor = self.transcript.cursor_token()
            self.chat.when_idle(lambda: self._at(cursor))
        return ""

    def _at(self, cursor: tuple[str, int] | None) -> None:
        """Begin in place of a token; else where the newest answer was stopped, or at its beginning."""
        tree, last = self.session.tree, self.session.last
        node, index = cursor or ("", None)
        if not node and last is not None and last.node is not None and why_ended(tree[last.node]):
            node = last.node
        if node not in tree.nodes:
            self._open()
        elif self.answers.same_model(tree[node]) is not None:
            self._open(node=node, index=index)

    def _open(self, words: str = "", node: str = "", index: int | None = None) -> None:
        from ropechat.tui.screens.step import StepScreen

        session, app = self.session, self.ui.app
        stepping = session.step(words, node, index)
        if words:
            session.show()
            self.turns.show()
        worker = ScoreWorker(self.chat.inference)

        def submit(job: Job, done: Done) -> None:
            worker.submit(job, lambda result: app.call_from_thread(done, result))

        about = one_line(session.tree[stepping.question].text)
        screen = StepScreen(stepping, about, submit, self.ui.vocabularies.of_loaded, self.keymap)
        self.ui.push(screen, lambda goes_on: self._closed(words, stepping, goes_on=goes_on))

    def _closed(self, words: str, stepping: Any, *, goes_on: bool) -> None:
        """Show the answer as it is, or have the model go on; what was asked for nothing can be sent again."""
        if stepping is not self.session.stepping:  # another chat is shown
            return
        node = self.session.end_stepping()
        self.session.show()
        self.turns.show()
        if node is None and words and not self.composer.text:
            self.composer.set_text(words)
        elif node is not None and goes_on:
            self.answers.resume_node(node.id)
