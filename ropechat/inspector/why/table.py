"""What parts of a context do to an answer, for a terminal: the tinted context, and its strongest parts."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from ropechat.inspector.ansi import DIM, paint
from ropechat.inspector.scored_text import LN2, percent
from ropechat.inspector.why.records import part_name
from ropechat.inspector.why.result import PartScore, Why
from ropechat.util.records import Column, Table, bar, number
from ropechat.util.text import count_of, one_line
from ropechat.util.width import cell_width, chop, fit

LEAST_SHARE = 0.05
"""Of the strongest part: weaker ones have no tint and no line."""
_TINTS = ((0.6, "\x1b[30;48;5;208m"), (0.25, "\x1b[30;48;5;215m"), (LEAST_SHARE, "\x1b[30;48;5;223m"))
_AGAINST = "\x1b[30;48;5;153m"
_WEAK_CELLS = 160  # of a part without tint, before it is cut
_BAR = 6


def render(why: Why, most: int, width: int, *, color: bool) -> Iterator[str]:
    """Yield lines with their ends. most: parts in the table."""
    rows = listed(why, most)
    numbers = {one: at for at, one in enumerate((row for row in rows if not row.parts), 1)}
    for line in (
        *_context(why, numbers, width, color=color),
        "",
        fit(answer_line(why), width).rstrip(),
        meaning(why),
        "",
    ):
        yield f"{line}\n"
    if rows:
        room = max(8, width - 45)
        scale = max(one.change for one in rows) or 1.0
        table = Table(
            Column("#", 3, lambda one: str(numbers.get(one, ""))),
            Column("bits", 8, lambda one: f"{one.bits:+.2f}"),
            Column("", -_BAR, lambda one: bar(one.change / scale, _BAR)),
            Column("part", -13, lambda one: "  " * min(one.depth, 2) + part_name(why, one.part)),
            Column("tokens", 6, lambda one: f"{one.tokens:,}"),
            Column("text", 0, lambda one: fit(_shown(why, one), room).rstrip()),
        )
        yield paint(table.head, DIM, color) + "\n"
        yield from (f"{table.line(one)}\n" for one in rows)
    yield from (f"{paint(line, DIM, color)}\n" for line in summary_lines(why))


def listed(why: Why, most: int) -> list[PartScore]:
    """The parts that change the answer most, in the order of the text, each before those within it."""
    least = LEAST_SHARE * why.scale
    strong = [one for one in why.walk() if one.bits is not None and one.change >= least]
    chosen = set(sorted(strong, key=lambda one: -one.change)[:most])
    return [one for one in strong if one in chosen]


def answer_line(why: Why) -> str:
    """What was asked, with its surprisal."""
    asked = why.trace.tokens[slice(*why.inside)]
    text = one_line("".join(token.text for token in asked))
    share = f" ({percent(-why.bits * LN2)})" if why.bits < 32 else ""
    without = "" if why.without is None else f", {number(why.without, '.2f')} without it"
    return f"{text!r}: {number(why.bits, '.2f')} bits{share} with the context{without}"


def summary_lines(why: Why) -> Iterator[str]:
    """What was computed, and what was not."""
    yield f"{count_of(why.scorings, 'scoring')} of up to {count_of(why.total, 'token')}"
    if skipped := why.skipped:
        tokens = sum(one.tokens for one in skipped)
        reason = "weak, or beyond the budget" if why.limited else "weak"
        yield f"not looked into ({reason}): {count_of(len(skipped), 'part')} of {count_of(tokens, 'token')}"
    if errors := [one.error for one in why.walk() if one.error]:
        yield f"not scored: {count_of(len(errors), 'part')}: {one_line(errors[0])}"
    if not why.complete:
        yield "stopped: parts without a number were not scored"


def meaning(why: Why) -> str:
    """What the bits of a part are."""
    if why.asked.only:
        return "bits that the part alone saves of those without context"
    done = "left out" if why.asked.replace is None else f"replaced by {one_line(why.asked.replace)!r}"
    return f"bits that the answer costs more with the part {done}"


def _shown(why: Why, one: PartScore) -> str:
    return one_line(" ".join(why.text[slice(*one.span)].split()))


def _context(why: Why, numbers: dict[PartScore, int], width: int, *, color: bool) -> Iterator[str]:
    """The lines of the context, tinted; without colours, the listed parts are in brackets."""
    scale = why.scale
    for name, pieces in stretches(why):
        if name:
            yield paint(fit(f"── {one_line(name)} ", width).rstrip(), DIM, color)
        styled = list[tuple[str, str]]()
        for text, one in pieces:
            share = 0.0 if one is None or one.bits is None or not scale else one.bits / scale
            style = next((code for least, code in _TINTS if share >= least), "")
            style = _AGAINST if share <= -LEAST_SHARE else style
            if one is not None and not style and len(text) > _WEAK_CELLS:
                text = f"{text[: _WEAK_CELLS // 2]}… ({count_of(one.tokens, 'token')})"
            elif one in numbers and not color:
                text = f"[{numbers[one]}:{text}]"
            styled.append((text, style))
        yield from _wrapped(styled, width, color=color)


def stretches(why: Why) -> Iterator[tuple[str, list[tuple[str, PartScore | None]]]]:
    """The name of each text, and its stretches with the finest part that each belongs to (None: to none)."""
    finest = why.finest
    for name, (at, last) in why.context.texts:
        pieces = list[tuple[str, PartScore | None]]()
        for one in finest:
            start, end = max(at, one.span[0]), min(last, one.span[1])
            if start < end:
                pieces += [(why.text[at:start], None), (why.text[start:end], one)]
                at = end
        yield name, [*pieces, (why.text[at:last], None)]


def _wrapped(pieces: Iterable[tuple[str, str]], width: int, *, color: bool) -> Iterator[str]:
    """Lines of at most `width` cells, broken at white space. pieces: with their styles."""
    line, column = list[tuple[str, str]](), 0
    for text, style in pieces:
        for word in re.findall(r"\n|[^\S\n]+|\S+", text):
            if word == "\n":
                yield _painted(line, color=color)
                line, column = [], 0
                continue
            shown = one_line(word)
            for start, end in chop(shown, width):
                cells = cell_width(shown[start:end])
                if column + cells > width:
                    yield _painted(line, color=color)
                    line, column = [], 0
                    if shown.isspace():
                        break
                line.append((shown[start:end], style))
                column += cells
    if line:
        yield _painted(line, color=color)


def _painted(line: list[tuple[str, str]], *, color: bool) -> str:
    while line and line[-1][0].isspace():
        line.pop()
    runs = groupby(line, key=lambda piece: piece[1])
    return "".join(
        paint("".join(text for text, _ in run), style, color and bool(style)) for style, run in runs
    )
