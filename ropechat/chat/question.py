"""One question in a chat, without a screen: the steps of its answer, which is stored as it comes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ropechat.chat.context import OverflowPolicy, choose_cut, drop_messages
from ropechat.chat.prefill import AnswerWriter
from ropechat.conversation import with_seed
from ropechat.errors import CancelledError, ContextFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ropechat.chat.protocols import ChatEngine
    from ropechat.chat.session import Session
    from ropechat.sampling import Sampling
    from ropechat.sampling.grammar import Grammar
    from ropechat.trace import Step


class Question:
    """A question at the end of the branch that a session shows. sampling: with the seed of the answer."""

    def __init__(self, session: Session, text: str, grammar: Grammar | None = None) -> None:
        self._session = session
        self.sampling: Sampling = with_seed(replace(session.sampling, grammar=grammar), 0)
        self._turn = session.ask(text, self.sampling)

    @property
    def left_out(self) -> int:
        """The number of earlier questions that the model does not read for this one."""
        return self._session.left_out(self._turn.asked)

    def answer(
        self, engine: ChatEngine, top_k: int, on_prefill: Callable[[int, int], None]
    ) -> Generator[Step]:
        """Yield the steps of the answer. top_k: alternatives per token; 0 takes the chat's number.

        Raises ContextFullError after it removed the question.
        """
        request = self._turn.request
        assert request is not None
        messages, writing, tokens = request.messages, AnswerWriter(request), 0
        slides = self._session.when_full is OverflowPolicy.SLIDE and len(request.cuts) > 1
        if slides and len(engine.prompt_ids(messages)) >= engine.context:
            cut = choose_cut(engine, request, 0)
            self._session.truncate(self._turn.asked, cut)
            messages = drop_messages(messages, request.cuts[0], cut)

        def begun(done: int, total: int) -> None:
            nonlocal tokens
            tokens = total
            on_prefill(done, total)

        writing.wait()
        first, reason = True, None
        try:
            for step in engine.reply(messages, self.sampling, top_k=top_k or request.top_k, on_prefill=begun):
                if first:
                    writing.begin(engine.name, tokens, [])
                    first = False
                writing.add(step, time.monotonic())
                reason = step.finish_reason
                yield step
        except ContextFullError as error:
            if first:
                self._session.withdraw()
                raise self._full(error) from None
            writing.end("context")
        except Exception as error:
            if isinstance(error, CancelledError):
                writing.end("cancelled")
            else:
                writing.end(None, error)
            raise
        except BaseException:  # a signal, or the caller stopped reading
            writing.end("cancelled")
            raise
        else:
            writing.end(reason)

    def _full(self, error: ContextFullError) -> ContextFullError:
        if not self._session.turns:
            return error
        return ContextFullError(f"{error}; --when-full slide leaves the oldest questions out")
