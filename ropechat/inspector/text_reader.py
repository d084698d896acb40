"""A text that is scored piece by piece, what the reader looks at first: the model behind `inspect -i`.

Nothing here draws or starts a thread: `step` does a small part of the work with an engine, and whoever owns
the engine calls it again and again. Windows are those of `Engine.score`, so the numbers are, too.
"""

import math
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, Protocol

from ropechat.engine.engine import Engine
from ropechat.inspector.chart import runner_up
from ropechat.tokenizer import EncodedToken
from ropechat.trace import Pair, TokenScore

CHUNK = 64
"""Tokens scored by a step: a step is short, so that another place can be scored next."""
KEPT = 4096
"""Tokens whose candidates are kept; others are computed again on request."""
TOP_K = 20
_LN2 = math.log(2)


Job = Callable[[Engine], Any]
Done = Callable[[Any], None]
"""Called with the result of a job or with its exception, from the thread that ran it."""


def beside(token: TokenScore) -> tuple[float | None, float | None]:
    """The varentropy of a token's place in nats^2 and the probability of the runner-up, if known."""
    row = token.row
    return (None, None) if row is None else (row.varentropy, runner_up(token.id, row.top))


class Steps(Protocol):
    """Work in small parts: a `TextReader`, alone or with a second model."""

    def step(self, engine: Engine) -> bool:
        """Do a part; False if there is nothing to do."""


class Worker(Protocol):
    """Computes for a reader, in another thread."""

    def submit(self, job: Job, done: Done) -> None:
        """Run a job as soon as the thread is free; a chunk of scoring takes milliseconds."""

    def read(self, reader: Steps) -> None:
        """Do this work from now on."""

    def wake(self) -> None:
        """Look again for what is to be scored."""


class TextReader:
    """The tokens of a text and their scores, as far as they are known.

    window: tokens of a window, stride: tokens by which windows move on. Arrays have one entry per token;
    figures are NaN (ranks 0) until a token is scored. Only one thread may call `step`.
    """

    def __init__(self, text: str, pieces: Iterator[list[EncodedToken]], window: int, stride: int) -> None:
        self.text, self.data = text, text.encode("utf-8", "surrogatepass")
        self.window, self.stride = window, stride
        self.starts, self.ids = array("q"), array("l")  # byte offset and id of each token
        self.bits, self.entropy, self.rank = array("f"), array("f"), array("l")
        self.varentropy = array("f")  # bits^2
        self.rival = array("f")  # the probability of the best candidate but for the token
        self.scored, self._sum = 0, 0.0
        self.is_encoded = False
        self.version = 0  # rises with every change, so that a screen knows when to draw
        self._pieces = pieces
        self._lead: list[EncodedToken] = []
        self.wanted = 0
        self._asked: int | None = None
        self._details: OrderedDict[int, TokenScore] = OrderedDict()
        self._next = 0  # every token before it is scored
        self._lock = Lock()

    @classmethod
    def of(cls, engine: Engine, text: str, window: int | None = None) -> "TextReader":
        """A reader of a text, with the windows that `Engine.score` takes."""
        size = window or engine.window
        reader = cls(text, engine.prompts.encode_long(text, "text"), size, max(1, size // 2))
        reader._encode()  # what is seen first can be selected at once
        return reader

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_done(self) -> bool:
        """Whether every token that has a context is scored."""
        return self.is_encoded and self._next >= len(self.ids)

    def token_at(self, offset: int) -> int:
        """The index of the token that covers a byte; the last one before it where none does; -1: none."""
        return bisect_right(self.starts, offset) - 1

    def span(self, index: int) -> tuple[int, int]:
        """The bytes of a token; the last one known ends where the text does."""
        end = self.starts[index + 1] if index + 1 < len(self.starts) else len(self.data)
        return self.starts[index], end

    def detail(self, index: int) -> TokenScore | None:
        """A token with its candidates; None until a step has computed them."""
        with self._lock:
            found = self._details.get(index)
            if found is not None:
                self._details.move_to_end(index)
            elif 0 < index < len(self.ids):
                self._asked = index
        return found

    def look_at(self, offset: int) -> None:
        """Score the text from this byte on before anything else."""
        self.wanted = offset

    def totals(self) -> tuple[int, float]:
        """Number of scored tokens, and their mean surprisal in bits (NaN if there are none)."""
        return self.scored, self._sum / self.scored if self.scored else math.nan

    def context_of(self, index: int) -> list[int]:
        """The ids before a token, as far as its window reaches."""
        begin = self._begin(index)
        return [*(token.id for token in self._lead if begin), *self.ids[begin:index]]

    def split_at(self, index: int, room: int, after: int) -> tuple[str, str, str]:
        """The text before a token in its window, the token as whole characters, and what follows it.

        room: tokens of the window that stay free. after: bytes of what follows, at most.
        """
        first = max(self._begin(index), index - max(1, self.window - room))
        begin, (start, end) = self.starts[first], self.span(index)
        while start > begin and self.data[start] & 0xC0 == 0x80:
            start -= 1
        while end < len(self.data) and self.data[end] & 0xC0 == 0x80:
            end += 1
        pieces = self.data[begin:start], self.data[start:end], self.data[end : end + after]
        before, own, rest = (piece.decode("utf-8", "replace") for piece in pieces)
        return before, own, rest

    def take_over(self, old: "TextReader") -> None:
        """Take the scores of the tokens that this text begins with in common with an older one."""
        while not self.is_encoded and len(self.ids) < old.scored:
            self._encode()
        for index in range(min(len(self.ids), len(old.ids))):
            if self.ids[index] != old.ids[index]:
                break
            if not (self.is_known(index) and old.is_known(index)):
                continue
            if self._begin(index) == old._begin(index):  # the end of a text moves its last window
                self.bits[index], self.rank[index] = old.bits[index], old.rank[index]
                self.entropy[index], self.varentropy[index] = old.entropy[index], old.varentropy[index]
                self.rival[index] = old.rival[index]
                self._count(index)
        self.version += 1

    def page(self, engine: Engine, title: str) -> Iterator[str]:
        """The page of the text in pieces. title: plain text. Raises what the engine raises."""
        from ropechat.inspector.spec import InspectSpec, NamedText  # imported here: rarely needed

        text = NamedText(title, lambda: self.text)
        return InspectSpec([text], form="html", window=self.window).pieces(engine)

    # --- work ---

    def step(self, engine: Engine) -> bool:
        """Encode or score a little; False if there is nothing to do. Raises what the engine raises."""
        if self._asked is not None and self.is_known(self._asked):
            self._score(engine, self._asked, self._asked + 1)
            return True
        place = self._place()
        if place is None and not self.is_encoded:
            self._encode()
            return True
        if place is None:
            return False
        end = place
        limit = min(self.end_of_window(place), place + CHUNK)
        while end < limit and math.isnan(self.bits[end]):
            end += 1
        self._score(engine, place, end)
        return True

    def _encode(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            self.is_encoded = True
        else:
            if not self.ids and piece and piece[0].role == "bos":
                self._lead = piece[:1]
            for token in piece:
                self.starts.append(token.span[0])
                self.ids.append(token.id)
            unknown = [math.nan] * len(piece)
            self.bits.extend(unknown)
            self.entropy.extend(unknown)
            self.varentropy.extend(unknown)
            self.rival.extend(unknown)
            self.rank.extend([0] * len(piece))
        self.version += 1

    def _place(self) -> int | None:
        """The token to score next: the first without a score from the wanted place on, else of the text.

        None also where more of the text must be encoded first: the end of a text moves its last window.
        """
        wanted = max(1, self.token_at(self.wanted))
        place = next(
            (i for i in range(wanted, min(wanted + self.window, len(self.ids))) if math.isnan(self.bits[i])),
            None,
        )
        if place is None and self.is_encoded:
            place = self._first_unknown()
        return place if place is not None and self.is_known(place) else None

    def is_known(self, place: int) -> bool:
        """Whether the window that scores a token is encoded."""
        return self.is_encoded or self.end_of_window(place) < len(self.ids)

    @property
    def is_seen(self) -> bool:
        """Whether the tokens of a screen or so from the wanted byte on are scored."""
        wanted = max(1, self.token_at(self.wanted))
        return not any(math.isnan(self.bits[i]) for i in range(wanted, min(wanted + CHUNK, len(self.ids))))

    def _first_unknown(self) -> int | None:
        self._next = max(1, self._next)
        while self._next < len(self.ids) and not math.isnan(self.bits[self._next]):
            self._next += 1
        return self._next if self._next < len(self.ids) else None

    def _row(self, index: int) -> int:
        """The number of the window that scores a token: 0 for the first."""
        row = index - 1  # row r predicts token r + 1
        return 0 if row < self.window else (row - self.window) // self._move + 1

    @property
    def _move(self) -> int:
        return min(self.stride, self.window - len(self._lead))

    def end_of_window(self, index: int) -> int:
        """The index after the last token that the window of a token scores."""
        return min(self.window + self._row(index) * self._move + 1, len(self.ids))

    def _begin(self, index: int) -> int:
        """The first token of the text in the window that scores a token."""
        number = self._row(index)
        end = self.window + number * self._move
        if self.is_encoded:
            end = min(end, len(self.ids))
        return end - self.window + len(self._lead) if number else 0

    def _score(self, engine: Engine, place: int, end: int) -> None:
        pair = Pair(self.context_of(place), list(self.ids[place:end]))
        (_, score) = next(iter(engine.score_many([pair], top_k=TOP_K)))
        if score.error is not None:
            raise score.error
        with self._lock:
            for index, token in zip(range(place, end), score.trace, strict=True):
                self._take(index, token)
            if self._asked is not None and place <= self._asked < end:
                self._asked = None
            while len(self._details) > KEPT:
                self._details.popitem(last=False)
        self.version += 1

    def _take(self, index: int, token: TokenScore) -> None:
        if token.logprob is None or token.rank is None:
            return
        self.take(index, token.logprob, token.rank, token.entropy, *beside(token))
        self._details[index] = token

    def take(
        self,
        index: int,
        logprob: float,
        rank: int,
        entropy: float | None,
        varentropy: float | None,
        best: float | None,
    ) -> None:
        """Take the figures of a token, in nats, and the probability of the runner-up; from the thread that
        calls `step`."""
        is_new = math.isnan(self.bits[index])
        self.bits[index], self.rank[index] = -logprob / _LN2, rank
        self.entropy[index] = math.nan if entropy is None else entropy / _LN2
        self.varentropy[index] = math.nan if varentropy is None else varentropy / _LN2**2
        self.rival[index] = math.nan if best is None else best
        if is_new:
            self._count(index)

    def _count(self, index: int) -> None:
        """Add a token to the totals, if it has a score."""
        if not math.isnan(self.bits[index]):
            self.scored += 1
            self._sum += self.bits[index]
