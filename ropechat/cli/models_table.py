"""The tables of `ropechat models list` and `catalog`."""

from collections.abc import Container, Iterator, Mapping, Sequence

from ropechat.models.catalog import CatalogModel
from ropechat.models.installed import ModelSummary, format_count
from ropechat.models.speed import Speed
from ropechat.util.progress import format_rate
from ropechat.util.text import format_bytes, one_line
from ropechat.util.width import cell_width, fit

_TITLES = (
    "MODEL",
    "SIZE",
    "FAMILY",
    "PARAMETERS",
    "DTYPE",
    "CONTEXT",
    "TEMPLATE",
    "READS",
    "WRITES",
    "FROM",
    "WHERE",
)
_CATALOG_TITLES = (
    *("NAME", "MODEL", "SIZE", "NEEDS", "HERE", "CONTEXT", "LICENSE"),
    *("READS", "WRITES", "GOOD FOR"),
)


def _cells_of(row: ModelSummary) -> tuple[str, ...]:
    template = {True: "yes", False: "no", None: "–"}[row.chat_template]
    return (
        one_line(row.name),
        format_bytes(row.size),
        one_line(row.model_type or "–"),
        format_count(row.num_parameters) if row.num_parameters is not None else "–",
        one_line(row.dtype or "–"),
        str(row.context or "–"),
        template,
        format_rate(row.prefill_tok_s) or "–",
        format_rate(row.decode_tok_s) or "–",
        one_line(row.source),
        one_line(str(row.path)),
    )


def table(found: Sequence[ModelSummary]) -> Iterator[str]:
    """Yield the lines of the table, with the reason below a model that cannot be loaded."""
    if not found:
        yield "no models found; `ropechat models catalog` lists some to download"
        return
    lines = _aligned([_TITLES, *(_cells_of(row) for row in found)])
    for line, row in zip(lines, (None, *found), strict=True):
        yield line
        if row is not None and row.reason is not None:
            yield f"  cannot load: {one_line(row.reason)}"


def catalog_table(
    models: Mapping[CatalogModel, Speed],
    here: Container[CatalogModel],
    free: int | None,
    width: int | None,
) -> Iterator[str]:
    """Yield the lines of the catalog's table. models: with the speed that is expected of them here.

    here: models on this machine; free: bytes of memory.

    width: cells of the terminal; if a line is longer, names and texts are below. None: lines are not broken.
    """
    rows = [
        (
            *(one.short[0], one.name, format_bytes(one.size), format_bytes(one.needs)),
            "yes" if one in here else "fits" if free is None or one.needs <= free else "too big",
            *(f"{one.max_position_embeddings:,}", one.license),
            *(format_rate(rate) or "–" for rate in (speed.prefill, speed.decode)),
            one.about,
        )
        for one, speed in models.items()
    ]
    lines = list(_aligned([_CATALOG_TITLES, *rows]))
    if width is None or max(map(cell_width, lines)) <= width:
        yield from lines
        return
    short = _aligned([(row[0], *row[2:-3]) for row in (_CATALOG_TITLES, *rows)])
    for line, row in zip(short, (None, *rows), strict=True):
        yield line.rstrip()
        if row is not None:
            _, name, *_, reads, writes, about = row
            yield f"    {name}: {about}"
            if reads != "–":
                yield f"    reads {reads}, writes {writes} here"


def _aligned(lines: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Columns of equal width; the last one is as it is."""
    widths = [max(cell_width(line[column]) for line in lines) for column in range(len(lines[0]) - 1)]
    for line in lines:
        yield "  ".join((*(fit(text, width) for text, width in zip(line, widths, strict=False)), line[-1]))
