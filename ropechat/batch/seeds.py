"""Seeds of rows: a row draws the same tokens in any file, order, part of a file, or run."""

import hashlib

from ropechat.sampling import SEED_BITS


def row_seed(run_seed: int, id: str | int | float, sample: int = 0) -> int:
    """The seed of a row's sample, below 2^53: a keyed hash of its id.

    It does not depend on the row's place or on other rows. With it `ropechat run --seed` draws the same
    tokens.
    """
    key = run_seed.to_bytes(8, "little")
    digest = hashlib.blake2b(f"{id}\0{sample}".encode(), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little") & ((1 << SEED_BITS) - 1)


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a row's later turn; `seed` is that of its first one, turn 0."""
    return row_seed(seed, "turn", turn) if turn else seed
