"""Text that no terminal acts on: every control character becomes a visible mark.

The translation is made character by character, so that an escape sequence split over tokens cannot pass.
Joiners (U+200D, U+FE0F) and combining marks stay: they are text.
"""

UNKNOWN = "�"

_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_FORMAT = (0x180E, *range(0x206A, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFC))
_MARKS: dict[int, str] = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
_MARKS |= {0x7F: "␡", 0x2028: "␤", 0x2029: "␤"}
_MARKS |= dict.fromkeys((*range(0x80, 0xA0), *_BIDI, *_FORMAT), UNKNOWN)
_MARKS |= dict.fromkeys((*range(0xE0000, 0xE0080), *range(0xD800, 0xE000)), UNKNOWN)


def clean(text: str) -> str:
    """The text with each control character replaced by one visible mark; only newline and tab are left."""
    return text if text.isascii() and text.isprintable() else text.translate(_MARKS)


def clean_line(text: str) -> str:
    """The text cleaned, on one line."""
    return clean(text).replace("\n", "␤").replace("\t", " ")
