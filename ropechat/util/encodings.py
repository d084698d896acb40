"""Reading text of an unknown encoding."""

import codecs
import re
import unicodedata
from itertools import pairwise

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WIDE = ("shift_jis", "euc_jp", "gb18030", "big5", "euc_kr")
_NARROW = ("cp1252", "cp1251", "koi8_r", "cp1253", "cp1250")
_SAMPLE = 1 << 16  # bytes that decide
_EVIDENCE = 8  # bytes above 127 that tell other alphabets from damage
_MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")


def decode(data: bytes) -> tuple[str, str]:
    """The text of a file and its encoding, guessed if it has no BOM and is not UTF-8.

    Raises ValueError for data that is not text.
    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            return data.decode(name), name.removesuffix("-sig")
    if b"\0" in data:
        return _of_pairs(data)
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        pass
    if _controls(data) > len(data) // 200:
        raise ValueError("not text")
    name = max((*_NARROW, *_WIDE), key=lambda name: _score(data, name))
    return data.decode(name, "replace"), name


def encoding_of(sample: bytes) -> str:
    """The encoding of a text by its beginning, of which the last character may be cut.

    utf-8 where nothing else is plausible: also for a text with damaged bytes among characters of UTF-8, and
    for what is no text.
    """
    for mark, name in _MARKS:
        if sample.startswith(mark):
            return name
    try:
        if b"\0" in sample:
            return _of_pairs(sample[: len(sample) & ~1])[1]
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        high = sum(byte > 127 for byte in sample)
        whole = sum(map(len, _MULTIBYTE.findall(sample)))  # of characters of UTF-8
        if 2 * whole >= high or _controls(sample) > len(sample) // 200:
            return "utf-8"
        best = max((*_NARROW, *_WIDE), key=lambda name: _score(sample, name))
        # A few bytes may be damage: they are letters of Western Europe, or nothing is said.
        if high >= _EVIDENCE or (best == "cp1252" and b"\xff" not in sample):
            return best
    except ValueError:
        pass
    return "utf-8"


def _controls(data: bytes) -> int:
    return sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in data[:_SAMPLE])


def _of_pairs(data: bytes) -> tuple[str, str]:
    """UTF-16 without a BOM: every second byte of most of its characters is the same."""
    for name, highs in (("utf-16-le", data[1:_SAMPLE:2]), ("utf-16-be", data[:_SAMPLE:2])):
        if len(data) % 2 == 0 and max(map(highs.count, set(highs))) > len(highs) * 0.5:
            text = data.decode(name)
            if "\0" not in text:
                return text, name
    raise ValueError("not text")


def _score(data: bytes, name: str) -> float:
    """How plausible this encoding is for a text: about -1 to 1; -9 if it is impossible."""
    sample = data[:_SAMPLE]
    try:
        text = codecs.getincrementaldecoder(name)().decode(sample, final=len(sample) == len(data))
    except UnicodeDecodeError:
        return -9.0
    found = [one for one in text if ord(one) > 127]
    if name in _WIDE:
        return _score_wide(sample, found, name)
    letters = sum(one.isalpha() for one in found)
    marks = sum(one in "€…–—‘’‚“”„«»°·§©®£¿¡•\u00a0" for one in found)
    odd = len(found) - letters - marks
    jumps = sum(one.islower() and two.isupper() for one, two in pairwise(text))
    foreign = (
        0
        if name in ("cp1252", "cp1250")
        else sum(
            one.isascii() and one.isalpha() and ord(two) > 127 and two.isalpha()
            for one, two in pairwise(text)
        )
    )
    dense = len(found) > 0.4 * sum(one.isalpha() for one in text)
    latin = name in ("cp1252", "cp1250")
    fits = 0.1 if latin != dense else -0.4
    rare = 0.02 * (name == "cp1250") + 0.01 * (name == "koi8_r")
    capitals = sum(one.isupper() for one in found) / max(1, letters)
    return (letters + marks - 3 * odd - 2 * jumps - 2 * foreign) / len(found) + fits - rare - 0.5 * capitals


def _score_wide(sample: bytes, found: list[str], name: str) -> float:
    blocks = [unicodedata.name(one, "?").split(" ")[0] for one in found]
    kana = sum(one in ("HIRAGANA", "KATAKANA") for one in blocks)
    signs = sum(one in ("IDEOGRAPHIC", "FULLWIDTH", "LEFT", "RIGHT", "CORNER") for one in blocks)
    hangul, ideographs = blocks.count("HANGUL"), blocks.count("CJK")
    own = {"shift_jis": kana, "euc_jp": kana, "euc_kr": hangul}.get(name, ideographs)
    text = own + signs + (ideographs if name in ("shift_jis", "euc_jp") and kana else 0)
    halves = sum("\uff61" <= one <= "\uff9f" for one in found)
    odd = len(found) - kana - signs - hangul - ideographs
    high = [byte for byte in sample if byte > 127]
    latin = sum(chr(byte).isalpha() for byte in sample if byte < 128)
    likely = 0.2
    if name == "shift_jis" and sum(byte in (0x82, 0x83) for byte in high) > len(high) // 5:
        likely = 0.4  # the first bytes of kana
    if name == "euc_kr" and sample.count(b" ") > len(high) // 20:
        likely = 0.3  # Chinese and Japanese have no spaces between words
    return (text - odd - 2 * halves) / len(found) + likely - (0.6 if len(high) < latin else 0.0)
