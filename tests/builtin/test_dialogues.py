"""Dialogues of several turns in the training corpus: what the later answers take from the earlier turns."""

import collections
import itertools
import random
import re

import pytest

from ropechat import Engine, builtin
from training import memory, sums, topics
from training.corpus import Dialogue, dialogues
from training.dataset import BUCKETS
from training.dress import mistyped
from training.material import table
from training.patterns import normal, wordings
from training.reactions import REACTIONS, kind_of, reaction
from training.stories import a_list, story
from training.turns import FOLLOW, Turn

pytestmark = pytest.mark.trust  # the texts do not change; whoever trains anew runs it


@pytest.fixture(scope="module")
def chats() -> list[Dialogue]:
    source = dialogues(11, "train")
    return [next(source) for _ in range(6000)]


def reacted(turns: list[Turn], wanted: str) -> Turn:
    """A reaction of this id to the last of the turns."""
    for seed in range(3000):
        said = reaction(turns, random.Random(seed), "train")
        if said is not None and said.kind.endswith(f"|{wanted}"):
            return said
    raise AssertionError(f"no reaction {wanted} to {turns[-1]}")


# ---- Memory


def nothing_between(rng: random.Random, part: str) -> list[Turn]:
    return []


def test_what_was_said_is_in_the_later_answer() -> None:
    asked = 0
    for seed in range(1500):
        turns = memory.remembered(random.Random(seed), "train", nothing_between)
        said: list[str] = []
        for turn in turns:
            said += turn.copied
            if turn.copied or turn.kind.endswith("untold"):
                continue
            if turn.kind == "memory.which_pet":  # of a pet with a name: what kind of animal it is
                said += ["dog", *table("memory")["words"]["pets"]]
            asked += 1
            assert any(word in turn.answer for word in said), turns
    assert asked > 800


@pytest.mark.slow
def test_the_corrected_word_is_the_answer() -> None:
    found = 0
    for seed in range(6000):
        turns = memory.remembered(random.Random(seed), "train", nothing_between)
        for at, turn in enumerate(turns[:-1]):
            later = turns[at + 1]
            kind = turn.kind.removesuffix(".corrected")
            if kind != turn.kind and later.kind == kind:
                found += 1
                assert turn.copied[0] in later.answer
    assert found > 50


def test_what_was_not_said_is_not_known() -> None:
    for seed in range(1500):
        turns = memory.remembered(random.Random(seed), "train", nothing_between)
        for at, turn in enumerate(turns):
            told = {other.kind.removesuffix(".tell") for other in turns[:at] if other.copied}
            of_user = turn.kind.removesuffix(".untold") in (
                "memory.name",
                "memory.age",
                "memory.home",
                "memory.job",
            )
            if of_user and turn.kind.endswith("untold"):
                assert turn.kind.removesuffix(".untold") not in told, turns
                assert "not told" in turn.answer


@pytest.mark.slow
def test_words_to_copy_are_typed_without_errors(chats: list[Dialogue]) -> None:
    words = [(word, turn.question) for chat in chats for turn in chat.turns for word in turn.copied]
    assert len(words) > 500
    assert all(word in question for word, question in words)
    assert any(mistyped(word, random.Random(1)) != word for word, _ in words)


@pytest.mark.slow
def test_words_to_copy_are_of_many_kinds(chats: list[Dialogue]) -> None:
    told = collections.Counter(
        word for chat in chats for turn in chat.turns if turn.kind.endswith("tell") for word in turn.copied
    )
    assert len(told) > 500
    assert told.most_common(1)[0][1] < sum(told.values()) / 40


# ---- Sums that go on


def test_a_sum_that_goes_on_begins_with_the_last_result() -> None:
    steps = 0
    for seed in range(4000):
        turns = sums.small_sum(random.Random(seed), "train") or []
        for before, after in itertools.pairwise(turns):
            if not after.kind.startswith("sum.then_"):
                continue
            last = re.findall(r"-?\d+", before.answer)[-1]
            left, sign, right, *_ = re.findall(r"-?\d+|[-+*/]", after.answer.split("=")[0])
            result = re.findall(r"-?\d+", after.answer)[-1]
            right_result = {
                "+": int(left) + int(right),
                "-": int(left) - int(right),
                "*": int(left) * int(right),
                "/": int(left) // int(right),
            }[sign]
            assert (left, int(result)) == (last, right_result), (before, after)
            steps += 1
    assert steps > 300


@pytest.mark.parametrize(
    ("answer", "steps"),
    [
        ("23 + 48 = 63 + 8 = 71.", "23 + 40 = 63, 63 + 8 = 71"),
        ("90 - 25 = 70 - 5 = 65.", "90 - 20 = 70, 70 - 5 = 65"),
        ("12 * 13 = 12 * 10 + 12 * 3 = 120 + 36 = 156.", "12 * 10 = 120, 12 * 3 = 36, 120 + 36 = 156"),
    ],
)
def test_the_steps_of_a_sum(answer: str, steps: str) -> None:
    assert steps in reacted([Turn("sum.plus", "?", answer, ())], "how_so").answer


# ---- Reactions


def test_a_reaction_depends_on_the_answer_before() -> None:
    before = {
        "sum": Turn("sum.plus", "3 + 4", "3 + 4 = 7.", ()),
        "outside": Turn("outside", "who won", "I do not know that.", ()),
        "told": Turn("memory.name.tell", "i am Ada", "Nice to meet you, Ada!", ()),
        "world": Turn("world.capital", "capital of france", "The capital of France is Paris.", ()),
        "concept": Turn("concept.a token", "what is a token", "A token is a piece of text.", ()),
        "story": Turn("story", "a story", "There was once a small fox called Mia. All was well.", ()),
    }
    assert [kind_of(turn) for turn in before.values()] == list(before)
    answers = {kind: reacted([turn], "sure").answer for kind, turn in before.items()}
    assert len(set(answers.values())) >= 5
    assert "3 + 4 = 7" in answers["sum"]


def test_the_questions_before_are_quoted() -> None:
    turns = [
        Turn("smalltalk.hello", "hi ther", "Hello!", ()),
        Turn("world.capital", "and Paris??", "Paris is the capital of France.", ()),
        Turn("outside", "who won the cup", "I do not know that.", ()),
    ]
    assert "hi ther" in reacted(turns, "first_question").answer
    assert "and Paris??" in reacted(turns, "second_question").answer
    assert "who won the cup" in reacted(turns, "last_question").answer
    assert reacted(turns, "repeat").answer == turns[-1].answer


def test_a_list_can_be_asked_about() -> None:
    for seed in range(60):
        turns = a_list(random.Random(seed), "train") or []
        if len(turns) == 1:
            said = reacted(turns, "item")
            number, item = re.findall(r"Number (\d) is (.+)\.", said.answer)[0]
            assert f"{number}. {item}" in turns[0].answer.split("\n")


def test_the_hero_of_every_story_is_found() -> None:
    for seed in range(100):
        turns = story(random.Random(seed), "train") or []
        if len(turns) == 1:
            name = reacted(turns, "hero").answer.rsplit(" ", 1)[1].rstrip(".")
            assert turns[0].answer.count(name) >= 2


def test_every_reaction_can_occur(chats: list[Dialogue]) -> None:
    seen = {turn.kind.partition("|")[2] for chat in chats for turn in chat.turns}
    wanted = {one["id"] for one in REACTIONS}
    assert wanted - seen <= {"calm", "angry_with_me"}
    few = [one["id"] for one in REACTIONS if sum(wordings(pattern) for pattern in one["ask"]) < 20]
    assert few == []


@pytest.mark.slow
def test_one_wording_has_one_meaning_after_one_kind_of_answer() -> None:
    """The same words after the same answer must not ask for two things."""
    rng = random.Random(3)
    turns = [Turn("ropechat.stop", "how do i stop", "Press Esc: the answer stops.", ())]
    meant: dict[str, set[str]] = collections.defaultdict(set)
    for _ in range(8_000):
        said = reaction(turns, rng, "train")
        if said is not None:
            meant[normal(said.question)].add(said.answer)
    assert len(meant) > 1000
    twice = [question for question, answers in meant.items() if len(answers) > 1]
    assert len(twice) < len(meant) / 100, twice


def test_topics_with_answers_to_later_questions_exist() -> None:
    known = {entry["id"] for entries in topics.TOPICS.values() for entry in entries}
    assert FOLLOW["after"].keys() <= known
    fields = {field for texts in FOLLOW["after"].values() for field in texts}
    used = {name for one in REACTIONS for texts in one["answer"].values() for text in texts
            for name in re.findall(r"\{(\w+)\}", text)}  # fmt: skip
    assert fields <= used


# ---- Whole dialogues


def test_about_half_of_the_dialogues_have_two_to_four_turns(chats: list[Dialogue]) -> None:
    lengths = [len(chat.turns) for chat in chats if chat.turns]
    share = sum(2 <= length <= 4 for length in lengths) / len(lengths)
    assert 0.4 < share < 0.65


def test_dialogues_fit_the_context(chats: list[Dialogue]) -> None:
    """Longer ones are left out of the training: that may happen to few only."""
    tokenizer = Engine.load(builtin.NAME).tokenizer
    some = chats[:600]
    lengths = [
        sum(len(tokenizer.encode(f"{turn.question} {turn.answer}")) + 10 for turn in chat.turns)
        for chat in some
    ]
    assert sum(length > BUCKETS[-1] for length in lengths) < len(some) / 100


def test_nothing_follows_a_goodbye(chats: list[Dialogue]) -> None:
    kinds = [[turn.kind for turn in chat.turns] for chat in chats]
    assert any("closed|bye" in row for row in kinds)
    assert all("closed|bye" not in row[:-1] for row in kinds)


def test_the_words_of_memory_have_no_doubt() -> None:
    for kind in table("memory")["kind"]:
        assert ("{x}" in kind["answer"]) or ("{ax}" in kind["answer"]), kind["id"]
        assert sum(wordings(pattern) for pattern in kind["ask"]) >= 20, kind["id"]
        assert sum(wordings(pattern) for pattern in kind["tell"]) >= 5, kind["id"]
