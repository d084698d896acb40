"""Tokens in the transcript: each keeps its record and its place; tint never splits a character."""

import random

from fakes import fake_step, pieces

from ropechat.trace import Step
from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.pieces import Mark, Piece, joined, overlay
from ropechat.tui.render.tint import TINTS
from ropechat.tui.render.width import graphemes


def step(text: str, bits: float, index: int = 0) -> Step:
    base = fake_step(index, text.encode("utf-8", "replace"), text)
    return Step(**{**base._asdict(), "logprob": -bits * 0.6931471805599453})


def block(*parts: tuple[str, float], width: int = 80) -> AnswerBlock:
    made = AnswerBlock("answer")
    made.shape("tokens", width)
    made.add(step(text, bits, index) for index, (text, bits) in enumerate(parts))
    return made


def spans(made: AnswerBlock, row: int, tint: str = "surprisal") -> list[tuple[str, str]]:
    drawn = overlay(made.rows.pieces(row), made.marks(row, tint))
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
                    look = joined(look, mark.look)
            looks += [look] * (last - first)
        drawn = overlay([Piece(text, "x", at)], marks)
        assert [look for piece in drawn for look in [piece.look] * len(piece.text)] == looks
        assert "".join(piece.text for piece in drawn) == text
