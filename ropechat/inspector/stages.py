"""What each stage of the sampler did, as text and as JSON; which tokens of a text the settings can produce.

A JSON record of a token has the key `sampler`:

    cut, rank, p   the stage that cut the token (null: none), its rank after bias and penalties, its
                   probability at the draw
    interval, u    the token is drawn for start <= u < end (null if cut, and for a given text with xtc); the
                   random number that was drawn (null for greedy and for a given text)
    stages         [{"name", "kept", "mass", "entropy"}]: how many candidates were left, their raw
                   probability, and the entropy of what was left, renormalized, in nats; of top_n_sigma and of
                   a drawn xtc also "value", see `ropechat.trace.Stage`
    candidates     [{"id", "rank", "cut", "penalized", "p", "by_stage"}]: the ids of `top`, then the token
                   itself if it is not in `top`; `by_stage` has the probability after each of `stages`

The last record has the key `producible`: {"tokens", "produced", "share", "cut_by": {stage: tokens}}, of the
tokens with the roles that sums cover.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ropechat.sampling import Sampling, used_settings
from ropechat.trace import Candidate, TokenScore
from ropechat.util.records import finite


def sampler_record(token: TokenScore) -> dict[str, Any]:
    """The key `sampler` of a token's JSON record; {} if the stages were not recorded."""
    own = token.outcome
    if own is None:
        return {}
    return {
        "sampler": {
            "cut": own.cut,
            "rank": own.rank,
            "p": own.probability,
            "interval": token.interval,
            "u": token.u,
            "stages": [
                {"name": name, "kept": kept, "mass": finite(mass), "entropy": finite(entropy)}
                | ({} if value is None else {"value": value})
                for name, kept, mass, entropy, value in token.stages
            ],
            "candidates": [
                {
                    "id": one.id,
                    "rank": one.rank,
                    "cut": one.cut,
                    "penalized": one.penalized,
                    "p": one.probability,
                    "by_stage": list(one.by_stage),
                }
                for one in token.candidates
            ],
        }
    }


def settings_record(sampling: Sampling | None) -> dict[str, Any]:
    """The key `sampling` of a trace's first JSON record; {} without settings."""
    if sampling is None:
        return {}
    return {"sampling": asdict(sampling)}


def describe_settings(sampling: Sampling) -> str:
    """The settings that are switched on: "temperature 0.7, top_p 0.9"."""
    parts = [f"{name} {value:g}" for name, value in used_settings(sampling).items()]
    parts += [f"{len(sampling.logit_bias)} biases"] if sampling.logit_bias else []
    parts += [f"a {sampling.grammar.name}"] if sampling.grammar is not None else []
    return ", ".join(parts) or "temperature 1 without a filter"


def stage_parts(token: TokenScore) -> list[str]:
    """What became of a token, then what each stage left at its place: "temperature 512", "top_p 6 (91.2%)".

    Empty if that was not recorded.
    """
    own = token.outcome
    if own is None:
        return []
    left = [
        f"{stage.name} {stage.kept:,}"
        + (f" ({stage.mass:.1%})" if stage.mass < 0.9995 else "")
        + (f" u {stage.value:.4f}" if stage.name == "xtc" and stage.value is not None else "")
        for stage in token.stages
    ]
    return [*_result(own, token.interval, token.u), *(left or ["no stage"])]


def _result(own: Candidate, interval: tuple[float, float] | None, u: float | None) -> list[str]:
    if own.cut is not None:
        return [f"cut by {own.cut}, rank {own.rank:,}"]
    if interval is None:
        return [f"p {own.probability:.3g}"]
    start, end = interval
    drawn = "" if u is None else f" {u:.4f}"
    return [f"p {own.probability:.3f}", f"u{drawn} in {start:.4f} to {end:.4f}"]


def stage_line(token: TokenScore) -> str:
    """`stage_parts` in one line; "" if not recorded."""
    return " · ".join(stage_parts(token))


class Producible:
    """Counts the tokens that the settings can produce, and what cuts the others."""

    def __init__(self, roles: Iterable[str] = ("text",)) -> None:
        self.roles = tuple(roles)
        self.scored = self.produced = 0
        self.cuts: Counter[str] = Counter()

    def add(self, token: TokenScore) -> None:
        """Count a token if it has one of the roles and its stages were recorded."""
        own = token.outcome
        if own is None or token.role not in self.roles:
            return
        self.scored += 1
        if own.cut is not None:
            self.cuts[own.cut] += 1
        else:
            self.produced += own.probability > 0.0

    @property
    def share(self) -> float:
        """Share of the tokens that can be produced; NaN without tokens."""
        return self.produced / self.scored if self.scored else math.nan

    def record(self) -> dict[str, Any]:
        """The counts for JSON."""
        return {
            "producible": {
                "tokens": self.scored,
                "produced": self.produced,
                "share": finite(self.share),
                "cut_by": dict(self.cuts.most_common()),
            }
        }

    def line(self, sampling: Sampling | None) -> str:
        """The counts as a sentence. sampling: None if unknown."""
        settings = "the settings" if sampling is None else describe_settings(sampling)
        cuts = "; ".join(f"{name} cuts {count:,}" for name, count in self.cuts.most_common())
        return f"{settings} can produce {self.produced:,} of {self.scored:,} tokens ({self.share:.1%})" + (
            f"; {cuts}" if cuts else ""
        )
