"""The shell of every HTML page of ropechat: one file that loads nothing from anywhere.

A page works without its script. The content security policy allows the page's own style and script, by their
hashes, and nothing else: no request, no inline style (use classes), no event attribute. Text of models and
files goes through `text` or `line` into HTML and through `data` into the script, which must show it with
`textContent` only.

Classes of page.css for bodies: facts, bars, plot, card, dim, number, tokens, prose, columns, panel,
needs-script,
without-script, t0 to t9 (tints). Colours are custom properties: --ink, --dim, --line, --paper, --card,
--accent, --tint, --good, --bad, and --s1 to --s6 for the series of a plot. page.js defines `read(name)` for
`data` and `byId(name)`, and sets the class `js` on the root.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ropechat.util.text import clean, escape_json, one_line

TINTS = 10
"""Number of tint classes: t0 (none) to t9."""
FULL_TINT_BITS = 12.0
"""Bits at which the tint is at its strongest."""


@cache
def asset(name: str) -> str:
    """The content of a style sheet or script in this file's folder."""
    return Path(__file__).with_name(name).read_text("utf-8")


def text(value: str) -> str:
    """Text as HTML, for content and for attributes: cleaned and escaped, newlines and tabs kept."""
    return html.escape(clean(value))


def line(value: str) -> str:
    """`text` on one line: a newline is shown as ␊."""
    return html.escape(one_line(value))


def number(value: float | None, digits: int = 2) -> str:
    """A number with `digits` decimals and grouped thousands; – for None and NaN."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:,.{digits}f}" if math.isfinite(value) else ("∞" if value > 0 else "−∞")


def tint(bits: float | None) -> str:
    """The class of a surprisal in bits: t0 to t9, in equal steps up to FULL_TINT_BITS."""
    return f"t{level(0.0 if bits is None or math.isnan(bits) else bits / FULL_TINT_BITS)}"


def level(share: float) -> int:
    """The tint of a share of the whole scale: 0 to 9."""
    return min(TINTS - 1, max(0, int(min(1.0, share) * TINTS)))


def data(name: str, value: Any) -> str:
    """A data block that the script reads with `read(name)`. Raises ValueError for NaN and infinity."""
    return data_text(name, json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def data_text(name: str, value: str) -> str:
    """`data` for a value that is JSON text already."""
    safe = escape_json(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="{html.escape(name)}">{safe}</script>\n'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of facts, each a small label and a value, as plain text."""
    items = "".join(f"<div><dt>{line(name)}</dt><dd>{line(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="facts">{items}</dl>\n'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> Iterator[str]:
    """Yield the rows of a table of plain text. numbers: the columns that are aligned to the right."""
    classes = [' class="number"' if column in numbers else "" for column in range(len(header))]
    cells = "".join(f"<th{kind}>{line(name)}</th>" for name, kind in zip(header, classes, strict=True))
    yield f"<table><thead><tr>{cells}</tr></thead><tbody>\n"
    for row in rows:
        cells = "".join(f"<td{kind}>{line(value)}</td>" for value, kind in zip(row, classes, strict=True))
        yield f"<tr>{cells}</tr>\n"
    yield "</tbody></table>\n"


def choice(name: str, label: str, options: Sequence[tuple[str, str]]) -> str:
    """Radio buttons side by side, shown only with script; the first is chosen. options: value, label."""
    buttons = "".join(
        f'<label><input type="radio" name="{line(name)}" value="{line(value)}"'
        f"{' checked' if index == 0 else ''}><span>{line(shown)}</span></label>"
        for index, (value, shown) in enumerate(options)
    )
    return f'<fieldset class="choice needs-script"><legend>{line(label)}</legend>{buttons}</fieldset>\n'


def page(
    title: str, body: Iterable[str], *, lead: str = "", style: str = "", script: str = ""
) -> Iterator[str]:
    """Yield a page in pieces, so that a long one is never in memory as a whole.

    title, lead: plain text. body: HTML made with the functions above. style, script: added to page.css and
    page.js; they must be constants of the program, never text of a model or a file.
    """
    style, script = asset("page.css") + style, asset("page.js") + script
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="generator" content="ropechat">\n'
        f"<title>{line(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<header class="page"><h1>{line(title)}</h1>'
        + (f"<p>{line(lead)}</p>" if lead else "")
        + "</header>\n"
    )
    yield from body
    yield f"<script>{script}</script>\n</body>\n</html>\n"


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
