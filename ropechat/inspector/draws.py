"""A generated text as scored tokens with the record of their draws."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropechat.sampling import Sampling
from ropechat.trace import Step, TokenDistribution, TokenScore


@dataclass(frozen=True)
class Recorded:
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

    def bytes_of(self, id: int) -> bytes:
        """The bytes of a token; b"" if the file does not spell it."""
        return self.spellings.get(id, b"")


def recorded_draws(steps: Sequence[Step], sampling: Sampling, facts: Mapping[str, Any]) -> Recorded:
    """A generated text. facts: `Engine.trace_facts`."""
    tokens = tuple(_drawn(steps))
    text = b"".join(token.bytes for token in tokens if token.span[1] > token.span[0])
    meta = {**facts, "text": text.decode("utf-8", "replace"), "tokens": len(tokens), "sampling": sampling}
    return Recorded(tokens, meta)


def _drawn(steps: Iterable[Step]) -> Iterator[TokenScore]:
    """Yield the steps as scored tokens. `index` is the position in the model's context, prompt included.

    Spans are byte ranges of the steps' joined text. A token that ended the answer has the role "special".
    """
    end = 0
    for step in steps:
        ended = step.finish_reason == "stop" and not step.text
        start, end = end, end + (0 if ended else len(step.bytes))
        yield TokenScore(
            index=step.position,
            id=step.id,
            bytes=step.bytes,
            text=step.bytes.decode("utf-8", "replace"),
            span=(start, end),
            role="special" if ended else "text",
            logprob=step.logprob,
            rank=step.rank,
            entropy=step.entropy,
            row=step.row,
            context=step.position,
            stages=step.stages,
            candidates=step.candidates,
            interval=step.interval,
            u=step.u,
        )
