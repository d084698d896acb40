"""Encoding a long text piece by piece, with the tokens that the whole text would have.

A tokenizer may look at neighbouring characters, so a cut can change the tokens next to it. Therefore pieces
overlap, and the second of two pieces takes over at a token from which both agree until shortly before the
first one ends. Pieces that never agree are encoded as one.
"""

from collections.abc import Callable, Iterator

from ropechat.tokenizer.alignment import EncodedToken

PIECE_BYTES = 1 << 15
_OVERLAP = 1 << 11
_EDGE = 1 << 7
"""Bytes at the end of a piece whose tokens may depend on what follows."""
_AGREEING = 16
"""The fewest tokens that must agree."""


def encode_pieces(
    encode: Callable[[str], list[EncodedToken]], text: str, piece: int = PIECE_BYTES
) -> Iterator[list[EncodedToken]]:
    """Yield the tokens of `text` in order, in lists of bounded size; spans are byte ranges of `text`.

    encode: encodes a text, with the tokens that the tokenizer adds around it. piece: bytes per piece. A text
    of at most one piece is encoded at once. Raises what `encode` raises.
    """
    data = text.encode("utf-8", "surrogatepass")
    begin, end = 0, _boundary(data, piece)
    tokens, skipped = _encoded(encode, data, begin, end), 0
    while end < len(data):
        cut = _cut(data, max(end - _OVERLAP, (begin + end) // 2), end)
        cut_end = _boundary(data, cut + piece)
        following = _encoded(encode, data, cut, cut_end)
        join = _join(tokens, following, end)
        if join is None:
            end = _boundary(data, end + (end - begin))
            tokens = _encoded(encode, data, begin, end)
            continue
        yield tokens[skipped : join[0]]
        tokens, skipped = following, join[1]
        begin, end = cut, cut_end
    yield tokens[skipped:]


def _boundary(data: bytes, at: int) -> int:
    """The next place at or after `at` where a character begins."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return min(at, len(data))


def _cut(data: bytes, begin: int, end: int) -> int:
    """Where the next piece begins: after the first line in the range, else before a space, else anywhere."""
    half = (begin + end) // 2
    for mark, skipped in ((b"\n", 1), (b" ", 0)):
        found = data.find(mark, begin, half)
        if found >= 0:
            return found + skipped
    return _boundary(data, begin)


def _encoded(
    encode: Callable[[str], list[EncodedToken]], data: bytes, begin: int, end: int
) -> list[EncodedToken]:
    """Encode a part of the text; spans are those of the whole text."""
    tokens = encode(data[begin:end].decode("utf-8", "surrogatepass"))
    if not begin:
        return tokens
    return [token._replace(span=(token.span[0] + begin, token.span[1] + begin)) for token in tokens]


def _join(tokens: list[EncodedToken], following: list[EncodedToken], end: int) -> tuple[int, int] | None:
    """(i, j): both pieces agree before tokens[i] and following[j]; None if they do not.

    end: where the first piece ends. Tokens that the tokenizer adds around each piece agree with none.
    """
    last = len(tokens) - 1
    while last >= 0 and not tokens[last].span[0] < tokens[last].span[1] <= end - _EDGE:
        last -= 1
    start = tokens[last].span[0] if last >= 0 else -1
    same = next((j for j, token in enumerate(following) if token.span[0] == start < token.span[1]), -1)
    agreeing = 0
    while agreeing <= min(last, same) and tokens[last - agreeing] == following[same - agreeing]:
        agreeing += 1
    return (last + 1, same + 1) if agreeing >= _AGREEING else None
