"""Shards: the part of a file's rows that one of several machines computes, chosen by each row's id."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ropechat.batch.line import LineId

MAX_SHARDS = 1 << 16


@dataclass(frozen=True)
class Shard:
    """Shard `number` of `count`, counted from 1. A row stays in its shard when the file grows."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse "2/8". Raises ValueError."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and max(len(number), len(count)) <= 5):
            raise ValueError(f"must be i/n, such as 2/8 (got {text!r:.40})")
        made = cls(int(number), int(count))
        if not 1 <= made.number <= made.count <= MAX_SHARDS:
            raise ValueError(f"must be i/n with i from 1 to n, and n at most {MAX_SHARDS} (got {text!r:.40})")
        return made

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def has(self, id: LineId) -> bool:
        """Whether the row with this id is in the shard."""
        digest = hashlib.blake2b(str(id).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self.count == self.number - 1

    def file_of(self, out: Path) -> Path:
        """The file of this shard's records: answers.csv -> answers.2of8.jsonl."""
        name = out.name.removesuffix(".gz")
        stem = name.removesuffix(Path(name).suffix)
        return out.with_name(f"{stem}.{self.number}of{self.count}.jsonl")
