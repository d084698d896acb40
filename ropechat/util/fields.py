"""A value of a file that somebody else wrote, with its place in the file."""

import math
from typing import Any

from ropechat.errors import HistoryError, RopechatError
from ropechat.util.text import replace_surrogates

MIN_TIME, MAX_TIME = (
    -62_135_596_800.0,
    253_402_300_799.0,
)  # seconds since 1970 of the years 1 to 9999, which datetime knows


class Field:
    """A value of the file with its path; invalid values raise `error` that names file and path.

    By hand: msgspec would be one more compiled dependency, and its errors do not show the value.
    """

    __slots__ = ("_error", "_file", "place", "value")

    def __init__(
        self, value: Any, place: str, error: type[RopechatError] = HistoryError, file: str = ""
    ) -> None:
        self.value, self.place, self._error, self._file = value, place, error, file

    @property
    def where(self) -> str:
        """The file, if it is known, and the place in it."""
        return ": ".join(filter(None, (self._file, self.place)))

    def fail(self, allowed: str) -> RopechatError:
        return self._error(f"{self.where}: must be {allowed} (got {_shown(self.value, 40):.40})")

    def _inner(self, value: Any, place: str) -> "Field":
        return Field(value, place, self._error, self._file)

    def of(self, name: str) -> "Field":
        if not isinstance(self.value, dict):
            raise self.fail("an object")
        return self._inner(self.value.get(name), f"{self.place}.{name}" if self.place else name)

    def items(self, most: int = 1_000_000) -> "list[Field]":
        if not isinstance(self.value, list):
            raise self.fail("a list")
        if len(self.value) > most:
            raise self.fail(f"a list of at most {most:,}")
        return [self._inner(value, f"{self.place}[{index}]") for index, value in enumerate(self.value)]

    def optional_items(self) -> "list[Field]":
        return [] if self.value is None else self.items()

    def names(self) -> list[str]:
        if not isinstance(self.value, dict):
            raise self.fail("an object")
        return list(self.value)

    def text(self, default: str | None = None) -> str:
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, str):
            raise self.fail("a string")
        return replace_surrogates(self.value)

    def one_of(self, allowed: Any, default: str | None = None) -> Any:
        value = default if self.value is None else self.value
        if not isinstance(value, str | None) or value not in allowed:
            raise self.fail(f"one of {', '.join(map(str, allowed))}")
        return value

    def count(self, limit: int = 2**32 - 1, *, required: bool = False) -> int:
        """An integer from 0; 0 for null, unless it is required."""
        value = 0 if self.value is None and not required else self.value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
            raise self.fail(f"an integer from 0 to {limit}")
        return value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.fail("true or false")
        return self.value

    def optional_text(self) -> str | None:
        return None if self.value is None else self.text()

    def number(self) -> float:
        """The number; NaN for null."""
        if self.value is None:
            return math.nan
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.fail("a number")
        try:
            value = float(self.value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):  # Python reads NaN and Infinity, which JSON does not have
            raise self.fail("a finite number")
        return value

    def time(self) -> float:
        """Seconds since 1970; 0 for null."""
        value = self.optional() or 0.0
        if not MIN_TIME <= value <= MAX_TIME:
            raise self.fail("seconds since 1970, of a year from 1 to 9999")
        return value

    def time_or_unknown(self) -> float:
        """As `time`, but 0 for a number beyond all years: a program may count milliseconds."""
        value = self.optional() or 0.0
        return value if MIN_TIME <= value <= MAX_TIME else 0.0

    def share(self) -> float:
        value = self.number()
        if not 0.0 <= value <= 1.0:
            raise self.fail("a number from 0 to 1")
        return value

    def optional(self) -> float | None:
        value = self.number()
        return None if math.isnan(value) else value


def _shown(value: Any, room: int) -> str:
    """As repr, but no more of a large value than fits."""
    if isinstance(value, str):
        return repr(value[: room + 1])
    if not isinstance(value, list | dict):
        return repr(value)
    text = first = "{" if isinstance(value, dict) else "["
    for one in value:
        if len(text) > room:
            break
        text += "" if text is first else ", "
        text += _shown(one, room - len(text))
        if isinstance(value, dict):
            text += f": {_shown(value[one], room - len(text))}"
    return text + ("}" if first == "{" else "]")
