"""How far several answers to one question agree: the share of the most frequent one, and their entropy."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ropechat.engine.json_fields import fields_of, name_of

ABSENT = "absent"
"""Stands for the value of a field that an answer does not have; no JSON value is written so."""


def agreement_of(texts: Sequence[str], *, is_json: bool = False) -> dict[str, Any]:
    """The agreement of some answers, at least one.

    "samples": how many; "answers": how many gave each, the most frequent first, then in their order;
    "share": that of the first; "entropy": of the shares, in nats (0: all agree). Answers are compared without
    spaces at their ends. is_json: they are compared as JSON, and "fields" has "values", "share" and "entropy"
    of each value, by its path, over the answers that are JSON.
    """
    if not is_json:
        return _shares([text.strip() for text in texts], "answers")
    parsed = [_fields(text) for text in texts]
    found = [fields for fields in parsed if fields is not None]
    paths = dict.fromkeys(name for fields in found for name in fields)
    of_fields = {name: _shares([fields.get(name, ABSENT) for fields in found], "values") for name in paths}
    for one in of_fields.values():
        del one["samples"]
    return {**_shares([_canonical(text) for text in texts], "answers"), "fields": of_fields}


def best_answer(texts: Sequence[str], *, is_json: bool = False) -> int:
    """The index of the first answer that is the most frequent one."""
    names = [_canonical(text) if is_json else text.strip() for text in texts]
    best, _ = Counter(names).most_common(1)[0]
    return names.index(best)


def _shares(given: Sequence[str], name: str) -> dict[str, Any]:
    counts = Counter(given).most_common()
    shares = [count / len(given) for _, count in counts]
    entropy = -math.fsum(share * math.log(share) for share in shares) + 0.0
    return {"share": shares[0], "entropy": entropy, "samples": len(given), name: dict(counts)}


def _canonical(text: str) -> str:
    """JSON as the same text for the same value; other text without spaces at its ends."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except (ValueError, RecursionError):
        return text.strip()


def _fields(text: str) -> dict[str, str] | None:
    """The JSON of each field by its path; None of a text that is not JSON."""
    try:
        json.loads(text)
        found = fields_of(text.strip())
    except (ValueError, RecursionError):
        return None
    return {name_of(field.path): json.dumps(field.value, ensure_ascii=False) for field in found}
