"""Views as files: JSON, CSV (one value per line), SVG and HTML."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ropechat.inspector.rope import svg, term
from ropechat.inspector.rope.blocks import Heat, Note, Plot, Table
from ropechat.util.records import Csv
from ropechat.util.text import escape_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ropechat.inspector.rope.blocks import Block, Cell, View

CSV_COLUMNS = ("view", "part", "row", "column", "value")


def json_text(views: Sequence[View], title: str) -> Iterator[str]:
    """Yield one JSON object: {"title", "views": [{"name", "title", "blocks": [{"kind", ...}]}]}."""
    found = [
        {"name": view.name, "title": view.title, "blocks": [_record(block) for block in view.blocks]}
        for view in views
    ]
    yield (
        escape_json(json.dumps({"title": title, "views": found}, allow_nan=False, ensure_ascii=False)) + "\n"
    )


def _record(block: Block) -> dict[str, Any]:
    if isinstance(block, Note):
        return {"kind": "note", "text": block.text}
    if isinstance(block, Table):
        return {"kind": "table", "name": block.name, "columns": block.columns, "rows": block.rows}
    axes = {"name": block.name, "x_label": block.x_label, "y_label": block.y_label}
    if isinstance(block, Plot):
        curves = [{"name": one.name, "x": one.x.tolist(), "y": one.y.tolist()} for one in block.curves]
        return {"kind": "plot", **axes, "curves": curves}
    return {
        "kind": "heat",
        **axes,
        "x": block.x.tolist(),
        "y": block.y.tolist(),
        "values": block.values.tolist(),
    }


def csv_text(views: Sequence[View], title: str) -> Iterator[str]:
    """Yield a header and a line per value: of a table, its row's number and its column; of a plot, x and the
    curve; of a heat map, y and x. A value that does not exist is empty."""
    out = Csv(CSV_COLUMNS, end="\n")
    yield out.head
    yield from (out.line(dict(zip(CSV_COLUMNS, row, strict=True))) for row in _csv_rows(views))


def _csv_rows(views: Sequence[View]) -> Iterator[tuple[Cell, ...]]:
    for view in views:
        for block in view.blocks:
            if isinstance(block, Table):
                for number, row in enumerate(block.rows):
                    for column, value in zip(block.columns, row, strict=True):
                        yield view.name, block.name, number, column, value
            elif isinstance(block, Plot):
                for curve in block.curves:
                    for x, y in zip(curve.x.tolist(), curve.y.tolist(), strict=True):
                        yield view.name, block.name, x, curve.name, y
            elif isinstance(block, Heat):
                for y, values in zip(block.y.tolist(), block.values.tolist(), strict=True):
                    for x, value in zip(block.x.tolist(), values, strict=True):
                        yield view.name, block.name, y, x, value


def svg_text(views: Sequence[View], title: str) -> Iterator[str]:
    """Yield one SVG file."""
    return svg.document(views, title)


def html_text(views: Sequence[View], title: str) -> Iterator[str]:
    """Yield one HTML file without script and without requests."""
    from ropechat.inspector.page import page

    return page(title, _html_body(views))


def _html_body(views: Sequence[View]) -> Iterator[str]:
    from ropechat.inspector.page import table, text

    for view in views:
        yield f"<section><h2>{text(view.title)}</h2>\n"
        for block in view.blocks:
            if isinstance(block, Note):
                yield f"<p>{text(block.text)}</p>\n"
            elif isinstance(block, Table):
                numeric = [at for at in range(len(block.columns)) if _is_numeric(block, at)]
                rows = [[term.format_cell(value) for value in row] for row in block.rows]
                if block.thin:
                    yield f"<details><summary>{text(block.name)}: {len(rows)} rows</summary>\n"
                yield from table(block.columns, rows, numbers=numeric)
                yield "</details>\n" if block.thin else ""
            else:
                yield svg.figure(block)
        yield "</section>\n"


def _is_numeric(table: Table, column: int) -> bool:
    return not any(isinstance(row[column], str) for row in table.rows)


WRITERS = {"json": json_text, "csv": csv_text, "svg": svg_text, "html": html_text}
"""A writer per format: (views, title) -> pieces of the file."""
