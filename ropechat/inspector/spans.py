"""Tokens in an HTML page: one span each, and the numbers and candidates that the script shows.

Without script a span is tinted by its surprisal and its `title` lists numbers and candidates. For the script,
the data block `rows` has a list per span, [id, logprob, rank, entropy, [id, logprob, id, logprob, ...]], in
nats and rounded to DIGITS decimals; [id] for a token without a score; [-1, null, null, entropy, [...]] for
the place after the last token. The block `words` has the text of ids. On a page with tokens of several
models, IDS is added to the ids of the second, 2 IDS to those of the third.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ropechat.inspector import page
from ropechat.trace import TokenDistribution
from ropechat.util.text import visible

DIGITS = 5
IDS = 1 << 32
_IN_TITLE = 5
_LONGEST_IN_TITLE = 24
_LONGEST_WORD = 120


class Token(NamedTuple):
    """A token to show. logprob is None for a token without a score; entropy may be NaN."""

    id: int
    text: str
    """The characters that become complete with this token; copying the page gives these."""
    label: str
    """Shown instead of an empty text, and not copied: the name of a control token."""
    kind: str
    """"" (counted in sums), "template" or "special" (not counted), or "given" (typed by the user)."""
    logprob: float | None
    rank: int | None
    entropy: float | None
    top: tuple[tuple[int, float], ...]


class TokenSpans:
    """Makes the spans of one page. Call `use` first."""

    def __init__(self) -> None:
        self._bytes_of: Callable[[int], bytes] = bytes
        self._models: list[str] = []
        self._base = 0
        self._rows: list[str] = []
        self._words: dict[int, str] = {}
        self._titles: dict[int, str] = {}

    def use(self, model: str, bytes_of: Callable[[int], bytes]) -> None:
        """Say whose tokens follow. bytes_of: id -> the bytes of a token, b"" if unknown."""
        if model not in self._models:
            self._models.append(model)
        self._bytes_of, self._base = bytes_of, IDS * self._models.index(model)

    def __len__(self) -> int:
        return len(self._rows)

    def span(self, token: Token) -> str:
        """The HTML of a token."""
        self._rows.append(self._row(token))
        bits = None if token.logprob is None else -token.logprob / math.log(2)
        shade = page.tint(bits) if token.kind == "" and bits is not None else "t0"
        classes = [] if shade == "t0" else [shade]
        classes += [token.kind] if token.kind else []
        attributes = f' title="{self._title(token)}"'
        if not token.text:
            classes.append("label")
            attributes += f' data-label="{page.line(token.label)}"'
        elif "\n" in token.text:
            classes.append("newline")
        named = f' class="{" ".join(classes)}"' if classes else ""
        return f"<span{named}{attributes}>{page.text(token.text)}</span>"

    def next(self, row: TokenDistribution) -> str:
        """The HTML of the place after the last token, with the candidates for it."""
        self._words[-1] = "next token"
        top = self._top(row.top)
        self._rows.append(json.dumps([-1, None, None, _rounded(row.entropy), top], separators=(",", ":")))
        title = "\n".join(["next token", *self._listed(row.top)])
        return f'<span class="label special" title="{title}" data-label="next"></span>'

    def blocks(self) -> Iterator[str]:
        """Yield the data blocks, after all spans."""
        yield page.data_text("rows", f"[{','.join(self._rows)}]")
        yield page.data("words", self._words)

    def _key(self, id: int) -> int:
        """The number of an id in the data; its word is added on first use."""
        key = self._base + id
        if key not in self._words:
            word = _cut(visible(self._bytes_of(id)) or f"#{id}", _LONGEST_WORD)
            self._words[key], self._titles[key] = word, page.line(_cut(word, _LONGEST_IN_TITLE))
        return key

    def _row(self, token: Token) -> str:
        key = self._key(token.id)
        if token.logprob is None:
            return f"[{key}]"
        top = self._top(token.top)
        row = [key, _rounded(token.logprob), token.rank, _rounded(token.entropy), top]
        return json.dumps(row, allow_nan=False, separators=(",", ":"))

    def _title(self, token: Token) -> str:
        if token.logprob is None:
            return f"id {token.id}"
        facts = f"{page.number(-token.logprob / math.log(2))} bits, rank {page.number(token.rank, 0)}"
        return "\n".join([facts, *self._listed(token.top)])

    def _top(self, top: Iterable[tuple[int, float]]) -> list[float | None]:
        return [value for id, logprob in top for value in (self._key(id), _rounded(logprob))]

    def _listed(self, top: Sequence[tuple[int, float]]) -> Iterator[str]:
        for id, logprob in top[:_IN_TITLE]:
            key = self._key(id)
            yield f"{percent(logprob)} {self._titles[key]}"


def percent(logprob: float) -> str:
    """A log probability in nats as a percentage with two significant digits or more."""
    share = 100.0 * math.exp(min(0.0, logprob)) if not math.isnan(logprob) else math.nan
    if math.isnan(share):
        return "–"
    if share >= 1.0:
        return f"{share:.1f}%"
    return f"{share:.2g}%" if share >= 0.001 else "<0.001%"


def _rounded(value: float | None) -> float | None:
    return round(value, DIGITS) + 0.0 if value is not None and math.isfinite(value) else None


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
