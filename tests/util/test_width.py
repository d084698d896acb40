"""The width of text: what is not asked of rich is what rich would say."""

from rich.cells import cell_len, split_graphemes

from ropechat.util.width import _NARROW, cell_width, graphemes


def test_narrow_characters_are_those_of_rich() -> None:
    narrow = [chr(code) for code in range(0x3000) if _NARROW.fullmatch(chr(code))]
    assert len(narrow) > 1000
    assert [one for one in narrow if cell_len(one) != 1] == []
    assert graphemes("".join(narrow)) == split_graphemes("".join(narrow))[0]


def test_other_characters() -> None:
    for text, width in (("", 0), ("abc", 3), ("·█…", 3), ("日本", 4), ("e\u0301", 1), ("a日", 3)):
        assert cell_width(text) == width, text
