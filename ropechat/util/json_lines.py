"""Records as lines of JSON."""

import json
import math
from typing import Any


def finite(value: float | None) -> float | None:
    """The number, or None (null) for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def json_line(record: dict[str, Any]) -> str:
    """A record as a line of JSON, with the newline."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
