"""The evaluation: `python -m training.evaluate DIRECTORY --part test --transcript FILE`.

Asks the questions of questions.jsonl at temperature 0 with ropechat's own engine. An answer is acceptable
when it holds the key facts, ends by itself, does not loop, and is made of words that the corpus knows.
"""

import argparse
import functools
import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ropechat.conversation import Message, Role
from ropechat.engine.engine import Engine
from ropechat.sampling import Sampling
from training.corpus import dialogues
from training.questions import COUNTS, Question, questions

MAX_TOKENS = 300
SAMPLING = Sampling(temperature=0, max_tokens=MAX_TOKENS)
KNOWN_SHARE = 0.9  # of the words of an answer must occur in answers of the corpus, or in the question
KNOWN_FROM = 25_000  # dialogues of the corpus whose words are known


@dataclass(frozen=True)
class Verdict:
    """A question with its answers, and what is wrong with the last one; nothing when it is acceptable."""

    question: Question
    answers: list[str]
    faults: list[str]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


@functools.cache
def known_words() -> frozenset[str]:
    """Words of answers in the corpus."""
    seen: set[str] = set()
    for chat in itertools.islice(dialogues(99, "train"), KNOWN_FROM):
        for turn in chat.turns:
            seen.update(_words(turn.answer))
    return frozenset(seen)


def loops(text: str) -> bool:
    """Whether eight words in a row, or a line of ten characters, come three times."""
    words = text.split()
    runs = Counter(tuple(words[at : at + 8]) for at in range(len(words) - 7))
    lines = Counter(line for line in text.splitlines() if len(line) >= 10)
    return max([*runs.values(), *lines.values()], default=0) >= 3


def faults_of(asked: str, answer: str, keys: Iterable[str], ended: bool) -> list[str]:
    """What is wrong with an answer."""
    faults = [f"lacks {key}" for key in keys if not re.search(key, answer, re.IGNORECASE)]
    if not ended:
        faults.append(f"did not end within {MAX_TOKENS} tokens")
    if loops(answer):
        faults.append("loops")
    words = _words(answer)
    known = known_words() | set(_words(asked))
    if not answer.strip():
        faults.append("is empty")
    elif words and sum(word in known for word in words) < KNOWN_SHARE * len(words):
        faults.append("has words that are no words")
    return faults


def ask(engine: Engine, question: Question) -> Verdict:
    """Ask all turns; the last answer is judged."""
    chat: list[Message] = []
    answers: list[str] = []
    ended = False
    for turn in question["turns"]:
        chat.append(Message(Role.USER, turn["question"]))
        steps = list(engine.reply(chat, SAMPLING))
        ended = bool(steps) and steps[-1].finish_reason == "stop"
        answers.append("".join(step.text for step in steps))
        chat.append(Message(Role.ASSISTANT, answers[-1]))
    asked = " ".join(message.content for message in chat[:-1])
    last = question["turns"][-1]
    return Verdict(question, answers, faults_of(asked, answers[-1], last["keys"], ended))


def held_out_bits(engine: Engine, count: int = 150) -> tuple[float, float]:
    """(perplexity per token, bits per byte) of held-out answers, each after its question, and plain texts."""
    nats, tokens, size = 0.0, 0, 0
    for chat in itertools.islice(dialogues(random.Random(3).randrange(1 << 30), "dev"), count):
        if chat.text:
            ids, start = engine.tokenizer.encode(chat.text), 1
            size += len(chat.text.encode())
        else:
            turn = chat.turns[0]
            head = engine.prompt_ids([Message(Role.USER, turn.question)])
            ids, start = head + engine.tokenizer.encode(turn.answer), len(head)
            size += len(turn.answer.encode())
        scores = engine.score(ids, top_k=0).tokens[start:]
        nats -= sum(score.logprob or 0.0 for score in scores)
        tokens += len(scores)
    return math.exp(nats / tokens), nats / math.log(2) / size


def table(verdicts: list[Verdict]) -> Iterator[str]:
    """Lines of a Markdown table: acceptable answers by group."""
    yield "| questions | acceptable |"
    yield "| --- | --- |"
    for group in COUNTS:
        of = [one for one in verdicts if one.question["group"] == group]
        good = sum(not one.faults for one in of)
        yield f"| {group} | {good} of {len(of)} ({100 * good / max(len(of), 1):.1f} %) |"


def transcript(verdicts: list[Verdict]) -> Iterator[str]:
    """Every question with its answers, and what is wrong."""
    for one in verdicts:
        wrong = f"  NOT ACCEPTABLE: {'; '.join(one.faults)}" if one.faults else ""
        yield f"## {one.question['group']}{wrong}\n"
        for turn, answer in zip(one.question["turns"], one.answers, strict=True):
            yield f"> {turn['question']}\n"
            yield f"{answer}\n"


def main() -> None:
    """Read the options, ask, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--part", choices=["dev", "test"], default="dev")
    parser.add_argument("--transcript", type=Path, help="file for all questions and answers")
    parser.add_argument("--json", action="store_true", help="counts as JSON instead of a table")
    given = parser.parse_args()
    engine = Engine.load(given.model)
    verdicts = [ask(engine, question) for question in questions() if question["part"] == given.part]
    if given.transcript:
        given.transcript.write_text("\n".join(transcript(verdicts)), encoding="utf-8")
    if given.json:
        counts = Counter((one.question["group"], not one.faults) for one in verdicts)
        print(json.dumps({group: counts[group, True] for group in COUNTS}))
        return
    print("\n".join(table(verdicts)))
    ppl, bits = held_out_bits(engine)
    print(f"\nheld-out text: perplexity {ppl:.3f} per token, {bits:.3f} bits per byte")


if __name__ == "__main__":
    main()
