"""A record of logprobs in the reader: a text that is scored already, without a model."""

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from ropechat.engine.engine import Engine
from ropechat.errors import RequestError
from ropechat.inspector.draws import RecordedDraws
from ropechat.inspector.scored_text import ScoredText
from ropechat.inspector.text_reader import TextReader, beside
from ropechat.tokenizer import EncodedToken
from ropechat.trace import TokenScore

_BETWEEN = "\n\n"


class NoEngine:
    """In the place of an engine: what would compute with it is refused."""

    def __getattr__(self, name: str) -> Any:
        raise RequestError("needs a model, which a record is not; open its text with -m")

    def cancel(self) -> None:
        """There is nothing to cancel."""


class RecordReader(TextReader):
    """The tokens of recorded answers with their scores, one answer after the other.

    answers: each with its name.
    """

    def __init__(self, answers: Iterable[tuple[str, RecordedDraws]]) -> None:
        self.answers = list(answers)
        texts = [draws.meta["text"] or "" for _, draws in self.answers]
        self.tokens = list(chain.from_iterable(draws.tokens for _, draws in self.answers))
        encoded, base = list[EncodedToken](), 0
        for text, (_, draws) in zip(texts, self.answers, strict=True):
            for token in draws:
                span = (base + token.span[0], base + token.span[1])
                encoded.append(EncodedToken(token.id, span, token.role))
            base += len(f"{text}{_BETWEEN}".encode())
        super().__init__(_BETWEEN.join(texts), iter([encoded]), max(1, len(encoded)), 1)
        while not self.is_encoded:
            self._encode()
        for index, token in enumerate(self.tokens):
            if token.logprob is not None and math.isfinite(token.logprob):
                self.take(index, token.logprob, token.rank or 0, token.entropy, *beside(token))

    @property
    def is_done(self) -> bool:
        """Nothing is computed."""
        return True

    def detail(self, index: int) -> TokenScore | None:
        """A token with its candidates."""
        return self.tokens[index] if 0 <= index < len(self.tokens) else None

    def step(self, engine: Engine) -> bool:
        """Nothing is to be done."""
        return False

    def spell(self, id: int) -> bytes:
        """The bytes of a token; b"" if no answer spells it."""
        return self.answers[0][1].bytes_of(id)  # all answers of a file spell their ids together

    def page(self, engine: Engine, title: str) -> Iterator[str]:
        """The page of the answers in pieces. title: plain text."""
        from ropechat.inspector import trace_page  # imported here: rarely needed

        texts = (ScoredText(draws, name, draws.bytes_of) for name, draws in self.answers)
        return trace_page.render(texts, title)
