"""The probability of any string after a text."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ropechat.errors import RequestError

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
    return [_one(engine, ids, text, string) for string in wanted]


def _one(engine: "Engine", ids: Sequence[int], text: str, string: str) -> Found:
    if not string:
        raise RequestError("--look-up: must have at least one character")
    added = _ids(engine, text[-_TAIL:], string)
    longest = min(engine.context, engine.facts["max_position_embeddings"]) - len(added)
    before = list(ids)[-max(1, longest) :]
    scores = engine.score(before + added, top_k=0).tokens[len(before) :]
    rank, logprobs = scores[0].rank, [score.logprob for score in scores if score.logprob is not None]
    if rank is None:
        raise RequestError(f"--look-up: {string!r:.60}: the text before it has no tokens")
    return Found(string, tuple(added), math.fsum(logprobs), rank)


def _ids(engine: "Engine", text: str, string: str) -> list[int]:
    """The ids of the string as it follows the text; its own ids if a token would span the boundary."""

    def plain(part: str) -> list[int]:
        """The ids without those that the tokenizer adds, which have no text."""
        return [token.id for token in engine.chat.encode_prompt(part)[1] if token.span != (0, 0)]

    before, whole = plain(text), plain(text + string)
    joined = whole[: len(before)] != before or len(whole) == len(before)
    return plain(string) if joined else whole[len(before) :]
