"""Tokens in the transcript: each keeps its record and its place; tint never splits a character."""

from fakes import fake_step, pieces

from ropechat.trace import Step
from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.flow import Flow
from ropechat.tui.theme import LEVELS, level


def step(text: str, bits: float, index: int = 0) -> Step:
    base = fake_step(index, text.encode("utf-8", "replace"), text)
    return Step(**{**base.__dict__, "logprob": -bits * 0.6931471805599453})


def block(*parts: tuple[str, float], width: int = 80) -> AnswerBlock:
    made = AnswerBlock("answer", flow=Flow("", width))
    made.add(step(text, bits, index) for index, (text, bits) in enumerate(parts))
    return made


def test_levels() -> None:
    assert [level(bits) for bits in (0.0, 0.99, 1.0, 2.0, 4.0, 7.9, 8.0, 30.0)] == [0, 0, 1, 2, 3, 3, 4, 4]
    assert len(LEVELS) == 4


def test_spans_follow_tokens_and_leave_the_opening_blank_plain() -> None:
    made = block(("Once", 0.1), (" upon", 3.0), (" a", 0.2), (" time", 9.0))
    assert made.spans(made.flow.rows[0]) == [("Once ", 0), ("upon", 2), (" a ", 0), ("time", 4)]


def test_spans_of_every_row_join_to_the_text() -> None:
    text = "A long answer with 你好 and 👩\u200d👩\u200d👧 in it, wrapped over several rows of text."
    made = block(*[(part.decode(), 1.5 * number % 11) for number, part in enumerate(pieces(text))], width=17)
    for row in made.flow.rows:
        joined = "".join(piece for piece, _ in made.spans(row))
        assert joined == made.flow.row_text(row).rstrip(" ")


def test_a_character_of_several_tokens_takes_the_strongest_tint() -> None:
    made = block(("x", 0.0), ("👩", 0.0), ("\u200d", 5.0), ("👩", 0.0), ("y", 0.0))
    assert made.spans(made.flow.rows[0]) == [("x", 0), ("👩\u200d👩", 3), ("y", 0)]


def test_token_at_skips_tokens_without_text() -> None:
    made = block(("ab", 0.0), ("", 9.0), ("c", 0.0))
    assert [made.token_at(offset) for offset in range(4)] == [0, 0, 2, None]
    assert len(made.steps) == 3


def test_controls_are_marks_and_offsets_still_hold() -> None:
    made = block(("a\x1b[31m", 0.0), ("b\tc", 3.0))
    assert made.flow.text == "a␛[31mb    c"
    assert made.token_at(6) == 1


def test_trailing_empty_rows_count_only_while_live() -> None:
    made = block(("end", 0.0), ("\n\n", 0.0))
    made.live = True
    assert made.body == 3
    made.live = False
    assert made.body == 1
