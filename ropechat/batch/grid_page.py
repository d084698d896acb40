"""A grid as one HTML page: how the variants compare, and each row's answers with what differs in them."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ropechat.inspector import page
from ropechat.util.records import number
from ropechat.util.text import count_of

_STYLE = """
.rows { overflow-x: auto; }
.rows table { table-layout: fixed; width: max-content; min-width: 100%; }
.rows th { width: 14rem; }
.rows td { padding-right: 1.2rem; white-space: pre-wrap; }
.rows td:first-child { color: var(--dim); }
.rows tr:target td { background: color-mix(in srgb, var(--accent) 12%, transparent); }
.rows small { display: block; margin-top: .2rem; color: var(--dim); white-space: normal; }
.rows mark { color: inherit; border-radius: 3px;
  background: color-mix(in srgb, var(--tint) 30%, transparent); }
.pass, .fail { font-weight: 650; }
.pass { color: var(--good); }
.fail { color: var(--bad); }
.differ .rows tbody tr:not(.differs), .fails .rows tbody tr:not(.failed) { display: none; }
.toolbar output { min-width: 0; }
.better { margin: .3rem 0; }
"""
_SCRIPT = """
const rows = Array.from(document.querySelectorAll(".rows tbody tr"));
const show = (kind) => {
  document.body.classList.remove("differ", "fails");
  if (kind !== "all") document.body.classList.add(kind);
  byId("count").textContent = rows.filter((row) => row.offsetParent !== null).length;
};
for (const button of document.querySelectorAll('input[name="show"]'))
  button.addEventListener("change", () => show(button.value));
window.addEventListener("hashchange", () => {
  const row = byId(location.hash.slice(1));
  if (!row || row.offsetParent !== null) return;
  document.querySelector('input[name="show"][value="all"]').checked = true;
  show("all");
  row.scrollIntoView();
});
show("all");
"""
_LEAD = (
    "Marked is what the answer of the first variant does not say. A row's number is a link to it; the arrows "
    "of a browser go back."
)
_SHOWN = 200
"""Most links of a list."""
_MOST_WORDS = 2000
"""Of answers that are compared word by word."""


class Head(NamedTuple):
    """What is above the rows. table: its head, and a row for each variant. rows: how many.

    better: (variant, other) -> place and id of the rows that only the first passes. has_checks: whether rows
    pass or not.
    """

    table: Sequence[Sequence[str]]
    better: Mapping[tuple[str, str], Sequence[tuple[int, Any]]]
    rows: int
    has_checks: bool


def render(head: Head, rows: Iterable[Mapping[str, Any]], title: str) -> Iterator[str]:
    """Yield the page in pieces. rows: those of the table, as JSON has them. title: plain text."""
    yield from page.page(title, _body(head, rows), lead=_LEAD, style=_STYLE, script=_SCRIPT)


def _body(head: Head, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    header, *table = head.table
    yield '<div class="card">\n'
    yield from page.table(header, table, range(1, len(header)))
    yield "</div>\n"
    yield from (_better(*names, places) for names, places in head.better.items())
    kinds = [("all", "all"), *([("differ", "different answers")] if len(table) > 1 else [])]
    kinds += [("fails", "not passed")] if head.has_checks else []
    yield f'<div class="toolbar">{page.choice("show", "rows", kinds)}'
    yield f'<span class="dim"><output id="count">{head.rows:,}</output> of {head.rows:,}</span></div>\n'
    names = [cells[0] for cells in table]
    cells = "".join(f"<th>{page.line(name)}</th>" for name in names)
    yield f'<div class="rows card"><table><thead><tr><th>row</th>{cells}</tr></thead><tbody>\n'
    for place, row in enumerate(rows):
        yield _row(place, row, names)
    yield "</tbody></table></div>\n"


def _better(name: str, other: str, rows: Sequence[tuple[int, Any]]) -> str:
    """Rows that only one of two variants passes, as links."""
    links = ", ".join(f'<a href="#row-{place}">{page.line(str(id))}</a>' for place, id in rows[:_SHOWN])
    more = f" and {count_of(len(rows) - _SHOWN, 'other')}" if len(rows) > _SHOWN else ""
    said = f"{name} passes where {other} does not: {count_of(len(rows), 'row')}"
    return f'<p class="better">{page.line(said)} ({links}{more})</p>\n'


def _row(place: int, row: Mapping[str, Any], names: Sequence[str]) -> str:
    records = [row["variants"][name] for name in names]
    first = records[0].get("text", "")
    kinds = ["differs"] * row["differ"] + ["failed"] * any(_has_failed(record) for record in records)
    cells = "".join(f"<td>{_answer(record, first)}</td>" for record in records)
    kept = "".join(
        f"<small>{page.line(name)}: {page.text(str(value))}</small>" for name, value in row["kept"].items()
    )
    link = f'<a href="#row-{place}">{page.line(str(row["id"]))}</a>'
    return f'<tr id="row-{place}" class="{" ".join(kinds)}"><td>{link}{kept}</td>{cells}</tr>\n'


def _has_failed(record: Mapping[str, Any]) -> bool:
    return not record["ok"] or record.get("passed") is False


def _answer(record: Mapping[str, Any], first: str) -> str:
    """The answer of a variant, with what it says about it."""
    said = [] if "passed" not in record else [_verdict(passed=record["passed"])]
    if not record["ok"]:
        said.append(page.line(record["error"]["message"]))
    if record.get("confidence") is not None:
        said.append(f"confidence {number(record['confidence'], '.3f')}")
    return f"{marked(record.get('text', ''), first)}<small>{' · '.join(said)}</small>"


def _verdict(*, passed: bool) -> str:
    return f'<span class="{"pass" if passed else "fail"}">{"passed" if passed else "not passed"}</span>'


def marked(text: str, first: str) -> str:
    """A text as HTML, with marks around the words that `first` does not have in their place."""
    ours, theirs = (re.findall(r"\s+|\w+|[^\w\s]", one) for one in (text, first))
    if ours == theirs or max(len(ours), len(theirs)) > _MOST_WORDS:
        return page.text(text)
    parts = []
    for kind, _, _, begin, end in difflib.SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes():
        part = page.text("".join(ours[begin:end]))
        parts.append(part if kind == "equal" or not part else f"<mark>{part}</mark>")
    return "".join(parts)
