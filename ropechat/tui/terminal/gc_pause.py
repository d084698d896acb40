"""Run full garbage collections while the chat is idle, where it is: a collection pauses every thread.

One takes 20 ms of CPU time with an answer of 4,000 tokens and 37 ms with 32,000 (measured on a 2-core VM with
Python 3.11); a frame lasts 33 ms. Objects that `rest` looked at are set aside (frozen), so that CPython's own
full collections, which come where one answer follows another without a pause, look at what was made since.
"""

from __future__ import annotations

import gc
import sys
import time

from ropechat.tui.terminal.textual_compat import forget_what_was_drawn

_YOUNG, _MIDDLE, _OLD = 700, 10, 10
"""Few objects at a time. Those of the last number are looked at once they have also grown by a quarter."""
_GROWTH = 1.125
"""All objects are looked at again once memory has grown so much since the last time: lines and widgets that
are no longer on the screen refer to themselves, so that nothing else frees them."""

_SETTLES_S = 5.0
"""After so long, nothing holds what was left: tasks have removed its widgets, and the inference thread has
answered its last request."""

_is_started = False  # whether `rest` collects
_left = float("-inf")  # when a chat or a model was left, by `time.monotonic`
_least = 0  # allocated blocks: the fewest since all objects were looked at


def start() -> None:
    """Set how often CPython collects, and have `rest` collect from now on."""
    global _is_started
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
    _is_started = True


def thaw() -> None:
    """Have all objects looked at again, now that a chat or a model was left."""
    global _left
    _left = time.monotonic()
    _look_at_all()


def _look_at_all() -> None:
    global _least
    forget_what_was_drawn()
    gc.unfreeze()
    _least = 0


def rest() -> None:
    """Collect objects that were made since the last call.

    Later calls skip those that survive, until memory has grown by an eighth, or a chat or a model was left.
    """
    global _least
    if not _is_started:
        return
    if sys.getallocatedblocks() > _GROWTH * _least:
        _look_at_all()
    gc.collect()
    if time.monotonic() < _left + _SETTLES_S:
        return
    gc.freeze()
    blocks = sys.getallocatedblocks()
    _least = min(_least, blocks) if _least else blocks
