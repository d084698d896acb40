"""When garbage is collected while a chat is open."""

from __future__ import annotations

import gc

import pytest

from ropechat.tui.terminal import gc_pause


class Ring:
    """Refers to itself."""

    alive = 0

    def __init__(self) -> None:
        self.self = self
        Ring.alive += 1

    def __del__(self) -> None:
        Ring.alive -= 1


@pytest.mark.slow
def test_rest_collects_what_is_new_and_looks_at_nothing_twice() -> None:
    gc_pause.hold_off()
    gc_pause.rest()
    kept = Ring()
    Ring()
    gc_pause.rest()
    assert Ring.alive == 1
    assert gc.get_freeze_count() > 1000
    del kept  # frozen: only another model's arrival has it looked at again
    gc_pause.rest()
    assert Ring.alive == 1
    gc_pause.thaw()
    gc_pause.rest()
    assert Ring.alive == 0


def test_few_young_objects_at_a_time_whatever_a_start_had() -> None:
    gc.set_threshold(50_000)
    gc_pause.hold_off()
    assert gc.get_threshold()[0] < 1000


def test_without_a_chat_nothing_changes() -> None:
    frozen, before = gc.get_freeze_count(), gc.get_threshold()
    gc_pause.rest()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (frozen, before)
