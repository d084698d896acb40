"""One question in a chat, without a screen: the steps of its answer, which is stored as it comes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.answering import answer
from ropechat.chat.context import drop_messages
from ropechat.conversation import with_seed
from ropechat.errors import ContextFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ropechat.chat.session import Session
    from ropechat.conversation import Message
    from ropechat.engine.engine import Engine
    from ropechat.sampling import Sampling
    from ropechat.sampling.grammar import Grammar
    from ropechat.trace import Step


class Question:
    """A question at the end of the branch that a session shows.

    sampling: with the seed of the answer. messages: what the model reads, once it answers.
    """

    messages: Sequence[Message] = ()

    def __init__(self, session: Session, text: str, grammar: Grammar | None = None) -> None:
        self._session = session
        self.sampling: Sampling = with_seed(replace(session.sampling, grammar=grammar), 0)
        self._turn = session.ask(text, self.sampling)

    @property
    def left_out(self) -> int:
        """The number of earlier questions that the model does not read for this one."""
        return self._session.left_out(self._turn.asked)

    def answer(self, engine: Engine, top_k: int, on_prefill: Callable[[int, int], None]) -> Generator[Step]:
        """Yield the steps of the answer. top_k: alternatives per token; 0 takes the chat's number.

        Raises ContextFullError after it removed the question.
        """
        asked = self._turn.request
        assert asked is not None
        self.messages = asked.messages

        def tell(event: ev.EngineEvent) -> None:
            if isinstance(event, ev.ContextTruncated):
                self._session.truncate(self._turn.asked, event.cut)
                self.messages = drop_messages(asked.messages, asked.cuts[0], event.cut)
            elif isinstance(event, ev.Prefilled):
                on_prefill(event.done, event.total)

        reason = yield from answer(engine, replace(asked, top_k=top_k or asked.top_k), tell)
        if reason is None:
            self._session.withdraw()
            hint = "; --when-full slide leaves the oldest questions out" if self._session.turns else ""
            try:
                next(engine.reply(asked.messages, self.sampling))  # the engine says what does not fit
            except ContextFullError as error:
                raise ContextFullError(f"{error}{hint}") from None
