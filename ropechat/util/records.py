"""Records with columns: as JSON lines, as CSV, and as tables.

A record is declared once, as a dictionary: what a line of JSON has. CSV takes columns of it by their names,
see `cells`; a table is a list of `Column`.
"""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ropechat.util.text import clean, visible
from ropechat.util.width import cell_width, fit

_SIDES = ("a", "b")
_CRLF = "\r\n"


class TokenText(str):
    """The bytes of a token as text, with U+FFFD for an incomplete character; in CSV as `visible` marks."""

    data: bytes

    def __new__(cls, data: bytes) -> "TokenText":
        made = super().__new__(cls, data.decode("utf-8", "replace"))
        made.data = data
        return made


class ByteValues(list[int]):
    """Bytes: in JSON as numbers, in CSV in hex."""


def finite(value: float | None) -> float | None:
    """The number, or None (null) for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def json_line(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON, with the newline. NaN and infinity are null."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return finite(value) if isinstance(value, float) else value


def cells(record: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a record in CSV, which have no control characters.

    "span" becomes start and end; "kl" of the side "b" of a comparison kl_b; "bits" of another object,
    "worst", worst_bits.
    """
    found = dict[str, Any]()
    for name, value in record.items():
        if name == "span":
            found["start"], found["end"] = value
        elif isinstance(value, dict):
            for part, inner in cells(value).items():
                found[f"{part}_{name}" if name in _SIDES else f"{name}_{part}"] = inner
        else:
            found[name] = value if type(value) in (int, float) else cell(value)
    return found


def cell(value: Any) -> Any:
    """A value of a record as CSV has it."""
    if isinstance(value, TokenText):
        return visible(value.data)
    if isinstance(value, ByteValues):
        return bytes(value).hex()
    if isinstance(value, str):
        return clean(value)
    return int(value) if isinstance(value, bool) else value


class Csv:
    """Makes lines of CSV (RFC 4180). names: of the columns; a column that a row does not have is empty."""

    def __init__(self, names: Sequence[str], delimiter: str = ",", end: str = _CRLF) -> None:
        import csv  # imported here: rarely needed

        self._text, self._end, self._names = io.StringIO(), end, names
        # The writer quotes cells with a character of its line end, so it always has the longest one.
        self._rows = csv.writer(self._text, delimiter=delimiter, lineterminator=_CRLF)
        self.head = self.line(dict(zip(names, names, strict=True)))

    def line(self, row: Mapping[str, Any]) -> str:
        """The line of a row."""
        self._rows.writerow(map(row.get, self._names))
        line = self._text.getvalue().removesuffix(_CRLF) + self._end
        self._text.seek(0)
        self._text.truncate()
        return line


class Column(NamedTuple):
    """A column of a table.

    width: of its cells, right-aligned; negative: left-aligned and cut; 0: of the last one. show: the cell of
    a record.
    """

    head: str
    width: int
    show: Callable[[Any], str]

    def cell(self, text: str) -> str:
        """The text in the width of the column."""
        if self.width < 0:
            return fit(text, -self.width)
        return " " * (self.width - cell_width(text)) + text


class Table:
    """Makes lines of a table for a terminal. columns: without those that are None."""

    def __init__(self, *columns: Column | None) -> None:
        self._columns = [column for column in columns if column is not None]

    @property
    def head(self) -> str:
        """The line with the headings."""
        return "  ".join(column.cell(column.head) for column in self._columns).rstrip()

    def line(self, record: Any) -> str:
        """The line of a record."""
        return "  ".join(column.cell(column.show(record)) for column in self._columns)


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """Lines with columns of equal width, the first `left` to the left (None: all), others to the right."""
    widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
    signs = [-1 if left is None or at < left else 1 for at in range(len(widths))]
    columns = [Column("", sign * width, str) for sign, width in zip(signs, widths, strict=True)]
    return ["  ".join(map(Column.cell, columns, row)).rstrip() for row in rows]


def number(value: float | None, form: str) -> str:
    """A number in a format such as ".2f", ".1%" or ","; – for None and NaN, ∞ for infinity."""
    if value is None or math.isnan(value):
        return "–"
    return format(value, form) if math.isfinite(value) else ("∞" if value > 0 else "-∞")


def bar(share: float, width: int) -> str:
    """A horizontal bar of exactly `width` columns, filled to `share` in eighths of a column."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8) if math.isfinite(share) else 0
    full, rest = divmod(eighths, 8)
    return fit("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else ""), width)
