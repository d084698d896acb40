"""Questions of new users, from somebody who never saw the material; a reader judges the answers.

    python -m training.newcomers ask MODEL > answers.jsonl
    python -m training.newcomers transcript answers.jsonl verdicts.jsonl > newcomers.md

newcomers.jsonl has a line per dialogue: id, group (program, general, dialogue), turns, and what a sensible
answer says. A line of verdicts.jsonl has the id, `sensible` (true or false per turn) and `why`, for a person.
"""

import argparse
import functools
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ropechat.conversation import Message, Role
from ropechat.engine.engine import Engine
from ropechat.sampling import Sampling
from training.patterns import normal

FILE = Path(__file__).parent / "newcomers.jsonl"
GROUPS = {"program": 50, "general": 150, "dialogue": 40}
MAX_TOKENS = 300
UNSEEN_WORDS = 3  # shorter questions ("hi", "thanks") cannot be kept out of the corpus


def read_lines(path: Path) -> tuple[dict[str, Any], ...]:
    """The objects of a JSONL file."""
    return tuple(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


@functools.cache
def newcomers() -> tuple[dict[str, Any], ...]:
    """Lines of newcomers.jsonl."""
    return read_lines(FILE)


def banned_texts() -> Iterator[str]:
    """What the corpus must not hold: questions of three words or more, and pairs of turns."""
    for line in newcomers():
        asked = [normal(turn) for turn in line["turns"]]
        yield from (text for text in asked if len(text.split()) >= UNSEEN_WORDS)
        yield from (f"{first}\n{second}" for first, second in itertools.pairwise(asked))


def answers(engine: Engine, turns: list[str], sampling: Sampling) -> list[str]:
    """The answers to the turns of one chat."""
    chat: list[Message] = []
    for turn in turns:
        chat.append(Message(Role.USER, turn))
        chat.append(Message(Role.ASSISTANT, "".join(step.text for step in engine.reply(chat, sampling))))
    return [message.content for message in chat if message.role is Role.ASSISTANT]


def transcript(answered: tuple[dict[str, Any], ...], verdicts: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Counts per group, then every question with its answer and verdict."""
    yield "# Questions of new users\n"
    yield "| group | sensible |\n| --- | --- |"
    for group in GROUPS:
        of = [all(verdicts[line["id"]]["sensible"]) for line in answered if line["group"] == group]
        yield f"| {group} | {sum(of)} of {len(of)} ({100 * sum(of) / max(len(of), 1):.1f} %) |"
    for line in answered:
        verdict = verdicts[line["id"]]
        yield f"\n## {line['id']}\n"
        for turn, answer, sensible in zip(line["turns"], line["answers"], verdict["sensible"], strict=True):
            yield f"> {turn}\n\n{answer}\n\n{'sensible' if sensible else '**not sensible**'}\n"
        if why := verdict.get("why"):
            yield why


def main() -> None:
    """Read the options; ask, or print the transcript."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    ask = commands.add_parser("ask")
    ask.add_argument("model")
    ask.add_argument("--temperature", type=float, default=0.0)
    show = commands.add_parser("transcript")
    show.add_argument("answers", type=Path)
    show.add_argument("verdicts", type=Path)
    given = parser.parse_args()
    if given.command == "transcript":
        verdicts = {line["id"]: line for line in read_lines(given.verdicts)}
        print("\n".join(transcript(read_lines(given.answers), verdicts)))
        return
    engine = Engine.load(given.model)
    sampling = Sampling(temperature=given.temperature, max_tokens=MAX_TOKENS, seed=1)
    for line in newcomers():
        answered = answers(engine, line["turns"], sampling)
        print(json.dumps({**line, "answers": answered}, ensure_ascii=False))


if __name__ == "__main__":
    main()
