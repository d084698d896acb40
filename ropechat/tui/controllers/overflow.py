"""What happens to a question that does not fit in the context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.chat.context import DESCRIPTIONS, OverflowPolicy
from ropechat.chat.draft import keep_end, to_draft

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.chat import events as ev
    from ropechat.chat.draft import Shortened
    from ropechat.chat.live import LiveChat
    from ropechat.tui.commands.dispatch import Handler
    from ropechat.tui.controllers.composer import ComposerController
    from ropechat.tui.controllers.transcript import TranscriptController
    from ropechat.tui.controllers.view import View
    from ropechat.tui.screens.context import Choice, Offer

FILLED = 0.7  # of the context that a shortened question takes, at most; the rest is for the answer


class OverflowController:
    """Asks what to leave out, or returns the question to the composer. run: runs a command."""

    def __init__(
        self,
        chat: LiveChat,
        view: View,
        path: TranscriptController,
        composer: ComposerController,
        run: Callable[[str], None],
    ) -> None:
        self._run = run
        self.view, self.session, self.keymap = view, chat.session, view.keymap
        self.path, self._composer = path, composer

    def handlers(self) -> dict[str, Handler]:
        return {"prompt.full": self.when_full}

    def too_long(self, event: ev.TooLong) -> None:
        """Handle a question that does not fit: ask what to do, if something can help."""
        from ropechat.tui.screens.context import MODEL, TURNS, ContextScreen

        shorter = None if event.slides else self._shortened(event)
        asks = self.session.when_full is OverflowPolicy.ASK
        if not asks or not (event.slides or shorter):
            self._refuse(event)
            return

        def chosen(choice: Choice) -> None:
            if choice in ("back", "model"):
                self._refuse(event, notify=choice == "back")
                if choice == "model":
                    self._run("model.pick")
                return
            if choice == "end" and shorter is not None:
                self._send_end(shorter.text)
                return
            if choice == "always":
                self.session.when_full = OverflowPolicy.SLIDE
            self.path.show(self.session.again(alone=choice == "fresh"))

        if shorter is not None:
            alone = "; the model reads nothing else" if len(self.session.turns) > 1 else ""
            what = f"send the last {shorter.count:,} {shorter.units} of {shorter.what:.30}"
            offers: dict[Choice, Offer] = {"end": (what, f"the rest is left out{alone}"), **MODEL}
        else:
            offers = dict(TURNS)
        self.view.push(ContextScreen(event.tokens, event.context, self.keymap, offers), chosen)

    def _shortened(self, event: ev.TooLong) -> Shortened | None:
        """The question with the end of its longest text only; None if that cannot help."""
        turn = self.session.last
        prefix = turn is not None and turn.request is not None and turn.request.prefix is not None
        if turn is None or prefix or turn.asked not in self.session.tree.nodes:
            return None
        share = FILLED * event.context / event.tokens
        return keep_end(turn.question, self._composer.composer.pastes.texts, share)

    def _send_end(self, text: str) -> None:
        """Ask the shortened question instead."""
        self.session.withdraw()
        turn = self.session.ask(text)
        if len(self.session.turns) > 1:
            turn = self.session.again(alone=True)
        self.path.show(turn)

    def when_full(self, words: str) -> str:
        """/context: show or set what happens to a question that does not fit."""
        if words and words not in list(OverflowPolicy):
            return "/context ask|slide|stop"
        self.session.when_full = OverflowPolicy(words) if words else self.session.when_full
        self.view.refresh_status()
        return f"{self.session.when_full}: {DESCRIPTIONS[self.session.when_full]}"

    def _refuse(self, event: ev.TooLong, *, notify: bool = True) -> None:
        """Remove a question (or an answer's prefix) that leaves no room for an answer."""
        turn = self.session.withdraw()
        self.path.show()
        if not self._composer.composer.text and turn.asked not in self.session.tree.nodes:
            node, typed = self._composer.sent_as
            self._composer.composer.set_text(typed if node == turn.asked else to_draft(turn.question))
        prefix = turn.request is not None and turn.request.prefix is not None
        if notify:
            self.path.notice("error", self._too_long(event, "answer" if prefix else "question"))

    def _too_long(self, event: ev.TooLong, what: str) -> str:
        """Why a question was not sent (or an answer not begun), and what helps."""
        numbers = f"{event.tokens:,} tokens do not fit in the context of {event.context:,}"
        shorten = "shorten the text, " if what == "question" else ""
        if event.slides:
            begin = f"begin a new chat with {self.keymap.named('chat.new')}"
            ways = f"{shorten}or {begin}" if shorten else "`/context slide` leaves out the oldest questions"
            return f"Not sent: {numbers}. {ways[0].upper()}{ways[1:]}."
        alone = "The question alone is too long" if shorten else "The question and this answer are too long"
        info = self.session.info
        most = int(info.facts.get("max_position_embeddings") or 0) if info is not None else 0
        more = f"set a larger --context (up to {most:,}), " if most > event.tokens else ""
        ways = f"{shorten}{more}or load a model with a larger context ({self.keymap.shown('model.pick')})"
        return f"Not sent: {numbers}. {alone}: {ways.removeprefix('or ')}."
