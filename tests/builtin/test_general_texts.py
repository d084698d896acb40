"""The training texts that are not about the program: sums, languages, refusals, lists."""

import itertools
import random
import re

import pytest

from training import echo, languages, outside, sums, topics, world
from training.corpus import SOURCES, dialogues
from training.material import table
from training.patterns import normal, wordings
from training.turns import Turn

pytestmark = pytest.mark.trust  # the texts do not change; whoever trains anew runs it


def drawn(name: str, count: int, seed: int = 1) -> list[list[Turn]]:
    """Turns of a source; a draw may find no wording of the part."""
    rng = random.Random(seed)
    made = [SOURCES[name][1](rng, "train") for _ in range(count)]
    return [turns for turns in made if turns]


def value(term: str) -> int:
    """The value of `12 * 10 + 12 * 3`: whole numbers, products before sums."""
    total = 0
    for sign, product in re.findall(r"(^|[-+]) ?(-?\d+(?: [*] \d+)*)", term):
        number = 1
        for factor in product.split(" * "):
            number *= int(factor)
        total += -number if sign == "-" else number
    return total


# ---- Sums


def test_the_table_of_twenty_is_right_in_each_step() -> None:
    for a, b in itertools.product(range(21), repeat=2):
        steps = sums.worked(a, "*", b, a * b).split(" = ")
        assert steps[0] == f"{a} * {b}"
        assert [value(step) for step in steps] == [a * b] * len(steps)


def test_long_sums_are_right_in_each_step() -> None:
    rng = random.Random(3)
    for _ in range(500):
        a, b = rng.randint(0, 999), rng.randint(0, 999)
        a, b = max(a, b), min(a, b)
        for sign, c in (("+", a + b), ("-", a - b)):
            steps = sums.worked(a, sign, b, c).split(" = ")
            assert {value(step) for step in steps} == {c}, steps


def test_sums_of_two_digits_are_drawn_evenly() -> None:
    pairs = {"+": set(), "-": set()}
    for turns in drawn("sum", 8000):
        for turn in turns:
            if found := re.match(r"([1-9]\d) ([-+]) ([1-9]\d) =", turn.answer):
                pairs[found[2]].add((int(found[1]) // 10, int(found[3]) // 10))
    assert pairs["+"] == {(a, b) for a in range(1, 10) for b in range(1, 10)}
    assert pairs["-"] >= {(a, b) for a in range(1, 10) for b in range(1, a + 1)}


def test_worked_sums_of_plain_texts_are_right() -> None:
    rng = random.Random(6)
    sums_shown = [row for _ in range(200) for row in sums.practice(rng, "train").rstrip(".").split(". ")]
    assert len(sums_shown) > 700
    for row in sums_shown:
        assert len({value(step) for step in row.split(" = ")}) == 1, row


@pytest.mark.slow
def test_every_product_of_the_table_is_trained_on() -> None:
    """Only wordings of products are held out."""
    seen = set()
    for turns in drawn("sum", 30_000):
        if turns[0].kind == "sum.times":
            a, b = re.findall(r"\d+", turns[0].answer)[:2]
            seen.add((int(a), int(b)))
    missing = {(a, b) for a in range(2, 21) for b in range(2, 21)} - seen
    assert not missing


def test_sums_that_are_refused_are_too_big() -> None:
    rng = random.Random(2)
    for _ in range(300):
        question = outside.big_question(rng, "train")
        if question and (numbers := re.findall(r"\d+", question)):
            assert max(map(int, numbers)) > 20
            assert max(map(int, numbers)) > 1000 or min(map(int, numbers)) > 20, question


# ---- Puzzles


def test_the_next_number_is_right() -> None:
    checked = 0
    for turns in drawn("logic", 2000):
        if turns[0].kind == "logic.next":
            row = [int(number) for number in re.findall(r"\d+", turns[0].question)]
            number = int(re.findall(r"\d+", turns[0].answer)[-1])
            assert number - row[-1] == row[-1] - row[-2] or number == 2 * row[-1] == 4 * row[-2], turns
            checked += 1
    assert checked > 400


def test_the_tallest_is_none_of_the_smaller() -> None:
    checked = 0
    for turns in drawn("logic", 2000):
        if turns[0].kind == "logic.most":
            pairs = re.findall(r"(\w+) is \w+ than (\w+)", turns[0].question)
            greater, smaller = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
            who = turns[0].answer.split()[0]
            assert {who} in (greater - smaller, smaller - greater), turns
            checked += 1
    assert checked > 250


# ---- Languages


def test_each_language_has_one_answer_of_its_own() -> None:
    entries = table("languages")
    assert len(entries) >= 25
    assert len({entry["answer"] for entry in entries.values()}) == len(entries)
    for name, entry in entries.items():
        assert re.search(entry["key"], entry["answer"]), name
        assert len(entry["answer"].encode()) < 160, name


def test_no_sentence_belongs_to_two_languages() -> None:
    owner: dict[str, str] = {}
    rng = random.Random(4)
    for _ in range(6000):
        turns = languages.foreign(rng, "train")
        if turns:
            sentence = normal(turns[0].question)
            assert owner.setdefault(sentence, turns[0].kind) == turns[0].kind, sentence


def test_text_without_latin_letters_is_told_apart() -> None:
    texts = ["你好", "你是谁", "привет", "???", "🙂", "!"]
    assert len({normal(text) for text in texts}) == len(texts)


@pytest.mark.slow
def test_foreign_sentences_reach_the_corpus_unchanged() -> None:
    chats = dialogues(7, "train")
    kinds = {f"language.{name}" for name in table("languages")}
    found = [turn for chat in (next(chats) for _ in range(1500)) for turn in chat.turns if turn.kind in kinds]
    assert len(found) > 10
    assert all(turn.copied == (turn.question,) for turn in found)


# ---- What is known, and what is not


@pytest.mark.parametrize(
    ("known", "unknown"),
    [("capital", "countries"), ("author", "w"), ("inventor", "i"), ("person", "p")],
)
def test_nothing_is_both_known_and_refused(known: str, unknown: str) -> None:
    names = {fact.slots["x"].lower() for fact in world.facts(known)}
    assert names.isdisjoint(name.lower() for name in table("outside")[unknown])


def test_every_translation_names_its_word_and_language() -> None:
    for fact in world.facts("translation"):
        assert fact.answer.lower().startswith(f"{fact.slots['w']} in {fact.slots['l']} is ".lower())


def test_every_refusal_says_so() -> None:
    for name, kind in table("outside")["kinds"].items():
        for answer in kind["answer"]:
            assert re.search(outside.REFUSAL[0], answer), name


@pytest.mark.parametrize("name", ["smalltalk", "facts"])
def test_each_topic_has_many_wordings_and_right_keys(name: str) -> None:
    for topic in topics.TOPICS[name]:
        assert sum(map(wordings, topic["ask"])) >= 10, topic["id"]
        for answer in topic["answer"]:
            for key in topic["keys"]:
                assert re.search(key, answer, re.IGNORECASE), (topic["id"], key)


# ---- Lists, words said back


def test_a_list_has_as_many_items_as_were_asked_for() -> None:
    numbers = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    checked = 0
    for turns in drawn("list", 2000):
        first = turns[0]
        asked = re.search(rf"\b(\d+|{'|'.join(numbers[1:])})\b", first.question)
        lines = first.answer.splitlines()
        assert [line.split(". ")[0] for line in lines] == [str(at + 1) for at in range(len(lines))]
        if asked and "numbers" not in first.question:
            word = asked[1]
            checked += 1
            assert len(lines) == (int(word) if word.isdigit() else numbers.index(word)), first
    assert checked > 800


def test_words_are_said_back_as_they_are() -> None:
    rng = random.Random(5)
    made = [turns[0] for turns in (echo.said_back(rng, "train") for _ in range(300)) if turns]
    assert len(made) > 200
    for turn in made:
        assert turn.answer.lower() in turn.question.lower()
