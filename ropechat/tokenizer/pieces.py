"""Conversion of tokens, as written in the vocabulary, to their exact bytes."""

from functools import cache
from typing import Any

from ropechat.tokenizer.components import components

SPACE_MARK = "▁"
_HEXADECIMAL = frozenset("0123456789ABCDEFabcdef")


@cache
def byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level vocabularies: printable bytes as they are, others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


def byte_of(token: str) -> int | None:
    """The byte of a token `<0xXX>`, else None."""
    digits = token[3:5]
    is_one = token == f"<0x{digits}>" and len(digits) == 2 and _HEXADECIMAL.issuperset(digits)
    return int(digits, 16) if is_one else None


class ByteDecoder:
    """Converts tokens of one vocabulary to bytes, by its tokenizer.json.

    byte_level: the text is the UTF-8 of the tokens' bytes. hold: byte level with other decoding steps.
    byte_fallback: `<0xXX>` is a byte. space_mark: ▁ is a space.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        decoders = [part.get("type") for part in components(data.get("decoder"))]
        self.byte_level = bool(decoders) and set(decoders) <= {"ByteLevel", "Fuse", "Sequence"}
        self.hold = "ByteLevel" in decoders
        self.byte_fallback = "ByteFallback" in decoders
        self.space_mark = _writes_space_mark(data)
        model = data.get("model") or {}
        self._prefix: str = model.get("continuing_subword_prefix") or ""
        self._suffix: str = model.get("end_of_word_suffix") or ""

    def bytes_of(self, token: str) -> bytes:
        """The bytes of a token that is not an added token."""
        if self.hold:
            return self.byte_level_bytes(token)
        byte = self.fallback_byte(token)
        if byte is not None:
            return bytes([byte])
        if self._prefix and token.startswith(self._prefix):
            token = token.removeprefix(self._prefix)
        if self._suffix and token.endswith(self._suffix):
            token = token.removesuffix(self._suffix) + " "
        if self.space_mark:
            token = token.replace(SPACE_MARK, " ")
        return token.encode()

    def byte_level_bytes(self, token: str) -> bytes:
        """As the library's decoder: a token with a character outside the alphabet stays as it is."""
        alphabet = byte_level_alphabet()
        try:
            return bytes([alphabet[character] for character in token])
        except KeyError:
            return token.encode()

    def fallback_byte(self, token: str) -> int | None:
        return byte_of(token) if self.byte_fallback else None


def _writes_space_mark(data: dict[str, Any]) -> bool:
    """Whether ▁ represents a space in this vocabulary."""
    parts = [*components(data.get("decoder")), *components(data.get("pre_tokenizer"))]
    parts += components(data.get("normalizer"))
    for part in parts:
        pattern = part.get("pattern")
        text = pattern.get("String") if isinstance(pattern, dict) else None
        if part.get("type") == "Metaspace":
            return True
        if part.get("type") == "Replace" and SPACE_MARK in (part.get("content"), text):
            return True
    return False
