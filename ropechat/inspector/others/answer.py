"""A recorded answer: its tokens as a format gives them, made to scored tokens.

Formats of other programs may lack ids, ranks and bytes, and all lack entropies. What is not recorded stays
unknown.
"""

import codecs
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from ropechat.errors import RequestError
from ropechat.inspector.draws import RecordedDraws
from ropechat.inspector.made_up_ids import MadeUpIds
from ropechat.trace import SUMMED, TokenDistribution, TokenScore
from ropechat.util.fields import Field

MAX_TOKENS = 1_000_000
"""Tokens of an answer at most."""
PROMPT = "user"
"""The role of a recorded prompt before an answer."""
_UNKNOWN = -9999.0  # OpenAI's and vLLM's number for a token that is too unlikely to be reported
_HIGHEST = 1e-6  # a logprob is at most 0, but for rounding
_SPELLED_BYTES = re.compile(r"bytes?: ?((?:\\x[0-9a-fA-F]{2})+)")
_MOST_ID = 2**53


class Candidate(NamedTuple):
    """A token that could have been in a place. id: None where the format has none. logprob in nats."""

    data: bytes
    logprob: float
    id: int | None = None


class Token(NamedTuple):
    """A token of an answer. logprob: None if unknown. top: the best candidates of its place.

    rank: None if the format does not have it. may_be_extra: whether top may have the token itself in addition
    to the best candidates, so that its place among them says nothing.
    """

    data: bytes
    logprob: float | None
    top: tuple[Candidate, ...] = ()
    id: int | None = None
    rank: int | None = None
    may_be_extra: bool = False
    role: str = SUMMED[0]


def spelled(token: Field, data: Field | None = None) -> bytes:
    """The bytes of a token. data: a list of them, which may be null; else the text counts."""
    if data is not None and data.value is not None:
        return bytes(one.count(255, required=True) for one in data.items())
    return bytes_of(token.text())


def bytes_of(text: str) -> bytes:
    """The bytes of a token's text. OpenAI and llama.cpp write bytes that are no text as "byte: \\x89"."""
    match = _SPELLED_BYTES.fullmatch(text)
    return text.encode() if match is None else bytes.fromhex(match[1].replace("\\x", ""))


def natural_log(number: Field) -> float | None:
    """A logprob in nats, a number or its text; None for null, and for -9999, which means an unknown one."""
    value = number.value
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise number.fail("a number") from None
    elif value != -math.inf:
        value = number.number()
    if not value <= _HIGHEST:  # NaN, too
        raise number.fail("the natural logarithm of a probability, which is at most 0")
    return None if value == _UNKNOWN else value


def log_of_share(number: Field) -> float:
    """The logprob in nats of a probability from 0 to 1."""
    share = number.number()
    if not 0.0 <= share <= 1.0 + _HIGHEST:
        raise number.fail("a probability from 0 to 1")
    return math.log(min(1.0, share)) if share else -math.inf


def id_of(field: Field) -> int | None:
    """A token's id; None for null."""
    return None if field.value is None else field.count(_MOST_ID)


@dataclass
class Answer:
    """The tokens of one answer. label: of several in a file, which one it is. facts: as `Trace.meta`."""

    label: str
    facts: dict[str, Any]
    tokens: list[Token] = field(default_factory=list)
    finished: bool = False

    def add(self, tokens: Iterable[Token], where: str) -> None:
        """Add the tokens of a part. Raises RequestError for too many."""
        self.tokens += tokens
        if len(self.tokens) > MAX_TOKENS:
            raise RequestError(f"{where}: must have at most {MAX_TOKENS:,} tokens in an answer (got more)")

    def scored(self, ids: MadeUpIds) -> RecordedDraws:
        """The answer as scored tokens. ids: of all answers of the file, so that each means one text."""
        pieces = list(_texts([token.data for token in self.tokens]))
        ends = [0, *accumulate(len(piece.encode()) for piece in pieces)]
        widest = max((len(token.top) for token in self.tokens), default=0)
        roles = {token.role for token in self.tokens}
        found = tuple(
            _score(token, ids, place, (ends[place], ends[place + 1]), widest)
            for place, token in enumerate(self.tokens)
        )
        counted = SUMMED if SUMMED[0] in roles else tuple(roles)
        told = {"text": "".join(pieces), "tokens": len(found), "top_k": widest, "roles": counted}
        return RecordedDraws(found, {"sampling": None, **self.facts, **told}, None, ids.spelled)


def _score(token: Token, ids: MadeUpIds, place: int, span: tuple[int, int], widest: int) -> TokenScore:
    numbered = [(ids.of(one.data, one.id), one.logprob) for one in token.top]
    own = ids.of(token.data, token.id)  # last: llama.cpp adds bytes to it that it had withheld before
    top = tuple(sorted(numbered, key=lambda one: -one[1]))
    mass = math.fsum(math.exp(logprob) for _, logprob in top)
    return TokenScore(
        index=place,
        id=own,
        bytes=token.data,
        text=token.data.decode("utf-8", "replace"),
        span=span,
        role=token.role,
        logprob=token.logprob,
        rank=token.rank if token.rank is not None else _rank(token, own, top, widest),
        entropy=None,
        row=TokenDistribution(place - 1, top, math.nan, math.nan, mass) if top else None,
        context=place,
    )


def _rank(token: Token, own: int, top: Sequence[tuple[int, float]], widest: int) -> int | None:
    """The rank of a token among the best candidates; None if it is not one of them, or may not be."""
    logprob = next((logprob for id, logprob in top if id == own), None)
    if logprob is None or token.logprob is None:
        return None
    place = 1 + sum(other > logprob for _, other in top)
    return None if token.may_be_extra and 1 < place == len(top) == widest else place


def _texts(tokens: Sequence[bytes]) -> Iterable[str]:
    """Yield the text that each token completes; bytes that are not UTF-8 become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for place, data in enumerate(tokens, 1):
        yield decoder.decode(data, final=place == len(tokens))
