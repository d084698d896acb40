"""A question that does not fit in the context, and a context that is nearly full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.context import (
    DESCRIPTIONS,
    OverflowPolicy,
    bytes_more,
    larger_context,
    longest_context,
)
from ropechat.chat.draft import keep_end, to_draft
from ropechat.engine.native import free_memory
from ropechat.tui.features.models import ModelsFeature
from ropechat.tui.features.turns import TurnsFeature
from ropechat.tui.features.writing import WritingFeature
from ropechat.tui.ui import ChatUi, Feature, command, event, setting
from ropechat.util.text import format_bytes

if TYPE_CHECKING:
    from ropechat.chat.answer import Turn
    from ropechat.chat.context import LargerContext
    from ropechat.chat.draft import Shortened
    from ropechat.tui.screens.context import Choice, Offer

FILLED = 0.7  # of the context that a shortened question takes, at most; the rest is for the answer
NEARLY_FULL = 0.8  # of the context that a chat fills, from which on a larger one is offered
LEAST_CONTEXT = 64  # tokens


class OverflowFeature(Feature):
    """A question that does not fit in the context: asks what to do, or returns it to the composer.

    The model can be loaded again with a larger context, where it has one and memory permits.
    """

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.turns, self.writing, self.models = ui[TurnsFeature], ui[WritingFeature], ui[ModelsFeature]
        self._told = ("", 0)  # the chat and the context of which was told that it is nearly full
        self.session.when_full = OverflowPolicy(ui.options.when_full)

    @setting("when_full")
    def _use_policy(self, name: str) -> None:
        self.session.when_full = OverflowPolicy(name)

    @event(ev.TooLong)
    def _too_long(self, event: ev.TooLong) -> None:
        """Handle a question that does not fit: ask what to do, if something can help."""
        from ropechat.tui.screens.context import MODEL, TURNS, ContextScreen

        shorter = None if event.slides else self._shortened(event)
        larger = self._larger(event.tokens)
        asks = self.session.when_full is OverflowPolicy.ASK
        if not asks or not (event.slides or shorter or larger):
            self._refuse(event)
            return

        def chosen(choice: Choice) -> None:
            if choice in ("back", "model"):
                self._refuse(event, notify=choice == "back")
                if choice == "model":
                    self.ui.run("model.pick")
                return
            if choice == "end" and shorter is not None:
                self._send_end(shorter.text)
                return
            if choice == "larger" and larger is not None:
                self.models.enlarge(larger.context)  # the question waits for it
                self._ask(self.session.again(alone=False))
                return
            if choice == "always":
                self.session.when_full = OverflowPolicy.SLIDE
            self._ask(self.session.again(alone=choice == "fresh"))

        offers: dict[Choice, Offer] = {}
        if larger is not None:
            offers["larger"] = (f"use a context of {larger.context:,}", f"+ {format_bytes(larger.bytes)}")
        if shorter is not None:
            alone = "; the model reads nothing else" if len(self.session.turns) > 1 else ""
            what = f"send the last {shorter.count:,} {shorter.units} of {shorter.what:.30}"
            offers["end"] = (what, f"the rest is left out{alone}")
        offers |= TURNS if event.slides else MODEL
        self.ui.push(ContextScreen(event.tokens, event.context, self.keymap, offers), chosen)

    def _larger(self, least: int) -> LargerContext | None:
        """A larger context of this model that holds so many tokens."""
        info = self.session.info
        return None if info is None or self.chat.models is None else larger_context(info, least)

    @event(ev.Finished)
    def _finished(self, event: ev.Finished) -> None:
        """Tell once that a chat comes near its limit, if there is more."""
        context, used = self.session.context or 0, self.session.used or 0
        larger = self._larger(used)
        about = self.session.recorder.id, context
        if NEARLY_FULL * context < used < context and larger is not None and about != self._told:
            self._told = about
            words = f"This chat fills {used / context:.0%} of its context of {context:,} tokens."
            self.turns.notice("notice", f"{words} {larger.words}")

    def _shortened(self, event: ev.TooLong) -> Shortened | None:
        """The question with the end of its longest text only; None if that cannot help."""
        turn = self.session.last
        prefix = turn is not None and turn.request is not None and turn.request.prefix is not None
        if turn is None or prefix or turn.asked not in self.session.tree.nodes:
            return None
        share = FILLED * event.context / event.tokens
        return keep_end(turn.question, self.composer.pastes.texts, share)

    def _send_end(self, text: str) -> None:
        """Ask the shortened question instead."""
        self.session.withdraw()
        turn = self.session.ask(text)
        if len(self.session.turns) > 1:
            turn = self.session.again(alone=True)
        self._ask(turn)

    def _ask(self, turn: Turn) -> None:
        self.chat.request(turn)
        self.turns.show(turn)

    @command("prompt.full")
    def when_full(self, words: str) -> str:
        """/context: show or set what happens to a question that does not fit; or the size of the context."""
        if words.replace(",", "").isdecimal():
            return self._resize(int(words.replace(",", "")))
        if words and words not in list(OverflowPolicy):
            return "/context ask|slide|stop, or /context N: load the model again for N tokens"
        self.session.when_full = OverflowPolicy(words) if words else self.session.when_full
        self.ui.refresh()
        larger = self._larger(0)
        more = f". {larger.words}" if larger is not None and not words else ""
        return f"{self.session.when_full}: {DESCRIPTIONS[self.session.when_full]}{more}"

    def _resize(self, context: int) -> str:
        """Load the model again with another context; returns why not."""
        info = self.session.info
        if info is None or self.session.coming:
            return "no model is loaded yet"
        if not LEAST_CONTEXT <= context <= longest_context(info):
            return f"/context N: {LEAST_CONTEXT} to {longest_context(info):,} tokens with this model"
        if context == info.context:
            return f"the context is {context:,} tokens already"
        more, free = bytes_more(info, context), free_memory()
        if free is not None and more > free:
            return f"that needs {format_bytes(more)} more memory, and {format_bytes(free)} is free"
        self.chat.when_idle(lambda: self.models.enlarge(context))
        return ""

    def _refuse(self, event: ev.TooLong, *, notify: bool = True) -> None:
        """Remove a question (or an answer's prefix) that leaves no room for an answer."""
        turn = self.session.withdraw()
        self.turns.show()
        if not self.composer.text and turn.asked not in self.session.tree.nodes:
            node, typed = self.writing.sent_as
            self.composer.set_text(typed if node == turn.asked else to_draft(turn.question))
        prefix = turn.request is not None and turn.request.prefix is not None
        if notify:
            self.turns.notice("error", self._reason(event, "answer" if prefix else "question"))

    def _reason(self, event: ev.TooLong, what: str) -> str:
        """Why a question was not sent (or an answer not begun), and what helps."""
        numbers = f"{event.tokens:,} tokens do not fit in the context of {event.context:,}"
        shorten = "shorten the text, " if what == "question" else ""
        if event.slides:
            begin = f"begin a new chat with {self.keymap.named('chat.new')}"
            ways = f"{shorten}or {begin}" if shorten else "`/context slide` leaves out the oldest questions"
            return f"Not sent: {numbers}. {ways[0].upper()}{ways[1:]}."
        alone = "The question alone is too long" if shorten else "The question and this answer are too long"
        larger = self._larger(event.tokens)
        more = f"`/context {larger.context}` makes room, " if larger is not None else ""
        ways = f"{shorten}{more}or load a model with a larger context ({self.keymap.shown('model.pick')})"
        return f"Not sent: {numbers}. {alone}: {ways.removeprefix('or ')}."
