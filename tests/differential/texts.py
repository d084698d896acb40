"""Random texts: what people, programs and test authors write, in any script, and what nobody should."""

import random
from collections.abc import Callable, Sequence

# Code points, hexadecimal.
SCRIPTS = (
    "0061-007A 00C0-00FF 0100-017F 0180-024F 1E00-1EFF 0250-02AF 0370-03FF 1F00-1FFF 0400-04FF 0500-052F "
    "0530-058F 0590-05FF 0600-06FF 0700-074F 0780-07BF 0900-097F 0980-09FF 0A00-0A7F 0B80-0BFF 0C00-0C7F "
    "0D00-0D7F 0D80-0DFF 0E00-0E7F 0E80-0EFF 0F00-0FFF 1000-109F 10A0-10FF 1100-11FF 1200-137F 13A0-13FF "
    "1400-167F 1780-17FF 1800-18AF 2C00-2C5F 2D30-2D7F 3040-309F 30A0-30FF 3130-318F 3400-4DBF 4E00-9FFF "
    "A000-A48F A720-A7FF AC00-D7A3 FB00-FB4F FB50-FDFF FE70-FEFC FF00-FFEF 10400-1044F 10330-1034F "
    "12000-123FF 13000-1342F 1D400-1D7FF 1E900-1E95F 20000-2A6DF"
)
MARKS = "0300-036F 0483-0489 0591-05BD 064B-0652 093C-094D 0E31-0E3A 1AB0-1ABE 1DC0-1DFF 20D0-20F0 FE20-FE2F"
DIGITS = (
    "0030-0039 0660-0669 0966-096F 0E50-0E59 FF10-FF19 00B2-00B3 2070-2079 2150-218B 3021-3029 1D7CE-1D7FF "
    "0F20-0F33"
)
SYMBOLS = (
    "0021-002F 003A-0040 005B-0060 007B-007E 00A1-00BF 2010-2027 2030-205E 20A0-20BF 2190-22FF 2500-257F "
    "3000-303F"
)
EMOJIS = "1F300-1F5FF 1F600-1F64F 1F680-1F6FF 1F900-1F9FF 2600-26FF 2700-27BF 1F1E6-1F1FF 1FA70-1FAFF"
EDGES = (
    "D7FF E000 F8FF FDD0 FFF9 FFFC FFFD FFFE FFFF 10000 1FFFE 1FFFF 2FFFF E0001 E007F E0100 F0000 FFFFF "
    "100000 10FFFD 10FFFF"
)
SPACES = "20 20 20 20 9 A D B C 1C 85 A0 1680 2003 200A 2028 2029 202F 205F 3000 200B FEFF"
JOINERS = "200D FE0F FE0E 1F3FB 1F3FF 20E3 200C 200E 202E 2066"
WORDS = (
    "the of and to in is that it was for I'm don't DON'T we'LL they'Re it's IT'S I'd can't you've naïve café "
    "straße İstanbul ﬁne Ångström O’Neill l’eau ſtreet \u212aelvin Hello HELLO hELLO HelloWorld iPhone "
    "XMLHttpRequest snake_case kebab-case 3rd 1st 2nd x86_64 v1.2.3 user@example.com "
    "https://example.com/a?b=c&d=%20#e C:\\dir\\file.txt /usr/bin"
)
NAMES = (
    "<s> </s> <unk> <|im_start|> <|endoftext|> <| |> <0x0A> <0xFF> <0x ▁ Ġ Ċ ▁▁ <｜User｜> [INST] [/INST] "
    "<pad> <s s> <|eot_id|> <bos> \\n &#10;"
)
REPEATED = "a=- \n\té0あ1!😀ா\u0301"
CODE = (
    "def f(x):\n    return x ** 2\n",
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] += b[i];\n\t}\n",
    'printf("%s\\n", "\\u00e9");',
    "SELECT * FROM t WHERE a <> 'it''s';",
    '<div class="a">&nbsp;</div>',
    '{"k": [1, -2.5e10, null, true]}',
    "```python\nx = {'a': 1}\n```",
    "if (!x || y&&z) return ~0x7fFF_u32;",
    "\\frac{1}{2}\\sum_{i=0}^{n} x_i",
    "#!/bin/sh\nset -e; a=${b:-c} | tee > /dev/null 2>&1\n",
    "λx.λy.x→y ≠ ∀∃∈ℝ²",
    "a\u0000b",
)


def _ranges(text: str) -> list[tuple[int, int]]:
    ends = (part.split("-") for part in text.split())
    return [(int(first, 16), int(last, 16)) for first, last in ends]


def _characters(text: str) -> list[str]:
    return [chr(int(point, 16)) for point in text.split()]


def _letters(text: str, most: int) -> Callable[[random.Random], str]:
    """Letters of one of some ranges."""
    ranges = _ranges(text)

    def make(rng: random.Random) -> str:
        first, last = rng.choice(ranges)
        return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, most)))

    return make


_SPACES = _characters(SPACES)
_mark, _emoji, _script = _letters(MARKS, 4), _letters(EMOJIS, 1), _letters(SCRIPTS, 12)


def _decomposed(rng: random.Random) -> str:
    """Letters that carry marks, in any order and number."""
    return "".join(_letters(SCRIPTS, 1)(rng) + _mark(rng) for _ in range(rng.randint(1, 5)))


def _emojis(rng: random.Random) -> str:
    joiners = [*_characters(JOINERS), *[""] * 4]
    return "".join(_emoji(rng) + rng.choice(joiners) for _ in range(rng.randint(1, 5)))


def _anything(rng: random.Random) -> str:
    """Any code points but surrogates."""
    points = (rng.choice((rng.randrange(0x110000), rng.randrange(0x10000))) for _ in range(rng.randint(1, 8)))
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


def _controls(rng: random.Random) -> str:
    points = (rng.choice((rng.randrange(32), rng.randrange(127, 160))) for _ in range(rng.randint(1, 4)))
    return "".join(map(chr, points))


def _repeated(rng: random.Random) -> str:
    return rng.choice(REPEATED) * rng.randint(2, 70)


def _words(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS.split()) for _ in range(rng.randint(1, 5)))


def _spaces(rng: random.Random) -> str:
    return "".join(rng.choice(_SPACES) for _ in range(rng.randint(1, 8)))


def _code(rng: random.Random) -> str:
    text = rng.choice(CODE)
    begin = rng.randrange(len(text))
    return text[begin:] if rng.random() < 0.3 else text


MAKERS: tuple[Callable[[random.Random], str], ...] = (
    _words,
    _words,
    _script,
    _script,
    _decomposed,
    _emojis,
    _spaces,
    _spaces,
    _controls,
    lambda rng: rng.choice(_characters(EDGES)),
    _letters(DIGITS, 9),
    lambda rng: str(rng.randrange(10 ** rng.randint(1, 14))),
    _letters(SYMBOLS, 6),
    _code,
    _repeated,
    _anything,
)


class Texts:
    """Random texts for one vocabulary. pieces: texts of its tokens. names: of its added tokens."""

    def __init__(self, seed: str, pieces: Sequence[str] = (), names: Sequence[str] = ()) -> None:
        self.rng = random.Random(seed)
        self._pieces = pieces
        self._names = (*NAMES.split(), *names)

    def next(self) -> str:
        rng = self.rng
        return "".join(self._part() for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3, 4, 6))))

    def long(self, size: int) -> str:
        """A text of at least so many bytes."""
        parts: list[str] = []
        while size > 0:
            parts.append(self.next())
            size -= len(parts[-1].encode())
        return "".join(parts)

    def _part(self) -> str:
        chance = self.rng.random()
        if chance < 0.15 and self._pieces:
            return "".join(self.rng.choice(self._pieces) for _ in range(self.rng.randint(1, 6)))
        if chance < 0.22:
            return self.rng.choice(self._names)
        part = self.rng.choice(MAKERS)(self.rng)
        return part.upper() if self.rng.random() < 0.05 else part
