"""Replaying recorded draws: (u, probabilities) must give the same id, (seed, position) the same u.

XTC's random number is computed again, too.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ropechat.trace import TokenScore

XTC = "xtc"
"""The stage that has a random number of its own, and removes the best candidates, not the last."""
NUMBERS = ("u", "u of xtc")


class Mismatch(NamedTuple):
    """A recorded draw that its record does not explain."""

    position: int
    id: int
    why: str


class Report(NamedTuple):
    """The result of a replay."""

    draws: int
    mismatches: tuple[Mismatch, ...]


def replay(tokens: Iterable[TokenScore], *, seed: int | None = None) -> Report:
    """Rebuild each recorded draw and compare it with the recorded token.

    Tokens without a record of their draw are skipped. With a seed, each u (and that of xtc) is computed again
    by the engine's generator.
    """
    from ropechat.engine.native import load_core

    draws, found = 0, list[Mismatch]()
    for token in tokens:
        if token.outcome is None or (token.u is None and token.outcome.probability < 1.0):
            continue  # scored, not drawn
        draws += 1
        id = drawn_id(token)
        if id != token.id:
            why = f"u = {token.u} selects " + ("none of the candidates" if id is None else f"id {id}")
            found.append(Mismatch(token.index, token.id, why))
        elif seed is not None and token.u is not None:
            drawn = (token.u, next((stage.value for stage in token.stages if stage.name == XTC), None))
            for name, u, expected in zip(
                NUMBERS, drawn, load_core().uniforms(seed, 0, token.index), strict=True
            ):
                if u is not None and u != expected:
                    why = f"{name} = {u}, but seed {seed} gives {expected}"
                    found.append(Mismatch(token.index, token.id, why))
    return Report(draws, tuple(found))


def drawn_id(token: TokenScore) -> int | None:
    """The id that the recorded candidates and `u` select, as the engine does; None if they select none.

    Greedy sampling selects the candidate with probability 1. Otherwise the survivors are laid side by side in
    [0, 1) in order of rank, and u selects the one whose interval contains it. Where candidates in between are
    not recorded, the recorded interval of the token itself decides.
    """
    survivors = sorted((one for one in token.candidates if one.cut is None), key=lambda one: one.rank)
    if token.u is None:
        return next((one.id for one in survivors if one.probability == 1.0), None)
    excluded = sum(one.cut == XTC for one in token.candidates)
    start, last = 0.0, None
    for place, one in enumerate(survivors, 1 + excluded):
        if one.rank != place:
            break
        start += one.probability
        if token.u < start:
            return one.id
        last = one
    if last is not None and token.stages and last.rank == token.stages[-1].kept + excluded:
        return last.id  # rounding: the probabilities sum to a little less than 1
    if token.interval is not None and token.interval[0] <= token.u < token.interval[1]:
        return token.id
    return None
