"""A map from 64-bit hashes to small integers that takes 12 or 16 bytes per slot, for files of many rows."""

import hashlib
from array import array

_FIRST = 1024
_FULL = 0.8
"""The share of used slots at which the table grows."""


def hash64(*parts: str) -> int:
    """A 64-bit hash of texts, never 0. Of a million texts two agree with a probability of 3e-8."""
    data = "\0".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


class HashIndex:
    """Open addressing in two arrays; a dict takes ten times the memory. Keys are results of `hash64`.

    wide: values up to 2^64 - 1 instead of 2^32 - 1. expected: how many there will be: then the table does not
    have to grow, which needs both sizes in memory.
    """

    def __init__(self, *, wide: bool = False, expected: int = 0) -> None:
        self._code = "Q" if wide else "I"
        self._used = 0
        self._resize(max(_FIRST, int(expected / _FULL) + 2))

    def __len__(self) -> int:
        return self._used

    def _resize(self, slots: int) -> None:
        self._slots = slots
        self._keys = array("Q", [0]) * slots
        self._values = array(self._code, [0]) * slots

    def _slot(self, key: int) -> int:
        """The slot of a key, or the free one where it belongs."""
        keys, slots = self._keys, self._slots
        slot = key % slots
        while keys[slot] not in (0, key):
            slot = (slot + 1) % slots
        return slot

    def get(self, key: int) -> int | None:
        """The value of a key."""
        slot = self._slot(key)
        return self._values[slot] if self._keys[slot] else None

    def put(self, key: int, value: int) -> None:
        """Set the value of a key."""
        slot = self._slot(key)
        if not self._keys[slot]:
            self._used += 1
            self._keys[slot] = key
        self._values[slot] = value
        if self._used > _FULL * self._slots:
            self._grow()

    def _grow(self) -> None:
        keys, values = self._keys, self._values
        self._resize(self._slots * 3 // 2)
        for key, value in zip(keys, values, strict=True):
            if key:
                slot = self._slot(key)
                self._keys[slot], self._values[slot] = key, value
