"""A generated text as scored tokens with the record of their draws."""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from ropechat.sampling import Sampling
from ropechat.trace import Step, TokenDistribution, TokenScore


@dataclass(frozen=True)
class RecordedDraws:
    """Scores that are complete: of a generated text, or read from a file.

    meta: as of `Trace`. next: the distribution after the last token, if it was computed. spellings: the bytes
    of the ids that a file spells.
    """

    tokens: tuple[TokenScore, ...]
    meta: dict[str, Any]
    next: TokenDistribution | None = None
    spellings: Mapping[int, bytes] = field(default_factory=dict)

    def __iter__(self) -> Iterator[TokenScore]:
        return iter(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sampling(self) -> Sampling | None:
        """The settings of the sampler, if recorded."""
        found: Sampling | None = self.meta.get("sampling")
        return found

    def with_candidates(self, count: int) -> "RecordedDraws":
        """These draws with at most `count` candidates in each row; the record of the stages stays whole."""

        def cut(row: TokenDistribution | None) -> TokenDistribution | None:
            return row and row._replace(top=row.top[:count])

        tokens = tuple(replace(token, row=cut(token.row)) for token in self.tokens)
        return replace(self, tokens=tokens, next=cut(self.next))

    def bytes_of(self, id: int) -> bytes:
        """The bytes of a token; b"" if the file does not spell it."""
        return self.spellings.get(id, b"")


def recorded_draws(steps: Sequence[Step], sampling: Sampling, facts: Mapping[str, Any]) -> RecordedDraws:
    """A generated text. facts: `Engine.trace_facts`."""
    pieces = [*_texts(steps)]
    ends = [0, *accumulate(len(piece.encode()) for piece in pieces)]
    tokens = tuple(_drawn(steps, ends))
    meta = {**facts, "text": "".join(pieces), "tokens": len(tokens), "sampling": sampling}
    return RecordedDraws(tokens, meta)


def _ends(step: Step) -> bool:
    """Whether the token only ends the answer."""
    return step.finish_reason == "stop" and not step.text


def _texts(steps: Sequence[Step]) -> Iterator[str]:
    """Yield the text that each token completes; bytes that are not UTF-8 become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for place, step in enumerate(steps, 1):
        yield decoder.decode(b"" if _ends(step) else step.bytes, final=place == len(steps))


def _drawn(steps: Sequence[Step], ends: Sequence[int]) -> Iterator[TokenScore]:
    """Yield the steps as scored tokens. ends: where each token's text begins, and where the last one ends.

    `index` is the position in the model's context, prompt included. A token that ended the answer has the
    role "special".
    """
    for place, step in enumerate(steps):
        yield TokenScore(
            index=step.position,
            id=step.id,
            bytes=step.bytes,
            text=step.bytes.decode("utf-8", "replace"),
            span=(ends[place], ends[place + 1]),
            role="special" if _ends(step) else "text",
            logprob=step.logprob,
            rank=step.rank,
            entropy=step.entropy,
            row=step.row,
            context=step.position,
            stages=step.stages,
            candidates=step.candidates,
            interval=step.interval,
            u=step.u,
            drafted=step.drafted,
        )
