"""The questions of the evaluation; `python -m ropechat.builtin.training.questions` wrote questions.jsonl.

Half are made by rule from wordings and things that are held out, half were written by hand. They are made
before training, and dialogues in which one of them occurs are left out of the corpus. The part `dev` is for
looking at while working on the corpus, `test` for the figures in the model card.
"""

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ropechat.builtin.training.material import table
from ropechat.builtin.training.patterns import Part, normal, part_of

FILE = Path(__file__).parent / "questions.jsonl"
SEED = 7
COUNTS = {"inside": 200, "outside": 50, "follow": 30}  # of each part
_REFUSAL = "do not know|don't know|cannot do that|do not speak"
Question = dict[str, Any]


@functools.cache
def questions() -> tuple[Question, ...]:
    """Lines of questions.jsonl: part, group, made (rule or hand), turns of question and keys."""
    if not FILE.exists():
        return ()
    return tuple(json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines())


@functools.cache
def banned() -> frozenset[str]:
    """Every question of the evaluation, as `normal` writes it; of follow-ups the pair (`pair_of`)."""
    asked = [[turn["question"] for turn in line["turns"]] for line in questions()]
    return frozenset(normal(texts[0]) if len(texts) == 1 else pair_of(*texts) for texts in asked)


def pair_of(first: str, second: str) -> str:
    """Two questions in a row."""
    return f"{normal(first)}\n{normal(second)}"


def _line(part: Part, group: str, made: str, *turns: tuple[str, list[str]]) -> Question:
    asked = [{"question": question, "keys": keys} for question, keys in turns]
    return {"part": part, "group": group, "made": made, "turns": asked}


def _hand_part(text: str) -> Part:
    """One in four of the questions by hand is for development."""
    digest = part_of("by hand", text), part_of("by hand again", text), part_of("by hand, third", text)
    return "dev" if "dev" in digest or "test" in digest[1:] else "test"


def _by_hand() -> Iterator[Question]:
    hand = table("byhand")
    for question, *keys in hand["inside"]:
        yield _line(_hand_part(question), "inside", "hand", (question, keys))
    for question in hand["outside"]:
        yield _line(_hand_part(question), "outside", "hand", (question, [_REFUSAL]))
    for first, second, *keys in hand["follow"]:
        yield _line(_hand_part(first), "follow", "hand", (first, []), (second, keys))


def _by_rule(part: Part) -> Iterator[Question]:
    """Questions of one part without end; in proportion to the corpus."""
    from ropechat.builtin.training.corpus import unit

    number = 0
    while True:
        turns = unit(random.Random(f"{SEED}/{part}/{number}"), part)
        number += 1
        if turns[0].kind.startswith("memory") and len(turns) != 2:
            continue
        asked = [(turn.question, list(turn.keys)) for turn in turns[:2]]
        outside = turns[0].kind == "outside"
        if len(asked) == 2:
            yield _line(part, "follow", "rule", (asked[0][0], []), asked[1])
        else:
            yield _line(part, "outside" if outside else "inside", "rule", asked[0])


def main() -> None:
    """Write the file."""
    lines = list(_by_hand())
    for part in ("dev", "test"):
        missing = {
            group: count - sum(line["part"] == part and line["group"] == group for line in lines)
            for group, count in COUNTS.items()
        }
        for line in _by_rule(part):
            if missing[line["group"]] > 0:
                missing[line["group"]] -= 1
                lines.append(line)
            if not any(missing.values()):
                break
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
