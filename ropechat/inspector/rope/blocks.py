"""What a view consists of: notes, tables, plots and heat maps; each output format draws them in its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ropechat.inspector.rope.formulas import Array

Cell = str | int | float | bool | None
"""A value of a table; None where a number is not defined. Never NaN or infinity."""


@dataclass(frozen=True)
class Note:
    """A sentence or two."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of values under column names. thin: a terminal may show a part of the rows."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    thin: bool = False


@dataclass(frozen=True)
class Curve:
    """A named line through points with finite coordinates."""

    name: str
    x: Array
    y: Array


@dataclass(frozen=True)
class Plot:
    """Curves on shared axes. x_log: the x axis is logarithmic, and every x is positive."""

    name: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_log: bool = False
    y_log: bool = False


@dataclass(frozen=True)
class Heat:
    """A heat map: values [rows, columns] from `low` to `high`, with the coordinate of each row and column."""

    name: str
    x_label: str
    y_label: str
    x: Array
    y: Array
    values: Array
    low: float
    high: float


Block = Note | Table | Plot | Heat


@dataclass(frozen=True)
class View:
    """A part of the report: its name on the command line, a heading, and blocks in reading order."""

    name: str
    title: str
    blocks: tuple[Block, ...] = field(default=())
