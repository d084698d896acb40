"""The garbage collector stops every thread: it works where nobody waits for a frame."""

from __future__ import annotations

import gc

_YOUNG, _MIDDLE = 700, 10  # few at a time, so that nobody waits for it
_NEVER = 1 << 30  # collections of young objects until old ones are looked at, too


def hold_off() -> None:
    """From now on old objects are looked at by `rest` only: a long answer has many, and none is garbage."""
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


def thaw() -> None:
    """What was not looked at again may be garbage now: an old model goes when another one comes."""
    gc.unfreeze()


def rest() -> None:
    """Collect what came since the last call; whatever survives is not looked at again."""
    if gc.get_threshold()[2] == _NEVER:
        gc.collect()
        gc.freeze()
