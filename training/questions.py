"""The questions made by rule; `python -m training.questions` wrote questions.jsonl.

They are made before training from wordings and things that are held out. Dialogues in which one of them
occurs are left out of the corpus. The part `dev` is for looking at while working on the corpus, `test` for
the figures in the model card. The questions of new users, which a reader judges, are in newcomers.jsonl.
"""

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.newcomers import banned_texts
from training.patterns import Part, normal

FILE = Path(__file__).parent / "questions.jsonl"
SEED = 7
COUNTS = {"inside": 200, "outside": 50, "follow": 30}  # of each part
Question = dict[str, Any]


@functools.cache
def questions() -> tuple[Question, ...]:
    """Lines of questions.jsonl: part, group, turns of question and keys."""
    if not FILE.exists():
        return ()
    return tuple(json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines())


@functools.cache
def banned() -> frozenset[str]:
    """Every question of both evaluations, as `normal` writes it; of follow-ups the pair (`pair_of`)."""
    asked = [[turn["question"] for turn in line["turns"]] for line in questions()]
    by_rule = (normal(texts[0]) if len(texts) == 1 else pair_of(*texts) for texts in asked)
    return frozenset([*by_rule, *banned_texts()])


def pair_of(first: str, second: str) -> str:
    """Two questions in a row."""
    return f"{normal(first)}\n{normal(second)}"


def _line(part: Part, group: str, *turns: tuple[str, list[str]]) -> Question:
    asked = [{"question": question, "keys": keys} for question, keys in turns]
    return {"part": part, "group": group, "turns": asked}


def _by_rule(part: Part) -> Iterator[Question]:
    """Questions of one part without end; in proportion to the corpus."""
    from training.corpus import unit

    number = 0
    while True:
        turns = unit(random.Random(f"{SEED}/{part}/{number}"), part)
        number += 1
        if turns[0].kind.startswith("memory") and len(turns) != 2:
            continue
        asked = [(turn.question, list(turn.keys)) for turn in turns[:2]]
        outside = turns[0].kind == "outside"
        if len(asked) == 2:
            yield _line(part, "follow", (asked[0][0], []), asked[1])
        else:
            yield _line(part, "outside" if outside else "inside", asked[0])


def main() -> None:
    """Write the file."""
    lines: list[Question] = []
    for part in ("dev", "test"):
        missing = dict(COUNTS)
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
