"""Why this token: what leaving out each part of the chat does to the probability of a token or an answer."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.score_worker import ScoreWorker
from ropechat.conversation import Role, steps_to_continue, thought_length
from ropechat.tui.features.answers import AnswersFeature
from ropechat.tui.ui import ChatUi, Feature, command, event
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from ropechat.conversation import Node
    from ropechat.engine.engine import Engine
    from ropechat.inspector.why.answer import Question
    from ropechat.inspector.why.result import Asked
    from ropechat.tui.screens.why import Whys, WhyScreen

KEPT = 16  # places whose numbers are kept
NAMES = {Role.USER: "you", Role.ASSISTANT: "answer", Role.SYSTEM: "system"}


class WhyFeature(Feature):
    """Opens it for the token under the cursor, for words of the newest answer, or for all of that."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.answers = ui[AnswersFeature]
        self._opened: WhyScreen | None = None
        self._kept: OrderedDict[tuple[str, int, int], Whys] = OrderedDict()

    @command("read.why")
    def show(self, words: str) -> str:
        """Open it. words: of the newest answer."""
        from ropechat.tui.screens.why import WhyScreen

        if (place := self.answers.place()) is None:
            return ""
        node, index = place
        of = (index, index + 1)
        if words or self.transcript.cursor is None:
            of = thought_length(node.steps), len(steps_to_continue(node))
            if words and (found := _tokens_of(node, words)) is None:
                return f"{one_line(words)!r} is not in this answer"
            of = found if words and found is not None else of
        if of[0] >= of[1]:
            return "this answer has no text"
        key = (node.id, *of)
        if key not in self._kept:
            self._kept[key] = self._whys(node, of)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        worker = ScoreWorker(self.chat.inference)
        self._opened = WhyScreen(self._kept[key], worker, self.keymap)
        self.ui.push(self._opened)
        return ""

    def _whys(self, node: Node, of: tuple[int, int]) -> Whys:
        from ropechat.inspector.why.answer import ReplyQuestion
        from ropechat.tui.screens.why import Whys

        messages, thinking = self.session.asked(node.id)
        names = [NAMES[message.role] for message in messages]
        steps = tuple(node.steps[: of[1]])

        def ask(engine: Engine, asked: Asked) -> Question:
            return ReplyQuestion(engine, messages, thinking, steps, of, names)

        which = f"token {of[1]:,}" if of[1] == of[0] + 1 else f"tokens {of[0] + 1:,} to {of[1]:,}"
        return Whys(ask, f"{which} of {len(node.steps):,}")

    def chat_left(self) -> None:
        """Forget the numbers, which hold the answers with their alternatives."""
        self._kept.clear()

    def dialog_closed(self) -> None:
        """Read on at the token."""
        if self._opened is not None and not self._opened.is_current and self.transcript.cursor is not None:
            self.ui.give_keys(self.transcript)
        if self._opened is not None and not self._opened.is_current:
            self._opened = None
            self.chat.read_ahead(self.composer.text)  # what the changed contexts took from the KV cache

    @event(ev.ModelLoaded)
    def _replaced(self, event: ev.ModelLoaded) -> None:
        """Forget the numbers of the model before."""
        self._kept.clear()
        if self._opened is not None:
            self._opened.dismiss(None)


def _tokens_of(node: Node, words: str) -> tuple[int, int] | None:
    """(first, after the last) of the tokens that cover the first place of these words; None: it has none."""
    data, wanted = b"".join(step.bytes for step in node.steps), words.encode("utf-8", "surrogatepass")
    start = data.find(wanted)
    if start < 0:
        return None
    ends, at = list[int](), 0
    for step in node.steps:
        at += len(step.bytes)
        ends.append(at)
    first = next(place for place, end in enumerate(ends) if end > start)
    last = next(place for place, end in enumerate(ends) if end >= start + len(wanted))
    return first, last + 1
