"""Words of a scored text: the probability of each as a whole, and the spans of words that are unsure.

A word has its punctuation marks apart and the space before it with it; in scripts without spaces a character
is a word. Tokens are not divided: where a token reaches into the next word, both are one. The probability of
a word is the product over its tokens, each under all tokens before it: that of this tokenization, and not
that the word ends there. A word with a token that has no score or does not count in sums is left out.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ropechat.inspector import by_line
from ropechat.inspector.by_line import Line
from ropechat.inspector.scored_text import LN2, Observer, ScoredText, percent
from ropechat.trace import SUMMED, TokenScore
from ropechat.util.records import Column, Table, bar, finite
from ropechat.util.text import count_of, visible
from ropechat.util.width import fit, fit_end

COLUMNS = (
    *("file", "word", "line", "start", "end", "words", "tokens"),
    *("logprob", "bits", "prob", "first_prob", "text"),
)
_MARKS = r"!-/:-@\[-^`{-~\u00a1-\u00bf\u2010-\u205e\u2190-\u2bff\u3001-\u303f\uff01-\uff0f\uff1a-\uff20"
_ALONE = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
"""Characters of scripts that are written without spaces."""
_LETTERS = rf"[^\s{_MARKS}{_ALONE}]+"
_WORD = re.compile(
    rf" ?(?:[{_ALONE}]|{_LETTERS}(?:(?:['’-]|(?<=\d)[.,](?=\d)){_LETTERS})*|[{_MARKS}]+)"
    r"|[^\S\n]*\n|\s+?(?= ?\S)|\s+"
)


@dataclass(frozen=True)
class Word(Line):
    """The sums of a word, or of a span of `words` words. number: of the (first) word, from 1."""

    line: int
    """The line in which the word begins, from 1."""
    words: int
    scores: tuple[TokenScore, ...]

    @property
    def prob(self) -> float:
        """The product over its tokens."""
        return math.exp(-self.nll)

    @property
    def first_prob(self) -> float:
        """The probability of its first token."""
        return math.exp(self.scores[0].logprob or 0.0)


class Words:
    """Makes words of the tokens of a text. name: of its file. meta: as of `Trace`."""

    def __init__(self, name: str, meta: Mapping[str, Any]) -> None:
        self._name, self._roles = name, meta.get("roles") or SUMMED
        self._data = (meta.get("text") or "").encode("utf-8", "replace")
        self._held: list[TokenScore] = []
        self._edges: Iterator[int] | None = None
        self._edge = self._count = self._seen = 0
        self._line = 1

    def add(self, token: TokenScore) -> Iterator[Word]:
        """Yield the words that end before or with a token."""
        if self._held and token.role != self._held[-1].role:
            yield from self._end()
        start, end = token.span
        if self._edges is None:  # a continuation of another text begins with a word
            self._edges, self._edge, self._seen = self._edges_from(start), start, start
        while self._edge < end:
            self._edge = next(self._edges, end)
        self._held.append(token)
        if start < end == self._edge:
            yield from self._end()

    def _end(self) -> Iterator[Word]:
        """Yield the word of the tokens so far, if all of them count."""
        held, self._held = self._held, []
        if all(token.logprob is not None and token.role in self._roles for token in held):
            start, end = held[0].span[0], held[-1].span[1]
            data = self._data[start:end]
            first = end - len(data.lstrip() or data)  # the word itself may follow a newline
            self._line += self._data.count(b"\n", self._seen, first)
            self._seen, self._count = first, self._count + 1
            text = data.decode("utf-8", "replace")
            sums = by_line.sums_of(self._name, self._count, (start, end), text, held)
            yield Word(**vars(sums), line=self._line, words=1, scores=tuple(held))

    def _edges_from(self, at: int) -> Iterator[int]:
        """Yield where words may end, as places in bytes; after an indent with and without its last space."""
        is_blank = False
        for match in _WORD.finditer(self._data[at:].decode("utf-8", "replace")):
            if is_blank and match[0].startswith(" "):
                yield at + 1
            at += len(match[0].encode())
            yield at
            is_blank = match[0].isspace()


def words_of(text: ScoredText) -> Iterator[Word]:
    """Yield the words of a text in its order."""
    words = Words(text.name, text.meta)
    return (word for token in text for word in words.add(token))


def unsure(words: Iterable[Word], below: float) -> Iterator[Word]:
    """Yield the words with a smaller probability; those that follow one another are joined to one span."""
    group: list[Word] = []
    for word in words:
        if word.prob >= below:
            continue
        if group and not _follows(group[-1], word):
            yield _joined(group)
            group = []
        group.append(word)
    if group:
        yield _joined(group)


def _follows(one: Word, other: Word) -> bool:
    return (one.file, one.span[1], one.number + 1) == (other.file, other.span[0], other.number)


def _joined(words: Sequence[Word]) -> Word:
    first, span = words[0], (words[0].span[0], words[-1].span[1])
    scores = [token for word in words for token in word.scores]
    sums = by_line.sums_of(first.file, first.number, span, "".join(word.text for word in words), scores)
    return Word(**vars(sums), line=first.line, words=len(words), scores=tuple(scores))


class UnsureWatch(Observer):
    """Reports the unsure spans of a text while it is scored; `inner` gets every token."""

    def __init__(self, inner: Observer, name: str, below: float, tell: Callable[[Word], object]) -> None:
        self._inner, self._name, self._below, self._tell = inner, name, below, tell
        self._found: list[Word] = []

    @property
    def is_stopped(self) -> bool:
        return self._inner.is_stopped

    @contextmanager
    def scoring(self, meta: Mapping[str, Any]) -> Iterator[None]:
        self._words = Words(self._name, meta)
        with self._inner.scoring(meta):
            yield
        for span in unsure(self._found, self._below):
            self._tell(span)

    def scored(self, token: TokenScore) -> None:
        self._found += (word for word in self._words.add(token) if word.prob < self._below)
        self._inner.scored(token)


def record(word: Word) -> dict[str, Any]:
    """The record of a word. logprob in nats."""
    return {
        **({"file": word.file} if word.file else {}),
        "word": word.number,
        "line": word.line,
        "span": word.span,
        "words": word.words,
        "tokens": word.tokens,
        "logprob": finite(-word.nll),
        "bits": finite(word.bits),
        "prob": finite(word.prob),
        "first_prob": finite(word.first_prob),
        "text": word.text,
    }


def line_of(word: Word) -> str:
    """A span in one line: its place, probability and text."""
    place = f"{word.file}:{word.line}" if word.file else f"line {word.line}"
    tokens = count_of(word.tokens, "token")
    return f"{place}: {percent(-word.nll)} in {tokens}: {visible(word.text.encode('utf-8', 'replace'))}"


def table(words: Iterable[Word], width: int, unit: str = "bit") -> Iterator[str]:
    """Yield the lines of a table for a terminal, without line ends."""
    found = list(words)
    files = {word.file for word in found}
    scale = 1.0 if unit == "bit" else LN2

    def place(word: Word) -> str:
        return f"{word.file}:{word.line}" if len(files) > 1 else str(word.line)

    at = min(max([4, *(len(place(word)) for word in found)]), max(6, width // 5))
    is_wide = width >= 60
    bars = 10 if is_wide else 4
    room = max(4, width - at - 8 - 7 - bars - (8 if is_wide else 0) - 8)
    out = Table(
        Column("line", at, lambda word: fit_end(place(word), at) if len(place(word)) > at else place(word)),
        Column(f"{unit}s", 8, lambda word: f"{scale * word.bits:.2f}"),
        Column("prob", 7, lambda word: percent(-word.nll)),
        Column("", -bars, lambda word: bar(word.prob, bars)),
        Column("tokens", 6, lambda word: str(word.tokens)) if is_wide else None,
        Column("text", 0, lambda word: fit(visible(word.text.encode("utf-8", "replace")), room).rstrip()),
    )
    yield out.head
    yield from map(out.line, found)
