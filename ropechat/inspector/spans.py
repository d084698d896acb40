"""Tokens in an HTML page: one span each, and the numbers and candidates that the script shows.

Without script a span is tinted by its surprisal and its `title` lists numbers and candidates. For the script,
the data block `rows` has a list per span, [id, logprob, rank, entropy, [id, logprob, id, logprob, ...]], in
nats and rounded to DIGITS decimals; [id] for a token without a score; [-1, null, null, entropy, [...]] for
the place after the last token. The block `words` has the text of ids. On a page with tokens of several
models, IDS is added to the ids of the second, 2 IDS to those of the third.

With strings that are looked up, a row goes on with [first_logprob, rank, logprob, ...], three for each
string of the block `strings`: [[text, tokens], ...]; logprob is null if only the first token was looked
up. With stages of the sampler, it goes on (after null without strings) with [[stage, kept, mass, ...],
cut, rank, p, interval, u, [id, cut, p, ...]]: what each stage left, what became of the token, and of each
candidate; stages are places in the block `stages`, their names, and cut is -1 for a token that no stage
cut.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ropechat.inspector import page
from ropechat.inspector.look_up import Found
from ropechat.inspector.scored_text import percent
from ropechat.inspector.stages import stage_line
from ropechat.trace import TokenDistribution, TokenScore
from ropechat.util.text import token_name, visible

DIGITS = 5
IDS = 1 << 32
_IN_TITLE = 5
_LONGEST_IN_TITLE = 24
_LONGEST_WORD = 120
NEWLINE_SIGN = '<i class="newline"></i>\n'
"""The style sheet shows a sign in the empty element, in the place of the newline; it is not copied."""


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
    found: Sequence[Found] = ()
    """The strings that were looked up in its place."""
    sampled: TokenScore | None = None
    """Has what the stages of the sampler did, if that was recorded."""


class TokenSpans:
    """Makes the spans of one page. Call `use` first."""

    def __init__(self) -> None:
        self._bytes_of: Callable[[int], bytes] = bytes
        self._models: list[str] = []
        self._base = 0
        self._rows: list[str] = []
        self._words: dict[int, str] = {}
        self._titles: dict[int, str] = {}
        self._strings: dict[str, int] = {}
        self._stages: list[str] = []

    def use(self, model: str, bytes_of: Callable[[int], bytes]) -> None:
        """Say whose tokens follow. bytes_of: id -> the bytes of a token, b"" if unknown."""
        if model not in self._models:
            self._models.append(model)
        self._bytes_of, self._base = bytes_of, IDS * self._models.index(model)

    def __len__(self) -> int:
        return len(self._rows)

    def span(self, token: Token, inner: str | None = None) -> str:
        """The HTML of a token. inner: that of its text, if it is not plain."""
        self._rows.append(self._row(token))
        bits = None if token.logprob is None else -token.logprob / math.log(2)
        shade = page.tint(bits) if token.kind == "" and bits is not None else "t0"
        classes = [] if shade == "t0" else [shade]
        classes += [token.kind] if token.kind else []
        own = None if token.sampled is None else token.sampled.outcome
        classes += ["cut"] if own is not None and own.cut is not None else []
        attributes = f' title="{self._title(token)}"'
        if not token.text:
            classes.append("label")
            attributes += f' data-label="{page.line(token.label)}"'
        named = f' class="{" ".join(classes)}"' if classes else ""
        inner = page.text(token.text).replace("\n", NEWLINE_SIGN) if inner is None else inner
        return f"<span{named}{attributes}>{inner}</span>"

    def next(self, row: TokenDistribution, found: Sequence[Found] = ()) -> str:
        """The HTML of the place after the last token, with the candidates for it and what was looked up."""
        self._words[-1] = "next token"
        top = self._top(row.top)
        values = [-1, None, None, _rounded(row.entropy), top, *self._more(found, None)]
        self._rows.append(json.dumps(values, separators=(",", ":")))
        title = "\n".join(["next token", *self._listed(row.top)])
        return f'<span class="label special" title="{title}" data-label="next"></span>'

    def blocks(self) -> Iterator[str]:
        """Yield the data blocks, after all spans."""
        yield page.data_text("rows", f"[{','.join(self._rows)}]")
        yield page.data("words", self._words)
        if self._strings:
            yield page.data("strings", list(self._strings.items()))
        if self._stages:
            yield page.data("stages", self._stages)

    def _key(self, id: int) -> int:
        """The number of an id in the data; its word is added on first use."""
        key = self._base + id
        if key not in self._words:
            word = _cut(token_name(id, self._bytes_of(id)), _LONGEST_WORD)
            self._words[key], self._titles[key] = word, page.line(_cut(word, _LONGEST_IN_TITLE))
        return key

    def _row(self, token: Token) -> str:
        key = self._key(token.id)
        if token.logprob is None:
            return f"[{key}]"
        top = self._top(token.top)
        row = [key, _rounded(token.logprob), token.rank, _rounded(token.entropy), top]
        row += self._more(token.found, token.sampled)
        return json.dumps(row, allow_nan=False, separators=(",", ":"))

    def _more(self, found: Sequence[Found], sampled: TokenScore | None) -> list[Any]:
        """What follows in a row: strings that were looked up, stages of the sampler."""
        values: list[float | None] = []
        for one in found:
            self._strings.setdefault(visible(one.text.encode()), len(one.ids))
            values += [_rounded(one.first), one.rank, _rounded(one.logprob)]
        more: list[Any] = [values] if found else []
        own = None if sampled is None else sampled.outcome
        if sampled is None or own is None:
            return more
        left = [
            value
            for stage in sampled.stages
            for value in (self._stage(stage.name), stage.kept, _rounded(stage.mass))
        ]
        listed = [
            value
            for one in sampled.candidates
            for value in (self._key(one.id), self._stage(one.cut), _rounded(one.probability))
        ]
        interval = sampled.interval and [_rounded(sampled.interval[0]), _rounded(sampled.interval[1])]
        outcome = [self._stage(own.cut), own.rank, _rounded(own.probability), interval, _rounded(sampled.u)]
        return [*(more or [None]), [left, *outcome, listed]]

    def _stage(self, name: str | None) -> int:
        if name is None:
            return -1
        if name not in self._stages:
            self._stages.append(name)
        return self._stages.index(name)

    def _title(self, token: Token) -> str:
        if token.logprob is None:
            return f"id {token.id}"
        facts = f"{page.number(-token.logprob / math.log(2))} bits, rank {page.number(token.rank, 0)}"
        found = [
            f"{percent(one.first if one.logprob is None else one.logprob)} ? "
            + page.line(_cut(visible(one.text.encode()), _LONGEST_IN_TITLE))
            for one in token.found
        ]
        line = "" if token.sampled is None else page.line(stage_line(token.sampled))
        return "\n".join([facts, *([line] if line else []), *self._listed(token.top), *found])

    def _top(self, top: Iterable[tuple[int, float]]) -> list[float | None]:
        return [value for id, logprob in top for value in (self._key(id), _rounded(logprob))]

    def _listed(self, top: Sequence[tuple[int, float]]) -> Iterator[str]:
        for id, logprob in top[:_IN_TITLE]:
            key = self._key(id)
            yield f"{percent(logprob)} {self._titles[key]}"


def _rounded(value: float | None) -> float | None:
    return round(value, DIGITS) + 0.0 if value is not None and math.isfinite(value) else None


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
