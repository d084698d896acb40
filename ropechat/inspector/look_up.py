"""The probability of any string after a text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ropechat.errors import RequestError
from ropechat.trace import Pair

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine


class Found(NamedTuple):
    """A string after a text."""

    text: str
    ids: tuple[int, ...]
    logprob: float
    """Of all its tokens, in nats: the sum over the chain."""
    rank: int
    """Of its first token."""


_TAIL = 1000  # characters of the text that may change how the string is split into tokens


def look_up(engine: "Engine", ids: Sequence[int], text: str, wanted: Sequence[str]) -> list[Found]:
    """The probability of each of `wanted` directly after a text.

    ids: the tokens of the text, or its last ones. Raises RequestError for an empty string or an empty text,
    and as `Engine.score`.
    """
    if "" in wanted:
        raise RequestError("--look-up: must have at least one character")
    if not ids:
        raise RequestError("--look-up: the text before it has no tokens")
    pairs = [_pair(engine, ids, _ids(engine, text[-_TAIL:], string)) for string in wanted]
    found: list[Found] = []
    for index, score in engine.score_many(pairs, top_k=0):
        if score.error is not None:
            raise score.error
        tokens = score.trace.tokens
        found.append(
            Found(wanted[index], tuple(token.id for token in tokens), score.logprob, tokens[0].rank or 0)
        )
    return found


def _pair(engine: "Engine", ids: Sequence[int], added: list[int]) -> Pair:
    """The text, or the part of it that fits before the string, and the string."""
    longest = min(engine.context, engine.facts["max_position_embeddings"]) - len(added)
    return Pair(list(ids)[-max(1, longest) :], added)


def _ids(engine: "Engine", text: str, string: str) -> list[int]:
    """The ids of the string as it follows the text; its own ids if a token would span the boundary."""

    def plain(part: str) -> list[int]:
        """The ids without those that the tokenizer adds, which have no text."""
        return [token.id for token in engine.chat.encode_prompt(part)[1] if token.span != (0, 0)]

    before, whole = plain(text), plain(text + string)
    joined = whole[: len(before)] != before or len(whole) == len(before)
    return plain(string) if joined else whole[len(before) :]
