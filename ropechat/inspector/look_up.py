"""The probability of any string at any place of a text.

The tokens of a string are the same at every place: those that it has at the beginning of a line. So
numbers of different places compare, and none depends on how the tokenizer would join the string with the
text before it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ropechat.errors import RequestError
from ropechat.trace import Pair, TokenScore

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

_TOGETHER = 16  # places whose strings are computed together


class Found(NamedTuple):
    """A string in one place of a text."""

    text: str
    ids: tuple[int, ...]
    first: float
    """Logprob of its first token, in nats."""
    rank: int
    """Of its first token, over the whole vocabulary."""
    logprob: float | None
    """Logprob of all its tokens, in nats: the sum over the chain. None if it was not asked for."""


def ids_of(engine: "Engine", string: str) -> tuple[int, ...]:
    """The tokens of a string at the beginning of a line. Raises RequestError for an empty string."""
    if not string:
        raise RequestError("--look-up: must have at least one character")
    found = engine.prompts.line_ids(string)
    if not found:
        raise RequestError(f"--look-up: must have at least one token (got none for {string!r:.60})")
    return found


def look_up(engine: "Engine", ids: Sequence[int], wanted: Sequence[str]) -> list[Found]:
    """The probability of each of `wanted` directly after a text.

    ids: the tokens of the text, or its last ones. Raises RequestError for an empty string or an empty text,
    and as `Engine.score`.
    """
    strings = [(text, ids_of(engine, text)) for text in wanted]
    return next(_chains(engine, [ids], strings), [])


def _chains(
    engine: "Engine", contexts: Iterable[Sequence[int]], strings: Sequence[tuple[str, tuple[int, ...]]]
) -> Iterator[list[Found]]:
    """Yield the strings after each context. Raises RequestError for a context without tokens."""
    longest = min(engine.context, engine.facts["max_position_embeddings"])

    def pairs() -> Iterator[Pair]:
        for ids in contexts:
            if not ids:
                raise RequestError("--look-up: the text before it has no tokens")
            for _, added in strings:
                yield Pair(list(ids)[-max(1, longest - len(added)) :], added)

    found: list[Found] = []
    for index, score in engine.score_many(pairs(), top_k=0):
        if score.error is not None:
            raise score.error
        text, added = strings[index % len(strings)]
        first = score.trace.tokens[0]
        found.append(Found(text, added, first.logprob or 0.0, first.rank or 0, score.logprob))
        if len(found) == len(strings):
            yield found
            found = []


class Strings:
    """Strings that are looked up in the place of each token of a text, and after the last one.

    whole: also the probability of strings of several tokens, which takes a short pass for each place; else
    that of their first token, which costs nearly nothing.
    """

    def __init__(self, engine: "Engine", wanted: Sequence[str], *, whole: bool = False) -> None:
        self._engine = engine
        self._strings = [(text, ids_of(engine, text)) for text in wanted]
        self._whole = whole and any(len(ids) > 1 for _, ids in self._strings)

    @property
    def first_ids(self) -> list[int]:
        """The first token of each string: what `Engine.score` looks up."""
        return [ids[0] for _, ids in self._strings]

    def watch(
        self, tokens: Iterable[TokenScore], before: Sequence[int] = ()
    ) -> Iterator[tuple[TokenScore, Sequence[Found]]]:
        """Yield each token with the strings in its place; without any for a token without a context.

        tokens: scored with `first_ids` looked up. before: the ids before the first of them.
        """
        if not self._whole:
            yield from ((token, self._found(token)) for token in tokens)
            return
        source, history = iter(tokens), list(before)
        bos = self._engine.tokenizer.bos_id
        while group := list(islice(source, _TOGETHER)):
            contexts = []
            for token in group:
                contexts.append(_context(history, token.context, bos))
                history.append(token.id)
            found = _chains(self._engine, filter(None, contexts), self._strings)
            for token, ids in zip(group, contexts, strict=True):
                yield token, next(found) if ids else ()

    def after(self, ids: Sequence[int]) -> list[Found]:
        """The strings after a text. ids: its last tokens."""
        return next(_chains(self._engine, [ids], self._strings), [])

    def _found(self, token: TokenScore) -> list[Found]:
        return [
            Found(text, ids, logprob, rank, logprob if len(ids) == 1 else None)
            for (text, ids), (logprob, rank) in zip(self._strings, token.looked_up, strict=False)
        ]


def _context(history: Sequence[int], count: int, bos: int | None) -> list[int]:
    """The `count` ids that a token was scored under: the last ones, or in a later window BOS and those."""
    if not count:
        return []
    lead = [bos] if bos is not None and count < len(history) and history[0] == bos else []
    return [*lead, *history[len(history) - count + len(lead) :]]
