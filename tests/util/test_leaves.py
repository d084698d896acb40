"""sampling, trace and text: what they promise without an engine."""

import json
import math

import pytest

from ropechat.sampling import Sampling
from ropechat.trace import TokenDistribution, TokenScore, Trace
from ropechat.util.text import clean, count_of, escape_json, one_line, visible
from ropechat.util.width import cell_width, fit


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("temperature", [-0.1, math.nan, math.inf, 101, 10**400, "hot", True, None]),
        ("top_k", [-1, 1.5, 2**31, True, "1", None]),
        ("top_p", [0, -1, 1.01, math.nan, True]),
        ("min_p", [-0.1, 1.1, math.nan]),
        ("repetition_penalty", [0, -1, math.inf, 101]),
        ("max_tokens", [0, -1, 1.5, True, 2**31, None, "9" * 5000]),
        ("seed", [-1, 2**64, 1.5, True, "x"]),
    ],
)
def test_sampling_refuses_and_names_the_field(field: str, bad: list[object]) -> None:
    for value in bad:
        with pytest.raises(ValueError, match=rf"^{field}: ") as caught:
            Sampling(**{field: value})
        assert len(str(caught.value)) < 120


def test_sampling_takes_its_limits() -> None:
    assert Sampling() == Sampling(
        temperature=0.7, top_k=40, top_p=0.95, min_p=0.0, repetition_penalty=1.0, max_tokens=512, seed=None
    )
    Sampling(temperature=0, top_k=0, top_p=1, min_p=1, repetition_penalty=100, max_tokens=1, seed=2**64 - 1)
    with pytest.raises(AttributeError):
        Sampling().seed = 1  # type: ignore[misc]


def test_one_of_a_thing_is_singular() -> None:
    assert [count_of(number, "row") for number in (0, 1, 2, 1000)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "1,000 rows",
    ]


def test_clean_leaves_nothing_that_acts() -> None:
    harmful = [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F)]
    harmful += [*range(0x2066, 0x206A), 0x2028, 0x2029, 0xD800, 0xDFFF, *range(0xE0000, 0xE0080)]
    for code in set(harmful) - {0x0A, 0x09}:
        escaped = escape_json(json.dumps(f"a{chr(code)}b", ensure_ascii=False))
        assert escaped.isprintable()
        assert json.loads(escaped) == f"a{chr(code)}b"
        cleaned = clean(f"a{chr(code)}b")
        assert chr(code) not in cleaned
        assert cleaned.isprintable()
        assert 3 <= len(cleaned) <= 9
    kept = "tab\t, newline\n, é 日本 👩🏽‍💻 ▁ \u00a0"
    assert clean(kept) == kept
    assert one_line("a\nb\tc\x1b[2J") == "a␊b␉c␛[2J"


def test_names_that_look_alike_are_told_apart() -> None:
    unseen = [0xAD, 0x34F, 0x115F, 0x3164, 0x200B, 0x200C, 0x200D, 0x2060, 0x2064, 0x206F, 0xFE0F, 0xFEFF]
    for code in [*unseen, 0xFFA0, 0xFFF9, 0xE0001, 0xE0FFF]:
        for name in ("Qwen{}3", "{}Qwen3", "Qwen3{}", "é{}"):
            assert one_line(name.format(chr(code))) == name.format(f"⟨{code:04X}⟩")
    kept = "👩🏽‍💻 ☺\ufe0f 1\ufe0f\u20e3 می\u200cخواهم क्\u200dष é 日本 Ελλ"
    assert one_line(kept) == kept


def test_a_token_shows_every_blank_and_byte() -> None:
    assert visible(b" a\n\t\r\x1b\xc2\xa0") == "·a⏎⇥␍␛⍽"
    assert visible("日".encode()[:2] + "é\u202e".encode() + b"\xf0") == "⟨E6⟩⟨97⟩é⟨202E⟩⟨F0⟩"


def test_clean_works_on_pieces() -> None:
    text = "\x1b]52;c;aGk=\x07\x9b2J\u202e"
    assert "".join(clean(character) for character in text) == clean(text)


def test_cells_and_fit() -> None:
    assert (cell_width("abc"), cell_width("日本"), cell_width("é"), cell_width("👍")) == (3, 4, 1, 2)
    assert fit("abc", 5) == "abc  "
    assert fit("abcdef", 4) == "abc…"
    assert fit("日本語", 4) == "日… "
    assert all(cell_width(fit("a日本語x", width)) == width for width in range(1, 12))


def _token(index: int, logprob: float | None, span: tuple[int, int], role: str = "text") -> TokenScore:
    return TokenScore(index, 0, b"", "", span, role, logprob, 1, 0.0, None)


def test_trace_sums_what_was_scored() -> None:
    row = TokenDistribution(3, (), 0.0, 0.0, 0.0)
    tokens = (
        _token(0, None, (0, 0), "bos"),
        _token(1, -1.0, (0, 2)),
        _token(2, -2.0, (2, 6)),
        _token(3, -9.0, (6, 6), "special"),
    )
    trace = Trace(tokens, row)
    assert (len(trace), trace[1], list(trace)[2]) == (4, tokens[1], tokens[2])
    assert trace.nll() == 3.0
    assert trace.nll(("text", "special")) == 12.0
    assert math.isclose(trace.ppl(), math.exp(1.5))
    assert math.isclose(trace.bits_per_byte(), 3 / math.log(2) / 6)
    shared = Trace((_token(0, -1.0, (0, 4)), _token(1, -1.0, (0, 4)), _token(2, -1.0, (4, 5))), row)
    assert math.isclose(shared.bits_per_byte(), 3 / math.log(2) / 5)
    empty = Trace(tokens[:1], row)
    assert empty.nll() == 0
    assert math.isnan(empty.ppl())
    assert math.isnan(empty.bits_per_byte())
