"""`ropechat batch --agree`: of the samples of a row the most frequent answer, and how far they agree."""

from collections.abc import Mapping, Sequence
from typing import Any

from ropechat.engine.agreement import agreement_of, best_answer

Records = Sequence[Mapping[str, Any]]


def agreed(records: Records) -> Records:
    """The one record of a row: that of the most frequent answer, with "agreement".

    A failed sample has no vote, but one that failed for `fail_below` has; without any vote it is the first
    record.
    """
    found = agreement_of_records(records)
    if found is None:
        return records[:1]
    place = found.pop("best")
    return [{**records[place], "agreement": found}]


def agreement_of_records(records: Records) -> dict[str, Any] | None:
    """What `agreement_of` says of the answers, and "best": the index of the record with the first of them.

    None without any answer.
    """
    voting = [place for place, record in enumerate(records) if "text" in record]
    if not voting:
        return None
    is_json = any("parsed" in records[place] for place in voting)
    texts = [records[place]["text"] for place in voting]
    best = voting[best_answer(texts, is_json=is_json)]
    return {**agreement_of(texts, is_json=is_json), "best": best}
