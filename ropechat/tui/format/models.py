"""The lists of models: the rows that match a typed text, and the text of a row and a download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from textual.content import Content

from ropechat import builtin
from ropechat.chat.download import Stage
from ropechat.engine.native import free_memory
from ropechat.models import recent
from ropechat.models.catalog import CatalogModel, closest_short, expected_of, read_catalog, shown_name
from ropechat.models.folders import models_below
from ropechat.models.installed import ModelSummary, format_count
from ropechat.models.resolve import hub_name
from ropechat.models.speed import known_machine, known_speeds
from ropechat.tui.widgets.bars import draw_meter
from ropechat.util.paths import expand_home
from ropechat.util.progress import format_rate
from ropechat.util.text import format_bytes, one_line
from ropechat.util.width import cell_width, fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ropechat.chat.download import Download
    from ropechat.models.speed import Speed
    from ropechat.tui.commands.keymap import Keymap

Row: TypeAlias = "ModelSummary | CatalogModel | str"
"""A model on this machine, one of the catalog, or a typed Hub id or path."""

COLUMNS = (("params", 6), ("size", 7), ("≈needs", 7), ("tok/s", 5), ("context", 7))
NARROW_COLUMNS = COLUMNS[1:3]
LAST = 10  # cells of the last column, which each section names
RECENT, HERE = ("recent", "from"), ("on this machine", "from")  # a section, and its last column
TO_GET, A_PATH = ("to download", "licence"), ("a path", "")
WIDE, WIDEST = 76, 100  # cells: least for all columns, and of the whole dialog
FRAME = 7  # cells around a row: frame, scroll bar, mark
METER = 24
PATHS = ("/", "./", "../", "~")


def key_of(row: Row) -> str:
    """The key of a row: the same for a model on this machine and one to download."""
    return str(row.hub_name) if isinstance(row, CatalogModel) else getattr(row, "name", str(row))


def is_loaded(row: Row) -> bool:
    """Whether a row is loaded when it is chosen; others are downloaded, or cannot be loaded."""
    if isinstance(row, ModelSummary):
        return row.reason is None
    return isinstance(row, str) and row.startswith(PATHS)


def models_here(rows: Sequence[ModelSummary], wanted: str) -> list[Row]:
    """The models on this machine that a text names; of a typed folder the models in it, if it has several."""
    if not wanted.startswith(PATHS):
        return [row for row in rows if _holds(wanted, (row.name, *_names_in_catalog(row)))]
    found = list(models_below(expand_home(wanted), wanted, lambda note: None, depth=0))
    return [str(one.path) for one in found] if len(found) > 1 else [wanted]


def models_to_get(rows: Sequence[ModelSummary], wanted: str) -> list[Row]:
    """The models of the catalog that a text names and that are not among `rows`, and a typed Hub id."""
    if wanted.startswith(PATHS):
        return []
    here = [row for row in rows if row.reason is None]
    found: list[Row] = [
        one
        for one in read_catalog()
        if _holds(wanted, _names_of(one)) and not any(one.is_model(row.name, row.path) for row in here)
    ]
    known = {key_of(row) for row in (*here, *found)}
    typed = "/" in wanted and hub_name(wanted) is not None and wanted not in known
    return [*found, wanted] if typed else found


def _holds(wanted: str, names: Iterable[str]) -> bool:
    return any(wanted.lower() in name.lower() for name in names)


def _names_of(model: CatalogModel) -> tuple[str, ...]:
    return (model.name, *model.short, str(model.hub_name))


def _names_in_catalog(row: ModelSummary) -> tuple[str, ...]:
    """The names that the catalog has for a model on this machine."""
    return next((_names_of(one) for one in read_catalog() if one.is_model(row.name, row.path)), ())


def _fits(needs: int | None) -> bool:
    """Whether a number of bytes fits in the free memory; True if either is unknown."""
    free = free_memory()
    return needs is None or free is None or needs <= free


def rates_of(row: ModelSummary | CatalogModel, known: Sequence[Speed]) -> tuple[float | None, float | None]:
    """Tokens per second of reading and writing that a model reaches here, or is expected to."""
    if isinstance(row, ModelSummary):
        return row.prefill_tok_s, row.decode_tok_s
    expected = expected_of(row, known, known_machine())
    return expected.prefill, expected.decode


def format_count_rate(rate: float | None) -> str:
    """Tokens per second in at most five cells."""
    return "–" if rate is None else f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}"


class RowLayout:
    """How rows are laid out on a screen of this width."""

    def __init__(self, width: int) -> None:
        self._known = known_speeds()
        self._is_wide = width >= WIDE
        self._columns = COLUMNS if self._is_wide else NARROW_COLUMNS
        numbers, last = sum(width + 1 for _, width in self._columns), LAST + 2 if self._is_wide else 0
        self._name = max(16, min(WIDEST, width) - FRAME - numbers - last)  # cells

    def section(self, first: Row | None) -> Content:
        """The name of the section that begins with a row, and of its columns."""
        name, last = A_PATH if isinstance(first, str) and first.startswith(PATHS) else TO_GET
        if isinstance(first, ModelSummary):
            name, last = RECENT if first.source == recent.SOURCE else HERE
        columns = "".join(name.rjust(width + 1) for name, width in self._columns) if last else ""
        last = f"  {last}" if self._is_wide else ""
        return Content.assemble((name.ljust(self._name + 2), "bold $quiet"), (columns + last, "$quiet"))

    def row(self, row: Row, *, is_current: bool) -> Content:
        """A row of the list. is_current: whether the model is loaded."""
        if isinstance(row, str):
            mark, what = ("  ", "load") if row.startswith(PATHS) else ("↓ ", "download")
            return Content.assemble((mark, "$primary"), f"{what} {one_line(row)}")
        if isinstance(row, CatalogModel):
            mark, style = ("↓", "$primary") if _fits(row.needs) else ("!", "$warning")
            context, last = row.max_position_embeddings, row.license
        else:
            mark, style = ("!", "$warning") if row.reason else (" ", "")
            mark, style = ("●", "$primary") if is_current else (mark, style)
            place = row.path.parent if row.source == recent.SOURCE else Path(row.source)
            context, last = row.context or 0, place.name
        values = {
            "params": "–" if row.num_parameters is None else format_count(row.num_parameters),
            "size": format_bytes(row.size),
            "≈needs": "–" if row.needs is None else format_bytes(row.needs),
            "tok/s": format_count_rate(rates_of(row, self._known)[1]),
            "context": f"{context:,}" if context else "–",
        }
        parts: list[tuple[str, str]] = [
            (f"{mark} ", style),
            (fit(self._shorten(one_line(shown_name(row.name))), self._name), ""),
        ]
        for name, width in self._columns:
            text = one_line(values[name])
            text = fit(text, width) if cell_width(text) > width else text.rjust(width)
            parts.append((" " + text, "$warning" if name == "≈needs" and not _fits(row.needs) else "$quiet"))
        if self._is_wide:
            parts.append(("  " + fit(one_line(last), LAST), "$quiet"))
        return Content.assemble(*parts)

    def _shorten(self, name: str) -> str:
        """A name without its owner and "-GGUF", if it is too long: its end is more informative."""
        if cell_width(name) <= self._name or "/" not in name:
            return name
        return f"…/{name.rpartition('/')[2].replace('-GGUF:', ':')}"


def _rates_in_words(row: ModelSummary | CatalogModel) -> str:
    """The rates of a model on this machine, as the end of a sentence; "" if nothing was measured yet."""
    prefill, decode = rates_of(row, known_speeds())
    found = [
        f"reads {format_rate(prefill)}" if prefill else "",
        f"writes {format_rate(decode)}" if decode else "",
    ]
    return "".join(f" · {words}" for words in found if words)


def describe_row(row: Row | None, wanted: str) -> tuple[str, str]:
    """(the text about the selected row, its style). wanted: the typed text, for which there may be no row."""
    if row is None:
        near = closest_short(wanted)
        also = f"did you mean {near}?" if near else "type a Hub id (org/name) or a path"
        return f"not found here; {also}", "$quiet"
    if isinstance(row, str):
        return "⏎ loads it" if row.startswith(PATHS) else "⏎ shows size and files first", "$quiet"
    if isinstance(row, CatalogModel):
        fits = "fits in memory" if _fits(row.needs) else "too big for the free memory"
        gate = " · the Hub asks for an account" if row.gated else ""
        thinks = " · can think first" if row.thinking else ""
        facts = f"{fits}{_rates_in_words(row)} · licence {row.license} · {row.short[0]}{thinks}{gate}"
        return f"{row.about}\n{facts}", "$quiet"
    if row.reason:
        return f"cannot load: {row.reason}\n{row.path}", "$warning"
    template = "chat template" if row.chat_template else "no chat template: it continues text"
    dtype = f" in {row.dtype}" if row.dtype else ""
    place = "comes with ropechat" if row.name == builtin.NAME else str(row.path)
    return f"{row.model_type}{dtype}, {template}{_rates_in_words(row)}\n{place}", "$quiet"


def describe_offer(model: CatalogModel) -> str:
    """A model that a key gets, with its size: SmolLM2 135M (98.4 MB)."""
    return f"{model.name} ({format_bytes(model.size)})"


def describe_download(download: Download, keymap: Keymap) -> list[Content]:
    """The state of a download in a few lines."""
    name, plan = one_line(str(download.name)), download.plan
    pause, cancel = keymap.named("models.pause"), keymap.named("models.cancel")
    head = Content.assemble(("\n↓ ", "$primary"), name)
    bar = [
        (part, style)
        for part, style in zip(draw_meter(download.share, METER), ("$primary", "$rule"), strict=True)
    ]
    words = one_line("  " + "  ".join(download.words))
    match download.stage:
        case Stage.ASKING:
            return [Content.assemble(head, ("  asking the Hub …", "$quiet"))]
        case Stage.PLANNED if plan is not None:
            lines = [
                Content.styled("  " + one_line(line), "$quiet") for line in plan.brief_lines(free_memory())
            ]
            return [
                head,
                *lines,
                Content.styled(f"  ⏎ downloads {format_bytes(plan.rest)}   {cancel} cancels", "$primary"),
            ]
        case Stage.RUNNING:
            return [head, Content.assemble("  ", *bar, (f" {download.share:4.0%}", ""), (words, "$quiet"))]
        case Stage.PAUSING | Stage.PAUSED:
            after = "downloaded data is kept" if plan is None or plan.resumes else "it begins again"
            note = f"  paused: {pause} resumes, {cancel} cancels; {after}"
            return [head, Content.assemble("  ", *bar, f" {download.share:4.0%}", (note, "$quiet"))]
        case Stage.DONE:
            done = "  complete, all hashes match: select it and press ⏎"
            return [head, Content.styled(done, "$success")]
        case Stage.FAILED:
            return [head, Content.styled(f"  {one_line(download.error)}", "$error")]
    return [Content.assemble(head, ("  cancelled; downloaded data is removed", "$quiet"))]
