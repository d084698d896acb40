"""`ropechat batch --agree`: of the samples of a row the most frequent answer, and how far they agree."""

from collections.abc import Mapping, Sequence
from typing import Any

from ropechat.engine.agreement import agreement_of, best_answer


def agreed(records: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The one record of a row: that of the most frequent answer, with "agreement".

    A failed sample has no vote, but one that failed for `fail_below` has; without any vote it is the first
    record.
    """
    voting = [record for record in records if "text" in record]
    if not voting:
        return records[:1]
    is_json = any("parsed" in record for record in voting)
    texts = [record["text"] for record in voting]
    best = voting[best_answer(texts, is_json=is_json)]
    return [{**best, "agreement": agreement_of(texts, is_json=is_json)}]
