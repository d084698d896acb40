"""The corpus as numbers: token ids with a weight each, in batches of dialogues of like length."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from training.corpus import Dialogue, dialogues
from training.patterns import Part
from training.tokenizer_training import END, TURN_END, TURN_START

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = npt.NDArray[np.uint16]
Weights = npt.NDArray[np.float32]

BUCKETS = (56, 112, 192, 320, 512)  # tokens to which dialogues are padded
ASKED, ANSWERED = 0.1, 1.0  # weight of a token in the loss, by who wrote it


@dataclass(frozen=True)
class Example:
    """One dialogue. weights[i] is that of predicting ids[i]."""

    ids: Ids
    weights: Weights


class Encoder:
    """Dialogues to examples."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._start, self._end, self._stop = (self._ids(token)[0] for token in (TURN_START, TURN_END, END))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def _turn(self, role: str, text: str) -> tuple[list[int], list[int]]:
        """What stands before the text's end, and the end."""
        return [self._start, *self._ids(f"{role}\n")], [*self._ids(text), self._end]

    def encode(self, chat: Dialogue) -> Example:
        """The ids of the chat template, with weights."""
        if chat.text:
            ids = [*self._ids(chat.text), self._stop]
            return Example(np.array(ids, np.uint16), np.ones(len(ids), np.float32))
        ids, weights = [], []
        parts = [("system", chat.system, 0.0)] if chat.system else []
        for turn in chat.turns:
            parts += [("user", turn.question, ASKED), ("assistant", turn.answer, ANSWERED)]
        for role, text, weight in parts:
            head, body = self._turn(role, text or "")
            line = self._ids("\n")
            ids += head + body + line
            weights += [0.0] * len(head) + [weight] * len(body) + [0.0] * len(line)
        return Example(np.array(ids, np.uint16), np.array(weights, np.float32))


def examples(
    tokenizer: "Tokenizer", seed: int, part: Part, count: int, banned: frozenset[str] = frozenset()
) -> list[Example]:
    """`count` dialogues of a part, encoded; longer ones than the last bucket are left out."""
    encoder = Encoder(tokenizer)
    made = (encoder.encode(chat) for chat in dialogues(seed, part, banned))
    return list(itertools.islice((one for one in made if len(one.ids) <= BUCKETS[-1]), count))


@dataclass(frozen=True)
class Batch:
    """Padded dialogues. ids: [rows, tokens + 1]; weights: [rows, tokens], of predicting ids[:, 1:]."""

    ids: npt.NDArray[np.int64]
    weights: Weights


def _batch(rows: list[Example], width: int) -> Batch:
    ids = np.zeros((len(rows), width + 1), np.int64)
    weights = np.zeros((len(rows), width), np.float32)
    for row, example in enumerate(rows):
        ids[row, : len(example.ids)] = example.ids
        weights[row, : len(example.ids) - 1] = example.weights[1:]
    return Batch(ids, weights)


def batches(all_examples: list[Example], tokens: int, seed: int) -> Iterator[Batch]:
    """Endless batches of about `tokens` each; the seed decides the order, which differs in every epoch."""
    for epoch in itertools.count():
        rng = random.Random(f"{seed}/{epoch}")
        order = list(range(len(all_examples)))
        rng.shuffle(order)
        waiting: dict[int, list[Example]] = {width: [] for width in BUCKETS}
        for at in order:
            example = all_examples[at]
            width = next(width for width in BUCKETS if len(example.ids) <= width + 1)
            waiting[width].append(example)
            if len(waiting[width]) * width >= tokens:
                yield _batch(waiting[width], width)
                waiting[width] = []
