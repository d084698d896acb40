"""How sure a model was of an answer that had to match a grammar: the same numbers for each door.

Of choices, `choices` has the probability of each among them all, `confidence` that of the answer, and
`allowed` the probability that the choices had together before the grammar cut everything else: a small one
means that the prompt does not ask for these words.

Of JSON, `fields` has the same for each value, by its path. The values that a schema lists (enumerations,
constants, booleans) are weighed against each other. Of another value `confidence` is the product, over its
tokens, of the probability among what the grammar allowed there, and `allowed` the product of the
probabilities of all that it allowed; the tokens are those of the value's text and of the character that ends
it. So `confidence` times `allowed` is the raw probability. The `confidence` of the whole is that of its least
sure field, and `allowed` the least of the fields with listed values.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ropechat.engine.alternatives import MAX_ALTERNATIVES, Speller, Weighing, overlapping
from ropechat.engine.json_fields import Field, fields_of, listed_values, name_of, schema_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ropechat.engine.prompt import PromptBuilder
    from ropechat.sampling.grammar import Grammar
    from ropechat.trace import Step

MAX_WEIGHED = 64
"""Most fields of an answer whose listed values are weighed; further ones are judged by their tokens."""
_AFTER_VALUES = b",}] \t\r\n"
"""What ends a value in an object or a list that has no quotes."""


def has_certainty(grammar: Grammar | None) -> bool:
    """Whether `CertaintyReader.of` can say something of answers that match a grammar."""
    return grammar is not None and (grammar.kind == "choices" or grammar.is_json)


def mass_of(step: Step) -> float:
    """The raw probability of what the grammar allowed in the place of a token; 1 without a recorded stage."""
    return next((stage.mass for stage in step.stages if stage.name == "grammar"), 1.0)


@dataclass(frozen=True)
class Answer:
    """An answer without its thought. ids, logprobs, masses: of each token, see `mass_of`."""

    text: str
    ids: Sequence[int]
    logprobs: Sequence[float]
    masses: Sequence[float]

    @classmethod
    def of_steps(cls, steps: Iterable[Step]) -> Answer:
        """The answer of a reply."""
        own = [step for step in steps if step.channel == "answer"]
        return cls(
            "".join(step.text for step in own),
            [step.id for step in own],
            [step.logprob for step in own],
            [mass_of(step) for step in own],
        )


@dataclass(frozen=True)
class Certainty:
    """How sure an answer is. weighings: what must be read before `record` can say it."""

    weighings: Sequence[Weighing]
    record: Callable[[], dict[str, Any]]


class _Judged(NamedTuple):
    """A field of an answer: its tokens [first, last), and if its values are listed, these; own: its index."""

    name: str
    first: int
    last: int
    weighing: Weighing | None = None
    values: tuple[str, ...] = ()
    own: int = 0

    def record(self, answer: Answer) -> dict[str, Any]:
        """What is said of the field."""
        tokens = [self.first, self.last]
        if self.weighing is not None:
            weights = self.weighing.result()
            shares = dict(zip(self.values, weights.shares, strict=True))
            own = weights.shares[self.own]
            return {"confidence": own, "allowed": weights.allowed, "tokens": tokens, "values": shares}
        span = slice(self.first, self.last)
        masses = [mass for mass in answer.masses[span] if mass > 0]
        logprob = math.fsum(answer.logprobs[span]) if len(masses) == self.last - self.first else -math.inf
        allowed = math.fsum(map(math.log, masses))
        return {
            "confidence": min(1.0, math.exp(logprob - allowed)),
            "allowed": min(1.0, math.exp(allowed)),
            "tokens": tokens,
        }


class CertaintyReader:
    """Says what must be read to know how sure an answer is.

    stop_ids: the ids that end a text. vocab_size: how many ids there are.
    """

    def __init__(
        self,
        prompts: PromptBuilder,
        bytes_of: Callable[[int], bytes],
        stop_ids: Iterable[int],
        vocab_size: int,
    ) -> None:
        self._speller = Speller(prompts, bytes_of)
        self._bytes_of, self._vocab_size = bytes_of, vocab_size
        self._stop_ids = sorted(stop_ids)
        self._found: dict[bytes, list[int]] = {}

    def of(self, before: Sequence[int], answer: Answer, grammar: Grammar) -> Certainty | None:
        """The certainty of an answer; None where there is none to know: see `has_certainty`.

        before: the ids of the prompt, and of a thought. None also for more than MAX_ALTERNATIVES choices, and
        where the tokenizer cannot spell one of them.
        """
        if grammar.is_json:
            return self._of_json(before, answer, grammar)
        return self._of_choices(before, answer.text, grammar) if has_certainty(grammar) else None

    def _of_choices(self, before: Sequence[int], text: str, grammar: Grammar) -> Certainty | None:
        texts = list(dict.fromkeys(grammar.source))
        weighing = self._weighing(before, texts, lambda: self._stop_ids)
        if weighing is None:
            return None

        def record() -> dict[str, Any]:
            weights = weighing.result()
            shares = dict(zip(texts, weights.shares, strict=True))
            return {"confidence": shares.get(text), "allowed": weights.allowed, "choices": shares}

        return Certainty([weighing], record)

    def _weighing(
        self, before: Sequence[int], texts: Sequence[str], ends: Callable[[], Sequence[int]]
    ) -> Weighing | None:
        """Weigh texts after these ids; None if that is not possible. ends: ids that end a text."""
        spelled = [self._speller.ids(text) for text in texts]
        known = [ids for ids in spelled if ids is not None]
        if len(known) < len(spelled) or not 0 < len(known) <= MAX_ALTERNATIVES or not before:
            return None
        ended = overlapping(texts)
        return Weighing(before, known, ended, ends() if ended else ())

    # ---- JSON

    def _of_json(self, before: Sequence[int], answer: Answer, grammar: Grammar) -> Certainty:
        lengths = [0 if id in self._stop_ids else len(self._bytes_of(id)) for id in answer.ids]
        starts = [0, *itertools.accumulate(lengths[:-1])]
        data = answer.text.encode()
        try:
            found = [] if grammar.parse(answer.text) is None else fields_of(answer.text)
        except (ValueError, RecursionError):
            found = []
        if sum(lengths) != len(data):
            found = []
        schema, judged = _schema(grammar), list[_Judged]()
        weighings: list[Weighing] = []
        for field in found:
            start = len(answer.text[: field.start].encode())
            end = start + len(answer.text[field.start : field.end].encode())
            first, last = bisect_right(starts, start) - 1, bisect_right(starts, end) - 1
            one = _Judged(name_of(field.path), first, last + 1)
            values = listed_values(schema, schema_at(schema, field.path))
            if values is not None and len(weighings) < MAX_WEIGHED:
                lead = data[starts[first] : start].decode("utf-8", "replace")
                one = self._weighed(one, [*before, *answer.ids[:first]], lead, answer.text, field, values)
            if one.weighing is not None:
                weighings.append(one.weighing)
            judged.append(one)
        return Certainty(weighings, functools.partial(_json_record, answer, judged))

    def _weighed(
        self, one: _Judged, before: Sequence[int], lead: str, text: str, field: Field, values: Sequence[Any]
    ) -> _Judged:
        """A field with the weighing of the values that it may have, if they can be weighed.

        lead: what the first token of the value says before it.
        """
        is_string = text[field.start - 1 : field.start] == '"'
        if is_string and not all(isinstance(value, str) for value in values):
            return one  # null or a text: the quote, which is before the value, decides
        shown = {json.dumps(value, ensure_ascii=False): value for value in values}
        texts = [value[1:-1] if is_string else value for value in shown]
        own = text[field.start : field.end]
        if own not in texts:
            return one

        def ends() -> Sequence[int]:
            if is_string:
                return self._beginning(b'"')
            return self._beginning(_AFTER_VALUES) if field.path else self._stop_ids

        weighing = self._weighing(before, [lead + value for value in texts], ends)
        named = shown.values() if is_string else texts
        return one._replace(weighing=weighing, values=tuple(named), own=texts.index(own))

    def _beginning(self, characters: bytes) -> list[int]:
        """The ids whose text begins with one of these characters."""
        if characters not in self._found:
            firsts = {bytes([one]) for one in characters}
            ids = (id for id in range(self._vocab_size) if id not in self._stop_ids)
            self._found[characters] = [id for id in ids if self._bytes_of(id)[:1] in firsts]
        return self._found[characters]


@functools.lru_cache(maxsize=64)
def _schema(grammar: Grammar) -> Any:
    return json.loads(grammar.source[0])


def _json_record(answer: Answer, judged: Sequence[_Judged]) -> dict[str, Any]:
    fields = {one.name: one.record(answer) for one in judged}
    listed = [fields[one.name]["allowed"] for one in judged if one.weighing is not None]
    return {
        "confidence": min((field["confidence"] for field in fields.values()), default=None),
        **({"allowed": min(listed)} if listed else {}),
        "fields": fields,
    }
