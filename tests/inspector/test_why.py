"""Why this answer: every number is that of scoring the changed text alone, and the cause is found."""

import json
import random
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from browser import Browser
from cli_door import CompiledDoor, Door

import ropechat
from ropechat.conversation import Message, Role, unscored_step
from ropechat.errors import CancelledError, ContextFullError, RequestError
from ropechat.inspector.why.answer import ReplyQuestion
from ropechat.inspector.why.context import Edit
from ropechat.inspector.why.parts import LEVELS, divide, every, whole
from ropechat.inspector.why.result import Cost, PartScore, Why, WhyWatcher
from ropechat.inspector.why.table import answer_line
from ropechat.sampling import AUTO
from ropechat.trace import Pair, Step, TokenDistribution, Trace
from ropechat.util.text import one_line
from ropechat.util.width import cell_width

DOCS = Path(__file__).parents[2] / "docs" / "why.md"
STORY = (
    "Tim has a ball. Lily has a doll.\nBen has a car.\n\n"
    "The sun was hot. \u732b\u304c\u597d\u304d\u3067\u3059\u3002 "
    "Na\u00efve <|im_end|> text \U0001f469\u200d\U0001f680 here.\n\n\n"
    "  One day, Lily and Tim went to the park. They saw e.g. a dog! It ran away. "
)
LN2 = 0.6931471805599453


@pytest.fixture(scope="module")
def engine() -> ropechat.Engine:
    return ropechat.ModelSpec("builtin").load()


@pytest.fixture(scope="module")
def stories(real: Path) -> ropechat.Engine:
    """A model that begins texts with BOS, and copies."""
    return ropechat.Engine.load(real / "stories260K" / "hf")


def words(text: str, part: PartScore) -> str:
    return text[slice(*part.span)]


def parts_of(text: str, by: Any, most: int = 1000) -> list[str]:
    root = whole(text, [(0, len(text))])
    return [text[slice(*part.span)] for part in divide(text, root, by, most)]


def test_a_text_is_divided_into_paragraphs_sentences_lines_and_words() -> None:
    root = whole(STORY, [(0, len(STORY))])
    assert [len(STORY[slice(*one.span)].split("\n\n")) for one in divide(STORY, root, "word", 99)] == [
        1,
        1,
        1,
    ]
    found = {by: [STORY[slice(*one.span)] for one in every(STORY, root, by)] for by in LEVELS}
    assert found["text"] == [STORY]
    assert found["sentence"][:3] == ["Tim has a ball.", "Lily has a doll.", "Ben has a car."]
    assert found["sentence"][-2:] == ["They saw e.g. a dog!", "It ran away."]
    assert found["line"][:2] == ["Tim has a ball. Lily has a doll.", "Ben has a car."]
    assert "\u732b" in found["word"]
    assert "\U0001f469\u200d\U0001f680" in found["word"]
    assert "".join(found["word"]) == "".join(STORY.split())


def test_a_line_break_before_a_small_letter_is_within_a_sentence() -> None:
    assert parts_of("A long line that\ngoes on here.\nNext one.", "sentence") == [
        "A long line that\ngoes on here.",
        "Next one.",
    ]


@pytest.mark.parametrize("by", LEVELS[1:])
@pytest.mark.parametrize("most", [2, 3, 8])
def test_at_each_level_the_parts_are_all_words_and_no_more_than_wanted(by: Any, most: int) -> None:
    waiting = [whole(STORY, [(0, len(STORY))])]
    while waiting:
        part = waiting.pop()
        parts = divide(STORY, part, by, most)
        waiting += parts
        assert len(parts) != 1
        assert len(parts) <= most
        if parts:
            inside = "".join(STORY[slice(*one.span)] for one in parts)
            assert "".join(inside.split()) == "".join(STORY[slice(*part.span)].split())


def test_what_stays_is_spaced_as_before() -> None:
    text = "One. Two. Three.\n\nFour. Five."
    root = whole(text, [(0, len(text))])
    left = [text[: part.cut[0]] + text[part.cut[1] :] for part in every(text, root, "sentence")]
    assert left == [
        "Two. Three.\n\nFour. Five.",
        "One. Three.\n\nFour. Five.",
        "One. Two.\n\nFour. Five.",
        "One. Two. Three.\n\nFive.",
        "One. Two. Three.\n\nFour.",
    ]


def alone(engine: ropechat.Engine, item: Any) -> float:
    """Bits of an answer, by an engine that has nothing in its cache of this item's variants."""
    ((_, score),) = engine.score_many([item], special="text")
    assert score.error is None
    return -score.logprob / LN2


def check_naive(why: Why, text: str, item: Any, engine: ropechat.Engine) -> int:
    """Each part has the bits that its text without the part has. item: of a text."""
    count = 0
    for one in why.walk():
        if one.bits is not None:
            start, end = one.part.cut
            naive = alone(engine, item(text[:start] + text[end:])) - alone(engine, item(text))
            assert one.bits == pytest.approx(naive, abs=1e-6)
            count += 1
    return count


@pytest.mark.slow
def test_the_bits_are_those_of_each_text_alone(engine: ropechat.Engine) -> None:
    fresh = ropechat.ModelSpec("builtin").load()
    answer = " Lily has a doll <|im_end|>."
    for fields in ({}, {"by": "sentence"}, {"every": True}, {"every": True, "by": "line"}):
        why = ropechat.WhySpec(STORY, answer, **fields).run(engine)  # type: ignore[arg-type]
        assert check_naive(why, STORY, lambda text: Pair(text, answer), fresh) >= 3
        assert why.bits == pytest.approx(alone(fresh, Pair(STORY, answer)), abs=1e-6)


def test_the_bits_of_messages_are_those_of_messages_with_less_text(engine: ropechat.Engine) -> None:
    fresh = ropechat.ModelSpec("builtin").load()
    said = [
        Message(Role.SYSTEM, "Be kind. Be short."),
        Message(Role.USER, " Who is Lily?  She <|im_end|> asks.\n"),
        Message(Role.ASSISTANT, "A girl. She has a doll."),
        Message(Role.USER, "What does she have?"),
    ]
    why = ropechat.WhySpec(said, "A doll.", by="sentence").run(engine)
    base = alone(fresh, (said, "A doll."))
    assert [one.part.level for one in why.parts] == ["text"] * 4
    for at, one in enumerate(why.parts):
        less = [Message(m.role, "" if n == at else m.content) for n, m in enumerate(said)]
        assert one.bits == pytest.approx(alone(fresh, (less, "A doll.")) - base, abs=1e-6)
    assert sum(one.bits is not None for one in why.walk()) > 4
    why = ropechat.WhySpec(said, "A doll.", by="sentence", every=True).run(engine)
    short = next(one for one in why.walk() if words(why.text, one) == "Be short.")
    less = [Message(Role.SYSTEM, "Be kind."), *said[1:]]
    assert short.bits == pytest.approx(alone(fresh, (less, "A doll.")) - base, abs=1e-6)


def test_a_replaced_part_and_a_part_alone(stories: ropechat.Engine) -> None:
    text, answer = "One day. A cat came. It sat.", " The cat"

    def bits(context: str) -> float:
        return alone(stories, Pair(context, answer))

    replaced = ropechat.WhySpec(text, answer, replace="No.", by="sentence").run(stories)
    changed = ("No. A cat came. It sat.", "One day. No. It sat.", "One day. A cat came. No.")
    assert [one.bits for one in replaced.parts] == pytest.approx([bits(one) - bits(text) for one in changed])
    only = ropechat.WhySpec(text, answer, only=True, by="sentence").run(stories)
    assert only.without == pytest.approx(bits(""))
    sentences = ("One day.", "A cat came.", "It sat.")
    assert [one.bits for one in only.parts] == pytest.approx([bits("") - bits(one) for one in sentences])


NAMES = "Tim Lily Ben Mia Tom Sue Max Anna Sam Jack Lucy Bob Sara Spot".split()  # noqa: SIM905
THINGS = "ball doll car cake book hat cat dog tree boat bird flower box toy cup".split()  # noqa: SIM905


def copying(rng: random.Random) -> tuple[list[str], str, list[str], int]:
    """(sentences, the beginning of one of them, their ends, which one)."""
    names, things = rng.sample(NAMES, 6), rng.sample(THINGS, 6)
    said = [f"{name} has a {thing}." for name, thing in zip(names, things, strict=True)]
    at = rng.randrange(6)
    return said, f"{names[at]} has a", [f" {thing}" for thing in things], at


@pytest.mark.slow
@pytest.mark.parametrize("by", ["sentence", "word"])
def test_the_cause_of_a_copy_is_the_place_that_is_copied(stories: ropechat.Engine, by: Any) -> None:
    rng, found, copies = random.Random(39), 0, 0
    while copies < 100:
        said, question, ends, at = copying(rng)
        context = " ".join(said)
        scores = stories.rank(f"{context}\n\n{question}", ends)
        if max(scores, key=lambda score: score.logprob) is not scores[at]:
            continue  # the model does not copy here
        copies += 1
        why = ropechat.WhySpec(context, ends[at], question=question, by=by).run(stories)
        start, (first, last) = context.index(said[at]), why.strongest[0].span
        found += start <= first and last <= start + len(said[at])
    assert found >= 95


def long_text(sentences: int) -> str:
    rng = random.Random(4)
    said = [copying(rng)[0][0] for _ in range(sentences)]
    return "\n\n".join(" ".join(said[at : at + 5]) for at in range(0, sentences, 5))


@pytest.mark.slow
def test_a_long_context_takes_no_more_work_than_the_budget(engine: ropechat.Engine) -> None:
    told = list[tuple[int, int]]()
    costs = list[Cost]()

    class Told(WhyWatcher):
        def planned(self, cost: Cost) -> None:
            costs.append(cost)

        def progress(self, done: int, work: int) -> None:
            told.append((done, work))

    text = long_text(70)
    why = ropechat.WhySpec(text, " Lily has a", budget=4).run(engine, Told())
    assert len(why.parts) <= 16
    assert why.scorings > 10
    assert why.computed <= 1.1 * costs[0].work
    assert told == sorted(told)
    assert len(told) == len(list(why.walk()))
    skipped = sum(one.tokens for one in why.skipped)
    assert 0 < skipped < why.total
    between = why.total - sum(one.tokens for one in why.finest)
    assert 0 <= between < 40  # tokens of empty lines, and of the answer


def test_stopped_it_keeps_what_is_scored(engine: ropechat.Engine) -> None:
    class Stopping(WhyWatcher):
        count = 0

        @property
        def is_stopped(self) -> bool:
            return self.count >= 2

        def progress(self, done: int, work: int) -> None:
            self.count += 1

    spec = ropechat.WhySpec(STORY, " Lily", by="sentence", every=True)
    why = spec.run(engine, Stopping())
    assert not why.complete
    assert sum(one.bits is not None for one in why.parts) == 2
    for form in ("table", "csv", "json", "jsonl", "html"):
        shown = "".join(ropechat.WhySpec(STORY, form=form).pieces(why))
        assert form in ("csv", "html") or "stopped" in shown or '"complete": false' in shown

    class Cancelling(WhyWatcher):
        def progress(self, done: int, work: int) -> None:
            engine.cancel()

    why = ropechat.WhySpec(long_text(40), " Lily", every=True).run(engine, Cancelling())
    assert not why.complete
    assert any(one.bits is not None for one in why.parts)


def test_a_context_is_scored_once(engine: ropechat.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()
    score_many = engine.score_many

    def spy(items: Sequence[Any], **options: Any) -> Any:
        seen.extend(map(repr, items))
        return score_many(items, **options)

    monkeypatch.setattr(engine, "score_many", spy)
    why = ropechat.WhySpec("no no no no no", " no", every=True).run(engine)
    assert len(seen) == len(set(seen))
    assert len({round(one.bits or 0.0, 9) for one in why.parts}) == 1


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        (ropechat.WhySpec("", " a"), RequestError, "context"),
        (ropechat.WhySpec(" \n ", " a"), RequestError, "context"),
        (ropechat.WhySpec([Message(Role.USER, "")], "a"), RequestError, "context"),
        (ropechat.WhySpec("A cat sat.", " It", of="dog"), RequestError, "of"),
        (ropechat.WhySpec("A cat sat.", " It", of=""), RequestError, "of"),
        (ropechat.WhySpec("A cat sat.", " It", of=(2, 9)), RequestError, "of"),
        (ropechat.WhySpec("A cat sat.", of="dog"), RequestError, "of"),
        (ropechat.WhySpec("A cat sat.", ""), RequestError, "at least one token"),
        (ropechat.WhySpec("A cat sat. It ran.", " It", by="page"), RequestError, "by"),  # type: ignore[arg-type]
        (ropechat.WhySpec("A cat sat.", " It", only=True, replace="x"), RequestError, "only"),
        (ropechat.WhySpec("A cat sat.", " It", budget=float("nan")), RequestError, "budget"),
        (ropechat.WhySpec("A cat sat.", " It", budget=float("inf")), RequestError, "budget"),
        (ropechat.WhySpec("word " * 20_000, " a"), ContextFullError, "at most"),
        (ropechat.WhySpec("a b c", " word" * 20_000), ContextFullError, "at most"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    engine: ropechat.Engine, spec: ropechat.WhySpec, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        spec.run(engine)


def test_the_only_part_can_be_left_out_if_a_token_stays(
    engine: ropechat.Engine, stories: ropechat.Engine
) -> None:
    with pytest.raises(RequestError, match="--bos yes"):
        ropechat.WhySpec("Hello", " world").run(engine)
    with pytest.raises(RequestError, match="only"):
        ropechat.WhySpec("Hello you", " world", only=True).run(engine)
    why = ropechat.WhySpec("Hello", " world").run(stories)
    assert [one.bits for one in why.parts] == [pytest.approx((why.without or 0.0) - why.bits)]


def test_the_asked_part_of_an_answer(engine: ropechat.Engine) -> None:
    text, answer = "The capital of Italy is a city. It is", " Rome, not Madrid."
    trace = engine.score(Pair(text, answer), special="text")
    rome = next(token for token in trace.tokens if token.text == " Rome")
    assert rome.logprob is not None
    why = ropechat.WhySpec(text, answer, of="Rome", by="sentence").run(engine)
    assert why.bits == pytest.approx(-rome.logprob / LN2, abs=1e-6)
    assert why.answer == " Rome"  # what follows is not computed
    assert ropechat.WhySpec(text, answer, of=(1, 5), by="sentence").run(engine).bits == why.bits
    inside = ropechat.WhySpec(text + answer, of="Rome", by="sentence").run(engine)
    assert inside.bits == pytest.approx(why.bits, abs=1e-6)
    assert inside.text == text + " "


def test_an_answer_that_the_model_writes(engine: ropechat.Engine) -> None:
    why = ropechat.WhySpec("The capital of Italy is", max_tokens=1).run(engine)
    assert why.answer == " Rome"
    said = ropechat.WhySpec([Message(Role.USER, "Hello!")], max_tokens=3, by="text").run(engine)
    assert said.answer.strip()


def test_the_answer_may_be_the_last_message(engine: ropechat.Engine) -> None:
    said = [Message(Role.USER, "Hello there!"), Message(Role.ASSISTANT, "Hi.")]
    assert ropechat.WhySpec(said, by="text").run(engine).answer == "Hi."


def test_cancelled_at_the_start(engine: ropechat.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(*args: Any, **options: Any) -> Any:
        raise CancelledError("cancelled")

    monkeypatch.setattr(engine, "score_many", cancelled)
    with pytest.raises(CancelledError):
        ropechat.WhySpec("A cat. A dog.", " A").run(engine)


# --- the command and its outputs ---


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Door:
    return CompiledDoor(monkeypatch, capfd)


TEXT = "The capital of Italy is Rome. The capital of France is"


def test_the_command_shows_the_tinted_context_and_the_parts(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = door("why", "-m", "builtin", TEXT, "--answer", " Paris")
    assert code == 0
    assert "2 parts at first" in err
    assert re.search(r"\[\d:France\]", out)
    assert "bits that the answer costs more with the part left out" in out
    assert re.search(r"\+\d+\.\d\d +[█▉▊▋▌▍▎▏]+ +word +1  France", out)
    assert max(map(len, out.splitlines())) <= 80


def test_on_a_terminal_the_context_is_tinted_and_whole(engine: ropechat.Engine) -> None:
    text = f"{STORY}\n\n{'The sun was hot and the sea was blue. ' * 8}"
    why = ropechat.WhySpec(text, " Lily has a doll.", by="sentence").run(engine)
    why.parts[-1].parts = []
    for one in why.walk():
        one.bits = 5.0 if words(text, one) == "Lily has a doll." else 0.1
    for width in (30, 80):
        lines = "".join(ropechat.WhySpec("", width=width, color=True).pieces(why)).splitlines()
        plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
        shown = plain[: plain.index(next(line for line in plain if line.startswith("' ")))]
        assert max(map(cell_width, shown)) <= width
        assert any("\x1b[30;48;5;208mLily has a doll.\x1b[0m" in line for line in lines) is (width > 30)
        said = "".join("".join(shown).split())
        assert said.startswith("".join(one_line(STORY).replace("\u240a", "").split()))
        assert re.search(r"…\(\d+tokens\)$", said)  # a long part that gives little


def test_every_form_has_every_part(door: Door, engine: ropechat.Engine, tmp_path: Path) -> None:
    spec = ropechat.WhySpec(TEXT, " Paris")
    count = sum(1 for _ in spec.run(engine).walk())
    for suffix in ("csv", "json", "jsonl", "html", "txt"):
        ours, theirs = tmp_path / f"python.{suffix}", tmp_path / f"command.{suffix}"
        spec.write(ours, engine)
        assert door("why", "-m", "builtin", TEXT, "--answer", " Paris", "-o", theirs)[0] == 0
        assert door("why", "-m", "builtin", TEXT, "--answer", " Paris", "-o", theirs)[0] == 2
        if suffix != "json" and suffix != "jsonl":
            assert ours.read_bytes() == theirs.read_bytes()
    whole_ = json.loads((tmp_path / "python.json").read_text())
    assert len(whole_["parts"]) == count
    data = whole_["text"].encode()
    for part in whole_["parts"]:
        assert data[slice(*part["span"])].decode() == part["text"]
        assert part["parent"] is None or part["parent"] < part["part"]
    lines = (tmp_path / "python.jsonl").read_text().splitlines()
    assert len(lines) == count + 2
    assert json.loads(lines[-1])["summary"] is True
    assert len((tmp_path / "python.csv").read_text().splitlines()) == count + 1


def test_files_and_a_question(door: Door, tmp_path: Path) -> None:
    notes, other = tmp_path / "notes.txt", tmp_path / "other.txt"
    notes.write_text("Bob lives in Rome. Ann lives in Oslo.\n")
    other.write_text("A cat sat.\n")
    given = ("-f", notes, "-f", other, "--chat", "--question", "Where does Bob live?", "--answer", "Rome")
    code, out, _ = door("why", "-m", "builtin", *given, "--format", "json", "--by", "sentence")
    found = json.loads(out)
    assert code == 0
    assert [one["name"] for one in found["texts"]] == [str(notes), str(other)]
    assert [one["level"] for one in found["parts"] if one["depth"] == 0] == ["file", "file"]
    assert found["question"] == "Where does Bob live?"
    assert found["bits_without"] is not None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--only", "--replace", "x", "a b"), "--replace"),
        (("-f", "x.txt", "a b"), "give one of them"),
        (("--template", "x", "a b"), "--chat"),
        (("a b", "-o", "x.svg"), "-o: must end in"),
        (("a b", "--answer", " c", "--max-tokens", "3"), "--answer"),
    ],
)
def test_options_that_exclude_each_other(door: Door, given: tuple[str, ...], words: str) -> None:
    code, _, err = door("why", "-m", "builtin", *given)
    assert code == 2
    assert words in err


@pytest.mark.slow
def test_ctrl_c_writes_what_is_scored(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(long_text(60))
    launch = "from ropechat.cli import entry; entry()"
    asked = [
        "why",
        "-m",
        "builtin",
        "-f",
        str(book),
        "--every",
        "--answer",
        " Lily has a",
        "--format",
        "json",
    ]
    child = subprocess.Popen(
        [sys.executable, "-c", launch, *asked, "--progress", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("{") and json.loads(line)["stage"] == "scoring" and json.loads(line)["done"]:
            break
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    found = json.loads(out)
    assert found["complete"] is False
    scored = sum(part["bits"] is not None for part in found["parts"])
    assert 0 < scored < len(found["parts"])


def test_the_example_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, "docs/why.md", "exec"), {})
    assert "bits, by 7 parts" in capsys.readouterr().out


def test_the_line_of_json_of_the_docs(door: Door) -> None:
    page = DOCS.read_text(encoding="utf-8")
    (shown,) = re.findall(r"```json\n(.*?)\n```", page, re.DOTALL)
    _, out, _ = door("why", "-m", "builtin", TEXT, "--answer", " Paris", "--format", "jsonl")
    line = json.loads(out.splitlines()[6])
    assert line == {**json.loads(shown), "bits": line["bits"]}
    assert line["bits"] == pytest.approx(json.loads(shown)["bits"], abs=0.1)


@pytest.mark.slow
def test_the_page_in_a_browser(engine: ropechat.Engine, tmp_path: Path) -> None:
    why = ropechat.WhySpec("<b>The</b> capital of Italy. The capital of France is", " Paris").run(engine)
    path = tmp_path / "why.html"
    path.write_text("".join(ropechat.WhySpec("", form="html").pieces(why)), "utf-8")
    browser = Browser(tmp_path / "browser")
    try:
        page = browser.open(path)
        assert page.value("document.querySelector('.context').innerText") == why.text
        tinted = "[...document.querySelectorAll('.context .t9')].map((span) => span.textContent).join()"
        assert page.value(tinted) == "is"
        assert page.value("document.querySelectorAll('.tokens > span').length") == 2
        assert page.faults() == []
        assert page.requests() == []
    finally:
        browser.close()


def test_hostile_text_is_shown_as_text(engine: ropechat.Engine) -> None:
    text = "<script>alert(1)</script> \x1b[31m red. <b>An end.</b>"
    why = ropechat.WhySpec(text, " The", by="sentence").run(engine)
    html = "".join(ropechat.WhySpec("", form="html").pieces(why))
    assert "<script>alert" not in html
    assert "<b>An" not in html
    table = "".join(ropechat.WhySpec("", width=40).pieces(why))
    assert "\x1b" not in table


def steps_of(engine: ropechat.Engine, text: str, **channels: Any) -> list[Step]:
    """A reply with the tokens of a text. channels: of tokens, by their places."""
    ids = engine.reply_ids([Message(Role.USER, "Hi")], text)
    return [
        unscored_step(id, at)._replace(
            bytes=engine.token_bytes(id), channel=channels.get(f"at{at}", "answer")
        )
        for at, id in enumerate(ids)
    ]


def test_tokens_of_a_reply_are_scored_after_the_ids_that_the_model_read(engine: ropechat.Engine) -> None:
    asked = [Message(Role.USER, "Name a fox. Be brief.")]
    steps = steps_of(engine, "A fox: \U0001f98a\U0001f98a runs and runs.")
    ids, prompt = [step.id for step in steps], engine.prompt_ids(asked)
    for at in range(len(steps)):
        question = ReplyQuestion(engine, asked, AUTO, steps, (at, at + 1), ["you"])
        assert question.item() == Pair([*prompt, *ids[:at]], ids[at : at + 1])
        said = question.context.messages[-1].content
        assert b"".join(step.bytes for step in steps[:at]).startswith(said.encode())  # whole characters
        assert [name for name, _ in question.context.texts] == ["you", "answer so far"]
    question = ReplyQuestion(engine, asked, AUTO, steps, (len(ids) - 1, len(ids)), ["you"])
    start = question.context.reply[0]
    without = question.item(Edit(((start, start + 2),)))  # "A "
    changed = engine.reply_ids(asked, question.context.messages[-1].content[2:])
    assert without == Pair([*prompt, *changed], ids[-1:])
    shorter = question.item(Edit(((0, 12),)))
    assert shorter == Pair([*engine.prompt_ids([Message(Role.USER, "Be brief.")]), *ids[:-1]], ids[-1:])


def test_the_thought_before_an_answer_stays(engine: ropechat.Engine) -> None:
    asked = [Message(Role.USER, "Hi")]
    steps = steps_of(
        engine, "x one two y so three four", at0="marker", at1="thought", at2="thought", at3="marker"
    )
    first = ReplyQuestion(engine, asked, AUTO, steps, (2, 3), ["you"])
    assert first.context.messages[-1].content == steps[1].bytes.decode()
    last = ReplyQuestion(engine, asked, AUTO, steps, (5, 7), ["you"])
    assert last.context.messages[-1].content == steps[4].bytes.decode()
    without = last.item(Edit((last.context.reply,)))
    assert without.context == [*engine.prompt_ids(asked), *(step.id for step in steps[:4])]
    assert last.inside(Trace((), TokenDistribution(0, (), 0.0, 0.0, 0.0))) == (0, 2)


@pytest.mark.parametrize(("bits", "share"), [(0.001, "99.9%"), (0.0, "100.0%"), (8.0, "0.39%")])
def test_the_share_of_an_answer_is_a_plain_percentage(bits: float, share: str) -> None:
    why: Any = SimpleNamespace(
        trace=SimpleNamespace(tokens=[SimpleNamespace(text=" yes")]), inside=(0, 1), bits=bits, without=None
    )
    assert answer_line(why) == f"' yes': {bits:.2f} bits ({share}) with the context"
