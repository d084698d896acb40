"""A matrix of prompts by answers as one HTML page, tinted by share; see `page`."""

from collections.abc import Iterator

from ropechat.inspector import page
from ropechat.inspector.matrix import Matrix, Row
from ropechat.util.records import number
from ropechat.util.text import visible

_STYLE = """
.matrix { overflow-x: auto; }
.matrix table { table-layout: fixed; width: max-content; font-size: .85rem; }
.matrix th, .matrix td { width: 7.5rem; padding: .15rem .5rem; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }
.matrix th:first-child { width: 22rem; text-align: left; font-weight: 400; direction: rtl; }
.matrix td { text-align: right; font-variant-numeric: tabular-nums; }
.matrix td small { opacity: .8; margin-left: .5em; }
.matrix td.best { font-weight: 700; }
.matrix td.target { outline: 2px solid var(--good); outline-offset: -2px; }
"""
_LEAD = (
    "Each cell has the surprisal of an answer after a prompt, in bits, and its share of the probability of "
    "all answers in the row, by which it is tinted. Bold: the likeliest answer."
)


def render(matrix: Matrix, title: str) -> Iterator[str]:
    """Yield the page in pieces. title: plain text."""
    targets = " Framed: the right one." if any(row.target is not None for row in matrix.rows) else ""
    yield from page.page(title, _body(matrix), lead=_LEAD + targets, style=_STYLE)


def _body(matrix: Matrix) -> Iterator[str]:
    heads = (
        [f"choice {place + 1}" for place in range(matrix.columns)]
        if matrix.answers is None
        else [visible(answer.encode("utf-8", "replace")) for answer in matrix.answers]
    )
    cells = "".join(f'<th title="{page.line(head)}">{page.line(head)}</th>' for head in heads)
    yield f'<div class="matrix card"><table><thead><tr><th></th>{cells}</tr></thead><tbody>\n'
    for row in matrix.rows:
        cells = "".join(_cell(row, place) for place in range(len(row.cells)))
        prompt = f'<th title="{page.text(row.prompt)}"><bdi>{page.line(row.prompt)}</bdi></th>'
        yield f"<tr>{prompt}{cells}</tr>\n"
    yield "</tbody></table></div>\n"
    meta = [
        (name, str(matrix.meta[name])) for name in ("model", "dtype", "kv_dtype") if matrix.meta.get(name)
    ]
    right = matrix.correct()
    judged = [] if right is None else [("right answer is likeliest", f"{right[0]} of {right[1]}")]
    yield page.facts([*meta, ("cells", f"{matrix.count:,}"), *judged])


def _cell(row: Row, place: int) -> str:
    cell, rank, share = row.cells[place], row.rank(place), row.share(place)
    if cell is None:
        return "<td>–</td>"
    facts = [
        row.answers[place],
        f"{page.number(cell.bits)} bits in {cell.tokens} tokens",
        f"rank {number(rank, ',')} of {len(row.cells)}, share {number(share, '.2%')}",
        *([] if cell.first_rank is None else [f"first token: rank {cell.first_rank:,} of the vocabulary"]),
    ]
    classes = [f"t{page.level(share or 0.0)}", *(["best"] if rank == 1 else [])]
    classes += ["target"] if row.target == place else []
    told = f"{page.number(cell.bits, 1)}<small>{number(share, '.0%')}</small>"
    lines = "\n".join(facts)
    return f'<td class="{" ".join(classes)}" title="{page.text(lines)}">{told}</td>'
