"""The bytes of a token as text in which nothing is invisible."""

from __future__ import annotations

from ropechat.text import one_line

_SIGNS = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"})


def visible(data: bytes) -> str:
    """Blanks and controls as signs, bytes that are no text in hexadecimal: ⟨E4⟩."""
    parts: list[str] = []
    while data:
        try:
            parts.append(_plain(data.decode()))
            break
        except UnicodeDecodeError as error:
            parts.append(_plain(data[: error.start].decode()))
            parts += [f"⟨{byte:02X}⟩" for byte in data[error.start : error.end]]
            data = data[error.end :]
    return "".join(parts)


def _plain(text: str) -> str:
    return one_line(text.translate(_SIGNS))


def hexadecimal(data: bytes, most: int) -> str:
    """The bytes in hexadecimal, at most so many."""
    return data[:most].hex(" ") + (" …" if len(data) > most else "")
