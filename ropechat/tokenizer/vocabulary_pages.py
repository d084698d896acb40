"""A BPE vocabulary on disk in small pages, so that a short text reads only the pages it needs.

    | word pages | id pages | longest token | offset of each page, and end of the last | pages |

Numbers are u32, little endian; offsets count from the start of the block, `longest token` is in characters. A
page is JSON followed by its CRC-32, seeded with the page's number. A word page has the tokens of one hash
value, {token: [id, left, rank, left, rank, ..]}: the merges that form it, by the length of the left part in
characters. An id page has the tokens of 16 ids.
"""

import json
import struct
from binascii import crc32
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_PER_PAGE = 16
"""Tokens. Most lookups need one token of a page: 150 lookups take 8 ms with 64 tokens, 3 with 16."""
_NUMBER = struct.Struct("<I")
_FIRST = 3  # numbers before the offsets

Word = tuple[int, list[tuple[int, int]]]
"""A token's id and the merges that form it: (length of the left part in characters, rank)."""
Read = Callable[[int, int], bytes]


def lay_out(
    vocab: Mapping[str, int], merges: Sequence[str | Sequence[str]], tokens: Sequence[str | None]
) -> bytes:
    """The block of a vocabulary. vocab, merges: of the BPE model. tokens: by id, including added tokens."""
    count = max(1, len(vocab) // _PER_PAGE)
    known = {token: [id] for token, id in vocab.items()}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        known[left + right] += (len(left), rank)
    words: list[dict[str, list[int]]] = [{} for _ in range(count)]
    while known:
        token, entry = known.popitem()
        words[_hash(token, count)][token] = entry
    ids = [tokens[begin : begin + _PER_PAGE] for begin in range(0, len(tokens), _PER_PAGE)]
    pages = [_packed(number, page) for number, page in enumerate([*words, *ids])]
    begins = [_NUMBER.size * (_FIRST + len(pages) + 1)]
    for page in pages:
        begins.append(begins[-1] + len(page))
    numbers = (count, len(ids), max(map(len, vocab), default=0), *begins)
    return b"".join([*map(_NUMBER.pack, numbers), *pages])


def _hash(token: str, count: int) -> int:
    return crc32(token.encode()) % count


def _packed(number: int, page: object) -> bytes:
    text = json.dumps(page, ensure_ascii=False, separators=(",", ":")).encode()
    return text + _NUMBER.pack(crc32(text, number))


class Pages:
    """Reads a block. read(begin, end): its bytes; may raise OSError. size: bytes of the block.

    longest: length of the longest token, in characters.

    Methods raise OSError, and ValueError if the block is damaged.
    """

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self._size = size
        self._loaded: dict[int, Any] = {}
        self._words, self._ids, self.longest = self._numbers(0, _FIRST)
        if self._words == 0:
            raise ValueError("no pages")
        self._offsets = self._numbers(_FIRST, self._words + self._ids + 1)

    def _numbers(self, first: int, count: int) -> tuple[int, ...]:
        size = _NUMBER.size
        return struct.unpack(f"<{count}I", self._exactly(first * size, (first + count) * size))

    def _exactly(self, begin: int, end: int) -> bytes:
        if end > self._size:
            raise ValueError(f"a part from {begin} to {end} of a block of {self._size} bytes")
        data = self._read(begin, end)
        if len(data) != end - begin:
            raise ValueError(f"{len(data)} bytes from {begin}; {end - begin} are required")
        return data

    def _page(self, number: int) -> Any:
        if number not in self._loaded:
            begin, end = self._offsets[number : number + 2]
            if end < begin + _NUMBER.size:
                raise ValueError(f"page {number} from {begin} to {end}")
            data = self._exactly(begin, end)
            text, (sum,) = data[: -_NUMBER.size], _NUMBER.unpack(data[-_NUMBER.size :])
            if crc32(text, number) != sum:
                raise ValueError(f"page {number} is damaged")
            self._loaded[number] = json.loads(text)
        return self._loaded[number]

    def word(self, token: str) -> Word | None:
        """The entry of a token, or None if it is not in the model's vocabulary."""
        found = self._page(_hash(token, self._words)).get(token)
        return None if found is None else (found[0], list(zip(found[1::2], found[2::2], strict=True)))

    def words(self, tokens: Iterable[str]) -> dict[str, Word]:
        """The entries of those `tokens` that are in the vocabulary."""
        return {token: word for token in tokens if (word := self.word(token)) is not None}

    def token(self, id: int) -> str | None:
        """The token of an id, or None."""
        number, place = divmod(id, _PER_PAGE)
        if number >= self._ids:
            return None
        page = self._page(self._words + number)
        return page[place] if place < len(page) else None
