"""The tables of `ropechat models list` and `catalog`."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from ropechat.models.catalog import CatalogModel
from ropechat.models.installed import ModelSummary, format_count
from ropechat.models.speed import Speed
from ropechat.util.progress import format_rate
from ropechat.util.records import aligned
from ropechat.util.text import format_bytes, one_line
from ropechat.util.width import cell_width

_CATALOG_TITLES = (
    *("NAME", "MODEL", "SIZE", "NEEDS", "HERE", "CONTEXT", "LICENSE"),
    *("READS", "WRITES", "GOOD FOR"),
)


_COLUMNS: dict[str, Callable[[ModelSummary], str]] = {
    "MODEL": lambda row: one_line(row.name),
    "SIZE": lambda row: format_bytes(row.size),
    "FAMILY": lambda row: one_line(row.model_type or "–"),
    "PARAMETERS": lambda row: "–" if row.num_parameters is None else format_count(row.num_parameters),
    "DTYPE": lambda row: one_line(row.dtype or "–"),
    "CONTEXT": lambda row: str(row.context or "–"),
    "TEMPLATE": lambda row: {True: "yes", False: "no", None: "–"}[row.chat_template],
    "READS": lambda row: format_rate(row.prefill_tok_s) or "–",
    "WRITES": lambda row: format_rate(row.decode_tok_s) or "–",
    "FROM": lambda row: one_line(row.source),
    "WHERE": lambda row: one_line(str(row.path)),
}


def table(found: Sequence[ModelSummary]) -> Iterator[str]:
    """Yield the lines of the table, with the reason below a model that cannot be loaded."""
    if not found:
        yield "no models found; `ropechat models catalog` lists some to download"
        return
    lines = aligned([[*_COLUMNS], *([show(row) for show in _COLUMNS.values()] for row in found)])
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
    lines = aligned([_CATALOG_TITLES, *rows])
    if width is None or max(map(cell_width, lines)) <= width:
        yield from lines
        return
    short = aligned([(row[0], *row[2:-3]) for row in (_CATALOG_TITLES, *rows)])
    for line, row in zip(short, (None, *rows), strict=True):
        yield line
        if row is not None:
            _, name, *_, reads, writes, about = row
            yield f"    {name}: {about}"
            if reads != "–":
                yield f"    reads {reads}, writes {writes} here"
