"""The table of `ropechat models list`."""

from collections.abc import Iterator, Sequence

from ropechat.models.installed import ModelSummary, format_count
from ropechat.util.text import cell_width, fit, format_bytes, one_line

_TITLES = ("MODEL", "SIZE", "FAMILY", "PARAMETERS", "DTYPE", "CONTEXT", "TEMPLATE", "WHERE")


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
        one_line(str(row.path)),
    )


def table(found: Sequence[ModelSummary]) -> Iterator[str]:
    """Yield the lines of the table, with the reason below a model that cannot be loaded."""
    if not found:
        yield "no models found; download one with `ropechat models pull org/name`"
        return
    lines = [_TITLES, *(_cells_of(row) for row in found)]
    widths = [max(cell_width(line[column]) for line in lines) for column in range(len(_TITLES) - 1)]
    for line, row in zip(lines, (None, *found), strict=True):
        yield "  ".join((*(fit(text, width) for text, width in zip(line, widths, strict=False)), line[-1]))
        if row is not None and row.reason is not None:
            yield f"  cannot load: {one_line(row.reason)}"
