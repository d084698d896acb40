"""Questions that lean on an answer and are answered by another topic; whole dialogues of the material."""

import random
import re

from training import leaning, topics
from training.material import table
from training.turns import Turn


def read(name: str, file: str) -> list[Turn]:
    return topics.named(file, name, random.Random(1), "train")


def test_what_leads_from_topic_to_topic_exists() -> None:
    known = {entry["id"] for entries in topics.TOPICS.values() for entry in entries}
    known |= {entry["names"][0] for entry in topics.CONCEPTS}
    linked = table("dialogues")["to"]
    assert linked.keys() <= known
    for wanted, entry in linked.items():
        assert set(entry["after"]) <= known - {wanted}, wanted


def test_one_question_after_one_topic_has_one_answer() -> None:
    linked = table("dialogues")["to"]
    for name in {before for entry in linked.values() for before in entry["after"]}:
        twice = {question: found for question, found in leaning.meanings(name).items() if len(found) > 1}
        assert twice == {}, name


def test_the_answer_is_that_of_the_next_topic() -> None:
    entries = {entry["id"]: entry for entry in topics.TOPICS["keys"]}
    said = [leaning.next_topic(read("export", "keys"), random.Random(seed), "train") for seed in range(60)]
    answers = {turn.kind: turn.answer for turn in said if turn}
    assert answers["keys.export_where|then"] in entries["export_where"]["answer"]
    assert len(answers) >= 3


def test_no_answer_comes_twice_in_a_chain() -> None:
    chains = [leaning.led(random.Random(seed), "train") or [] for seed in range(400)]
    answers = [[turn.answer for turn in turns] for turns in chains if turns]
    assert len(answers) > 300
    assert all(len(set(row)) == len(row) for row in answers)
    assert any(len(row) >= 3 for row in answers)


def test_a_second_joke_is_another_one() -> None:
    joke = read("joke", "smalltalk")
    laugh = Turn("closed|lol", "haha", "I am glad that it made you smile!", ())
    for turns in (joke, [*joke, laugh]):
        said = [leaning.next_topic(turns, random.Random(seed), "train") for seed in range(60)]
        others = {turn.answer for turn in said if turn and turn.kind == "smalltalk.joke.another"}
        assert others
        assert joke[0].answer not in others


def test_whole_dialogues_copy_what_was_said() -> None:
    for seed in range(600):
        turns = leaning.chat(random.Random(seed), "train") or []
        said = " ".join(turn.question for turn in turns).lower()
        for turn in turns:
            assert not re.search(r"[{}]", turn.question + turn.answer)
            assert all(word in turn.question for word in turn.copied)
            if found := re.match(r"Your (?:name|wife) is(?: called)? ([\w-]+)\.", turn.answer):
                assert found[1].lower() in said
