"""Counts as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def figures(found: Counter[str], faults: Sequence[str]) -> str:
    """The counts that are not zero, then the faults: those that were found, or that there was none of them.

    found: what was counted -> how often, the names in the plural ("rows lost"). faults: those that are wrong.
    """
    counts = [f"{count:,} {name}" for name, count in found.items() if count and name not in faults]
    wrong = [f"{found[name]:,} {name}" for name in faults if found[name]]
    none = f"no {', '.join(faults[:-1])} or {faults[-1]}" if len(faults) > 1 else f"no {faults[0]}"
    return "; ".join(filter(None, (", ".join(counts), ", ".join(wrong) or none)))
