"""Seeds of rows: a row draws the same tokens in any file, order, part of a file, or run."""

import hashlib

from ropechat.sampling import SEED_BITS


def row_seed(run_seed: int, id: str | int | float, sample: int = 0, turn: int = 0) -> int:
    """The seed of a row's sample and turn, below 2^53: a keyed hash of its id.

    It does not depend on the row's place or on other rows. With it `ropechat run --seed` draws the same
    tokens.
    """
    data = f"{id}\0{sample}" if turn == 0 else f"{id}\0{sample}\0{turn}"
    digest = hashlib.blake2b(data.encode(), digest_size=8, key=run_seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") & ((1 << SEED_BITS) - 1)
