"""Tokens in the transcript: each keeps its record and its place; tint never splits a character."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from fakes import fake_step, pieces
from reading import DOCUMENT

from ropechat.conversation import Node, Role
from ropechat.trace import Step
from ropechat.tui.render import blocks
from ropechat.tui.render import wrap as flow
from ropechat.tui.render.blocks import AnswerBlock, to_display
from ropechat.tui.render.tint import TINTS
from ropechat.tui.render.wrap import wrap
from ropechat.util.markdown.spans import Mark, StyledSpan, join_styles, overlay_marks
from ropechat.util.width import graphemes


def step(text: str, bits: float, index: int = 0) -> Step:
    base = fake_step(index, text.encode("utf-8", "replace"), text)
    return Step(**{**base._asdict(), "logprob": -bits * 0.6931471805599453})


def block(*parts: tuple[str, float], width: int = 80) -> AnswerBlock:
    made = empty_block([step(text, bits, index) for index, (text, bits) in enumerate(parts)])
    made.shape("tokens", width)
    made.grow()
    return made


def empty_block(steps: Sequence[Step]) -> AnswerBlock:
    """A block that has drawn none of its answer's tokens."""
    return AnswerBlock("answer", answer=Node("", None, Role.ASSISTANT, steps=list(steps)))


def spans(made: AnswerBlock, row: int, tint: str = "surprisal") -> list[tuple[str, str]]:
    drawn = overlay_marks(made.rows.pieces(row), made.marks(row, tint))
    return [(piece.text, piece.look) for piece in drawn]


def test_levels() -> None:
    surprisal = TINTS[0]
    levels = [surprisal.level(step("x", bits), None) for bits in (0.0, 0.99, 1.0, 2.0, 4.0, 7.9, 8.0, 30.0)]
    assert levels == [0, 0, 1, 2, 3, 3, 4, 4]


def test_marks_follow_tokens_and_leave_the_blanks_plain() -> None:
    made = block(("Once", 0.1), (" upon", 3.0), (" a", 0.2), (" time", 9.0))
    assert spans(made, 0) == [("Once ", ""), ("upon", "tint2"), (" a ", ""), ("time", "tint4")]
    assert spans(made, 0, "off") == [("Once upon a time", "")]


def test_marks_of_every_row_leave_the_text_alone() -> None:
    text = "A long answer with 你好 and 👩\u200d👩\u200d👧 in it, wrapped over several rows of text."
    made = block(*[(part.decode(), 1.5 * number % 11) for number, part in enumerate(pieces(text))], width=17)
    for row in range(made.body):
        plain = "".join(piece.text for piece in made.rows.pieces(row))
        assert "".join(text for text, _ in spans(made, row)) == plain


def test_a_character_of_several_tokens_takes_the_strongest_tint() -> None:
    made = block(("x", 0.0), ("👩", 2.5), ("\u200d", 5.0), ("👩", 0.0), ("y", 0.0))
    (_, plain), (character, looks), _ = spans(made, 0)
    assert (plain, character) == ("", "👩\u200d👩")
    assert looks.split()[-1] == "tint3"  # the last name is on top


def test_token_at_skips_tokens_without_text() -> None:
    made = block(("ab", 0.0), ("", 9.0), ("c", 0.0))
    assert [made.token_at(offset) for offset in range(4)] == [0, 0, 2, None]
    assert [made.token_span(index) for index in range(3)] == [(0, 2), (2, 2), (2, 3)]
    assert len(made.steps) == 3


def test_controls_are_marks_and_offsets_still_hold() -> None:
    made = block(("a\x1b[31m", 0.0), ("b\tc", 3.0))
    assert made.text == "a␛[31mb    c"
    assert made.token_at(6) == 1


def test_trailing_empty_rows_count_only_while_live() -> None:
    made = block(("end", 0.0), ("\n\n", 0.0))
    made.live = True
    assert made.rows.count == made.body == 3
    made.end()
    assert made.body == 1


def test_rows_given_back_come_back_the_same() -> None:
    made = block(("# Title\n\n- one\n- two", 0.0), width=20)
    made.shape("prose", 20)
    assert made.rows.pieces(0)[0].text == "Title"
    rows, height = [made.rows.pieces(row) for row in range(made.body)], made.height
    made.forget()
    assert not made.laid_out
    assert made.height == height
    assert [made.rows.pieces(row) for row in range(made.body)] == rows


@pytest.mark.parametrize("view", ["tokens", "prose"])
def test_an_answer_that_begins_as_another_takes_it_over(view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(11)
    text = DOCUMENT + "A line of several words that has to be wrapped \x1b[31m once more.\n" * 6
    tokens = [step(part.decode(), 9 * draw.random(), at) for at, part in enumerate(pieces(text))]
    old = empty_block(tokens)
    old.shape(view, 30)
    old.grow()
    seen: list[str] = []

    def wrapped(line: str, start: int, width: int) -> list[tuple[int, int]]:
        seen.append(line[start:])
        return wrap(line, start, width)

    for tint in ("surprisal", "rank"):
        old.levels(tint)
    for count in (len(tokens), len(tokens) - 3, 150, 7, 1):
        assert old.rows
        steps = [*tokens[:count], step(" another", 3.0)]
        begun, alone = empty_block(steps), empty_block(steps)
        with monkeypatch.context() as patched:
            patched.setattr(blocks, "to_display", lambda text: (seen.append(text), to_display(text))[1])
            patched.setattr(flow, "wrap", wrapped)
            assert begun.begin_like(old) == count
            begun.shape(view, 30)
            begun.grow()
            _ = begun.rows
        assert view == "prose" or sum(map(len, seen)) < 150
        seen.clear()
        alone.shape(view, 30)
        alone.grow()
        assert (begun.steps, begun.ends, begun.text) == (alone.steps, alone.ends, alone.text)
        assert [*map(begun.rows.pieces, range(begun.body))] == [*map(alone.rows.pieces, range(alone.body))]
        for tint in ("surprisal", "rank"):
            assert begun.levels(tint) == alone.levels(tint)
        same = begun.alike(old)
        assert same <= begun.rows.row_at(begun.ends[count - 1])
        for row in range(same):
            assert begun.rows.pieces(row) == old.rows.pieces(row)
            assert begun.marks(row, "surprisal") == old.marks(row, "surprisal")
        assert same >= (begun.rows.row_at(begun.ends[count - 1]) - 1 if view == "tokens" else 0)


def test_what_differs_from_the_first_token_on_is_not_taken_over() -> None:
    old = block(("a", 0.1), (" b", 3.0))
    assert empty_block([step("a", 0.1), *old.steps[1:]]).begin_like(old) == 0
    made = empty_block(old.steps)
    made.begin("asked")
    assert made.begin_like(old) == 0
    assert (made.text, made.steps, made.ends) == ("asked", [], [])


def test_the_next_surprise() -> None:
    made = block(("a", 0.1), (" b", 3.0), (" c", 1.5), (" d", 9.0))
    assert made.surprising(0, 1, "surprisal") == 1
    assert made.surprising(1, 1, "off") == 3
    assert made.surprising(3, -1, "surprisal") == 1
    assert made.surprising(1, -1, "surprisal") is None


def test_marks_over_any_text_are_those_of_each_character() -> None:
    draw = random.Random(3)
    for _ in range(300):
        text = "".join(draw.choice("ab c é\u0301👨\u200d👩\u200d👧🇩🇪你") for _ in range(draw.randint(1, 14)))
        at = draw.randint(0, 5)
        ends = [sorted((draw.randint(0, 24), draw.randint(0, 24))) for _ in range(draw.randint(0, 6))]
        marks = [Mark(start, end, draw.choice("pqr")) for start, end in ends]
        looks = []
        for first, last, _ in graphemes(text):
            look = "x"
            for mark in marks:
                if mark.start < mark.end and mark.start < at + last and mark.end > at + first:
                    look = join_styles(look, mark.look)
            looks += [look] * (last - first)
        drawn = overlay_marks([StyledSpan(text, "x", at)], marks)
        assert [look for piece in drawn for look in [piece.look] * len(piece.text)] == looks
        assert "".join(piece.text for piece in drawn) == text
