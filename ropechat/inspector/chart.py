"""A chart along a text or an answer: how sure the model was at each token; several texts in one chart.

Of each token that sums cover: its surprisal, the entropy of its place and the varentropy, which is the
variance of the surprisal there; and the probabilities of the chosen token, of the runner-up, which is the
best candidate but for the chosen one, and of the rest, which is all others; these three have 100% together.
In a terminal each is a row of bars, in files a curve.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ropechat.inspector.ansi import DIM, paint
from ropechat.inspector.scored_text import LN2, ScoredText, percent
from ropechat.trace import Step, TokenScore
from ropechat.util.text import count_of, one_line, visible
from ropechat.util.width import fit

if TYPE_CHECKING:
    from ropechat.inspector.rope.blocks import View

AMOUNTS, SQUARES, SHARES = ("surprisal", "entropy"), ("varentropy",), ("chosen", "runner-up", "rest")
"""The curves of a chart: AMOUNTS are in bits or nats, SQUARES in bit² or nat², SHARES are from 0 to 1."""
CURVES = (*AMOUNTS, *SQUARES, *SHARES)
_BARS = " ▁▂▃▄▅▆▇█"
_HEIGHT = 2  # lines of a row of bars
_MARGIN = 20
_PEAKS = 5


@dataclass
class Course:
    """The curves of a text. at: the number of each token; values: of each of CURVES, None where it is not
    known."""

    name: str
    at: list[int] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=lambda: {name: [] for name in CURVES})
    peaks: list[TokenScore] = field(default_factory=list)
    """The most surprising tokens, in their order."""
    summary: str = ""

    def add(self, at: int, token: TokenScore | Step, scale: float = LN2) -> None:
        """Add a token that has a logprob. scale: nats in the chart's unit."""
        logprob, entropy, row = token.logprob or 0.0, token.entropy, token.row
        top = token.top if isinstance(token, Step) else () if row is None else row.top
        best = runner_up(token.id, top)
        chosen = math.exp(logprob)
        squared = None if row is None else row.varentropy
        found = {
            "surprisal": -logprob / scale,
            "entropy": None if entropy is None else entropy / scale,
            "varentropy": None if squared is None else squared / scale**2,
            "chosen": chosen,
            "runner-up": best,
            "rest": None if best is None else max(0.0, 1.0 - chosen - best),
        }
        self.at.append(at)
        for name, value in found.items():
            self.values[name].append(value if value is not None and math.isfinite(value) else None)


def runner_up(id: int, top: Iterable[tuple[int, float]]) -> float | None:
    """The probability of the best candidate but for the chosen one; None if none is known."""
    return next((math.exp(logprob) for other, logprob in top if other != id), None)


def extend(course: Course, steps: Iterable[Step]) -> None:
    """Add further tokens of an answer, in bits."""
    for at, step in enumerate(steps, len(course.at)):
        course.add(at, step)


def course_of(text: ScoredText, unit: str) -> Course:
    """Read a text to its end."""
    found, scale = Course(text.name), LN2 if unit == "bit" else 1.0
    tokens = []
    for token in text:
        if token.logprob is None or token.role not in text.roles:
            continue
        tokens.append(token)
        found.add(token.index, token, scale)
    worst = heapq.nsmallest(_PEAKS, tokens, key=lambda token: (token.logprob, token.index))
    found.peaks = sorted(worst, key=lambda token: token.index)
    found.summary = text.summary.line(unit)
    return found


def known(courses: Sequence[Course]) -> tuple[str, ...]:
    """The curves that have a value; a record of another program has no entropies."""
    drawn = {name for course in courses for name in CURVES if any(y is not None for y in course.values[name])}
    return tuple(filter(drawn.__contains__, CURVES)) or CURVES


def render(
    texts: Iterable[ScoredText], title: str, form: str, unit: str, width: int, *, color: bool = False
) -> Iterator[str]:
    """The pieces of a chart of the texts. form: table, for a terminal of this width, html or svg."""
    courses = [course_of(text, unit) for text in texts]
    if form == "table":
        yield from (f"{line}\n" for line in lines(courses, width, unit, color=color))
    else:
        from ropechat.inspector.rope.output import WRITERS

        yield from WRITERS[form]([view(courses, unit)], title)


def lines(courses: Sequence[Course], width: int, unit: str, *, color: bool = False) -> Iterator[str]:
    """Yield the lines for a terminal. All texts have the same scales."""
    longest = max((len(course.at) for course in courses), default=0)
    each = max(1, math.ceil(longest / max(1, width - _MARGIN)))  # tokens of a column
    most = {
        name: max((max(_columns(course, name, each), default=0.0) for course in courses), default=0.0)
        for name in (*AMOUNTS, *SQUARES)
    }
    for course in courses:
        if course.name:
            yield fit(one_line(course.name), width).rstrip()
        for name in known(courses):
            top = most.get(name, 1.0)
            own, wide = (f"{unit}²", 10) if name in SQUARES else (unit, 100)
            label = "100%" if name in SHARES else f"{top:.{0 if top >= wide else 1}f} {own}"
            rows = bars([value / (top or 1.0) for value in _columns(course, name, each)])
            for row, (what, scale) in zip(rows, ((name, label), ("", "")), strict=True):
                yield f"{what:10} {scale:>8}│{row}"
        if course.at:
            below = f"└ {course.at[0]} to {course.at[-1]}, {count_of(each, 'token')} in a column"
            yield paint(f"{'':{_MARGIN - 1}}{below}"[:width], DIM, color)
        yield from (fit(_peak(token, unit), width).rstrip() for token in course.peaks)
        yield from (paint(fit(line, width).rstrip(), DIM, color) for line in [course.summary])


def _columns(course: Course, name: str, each: int) -> list[float]:
    """The mean of each `each` tokens; 0 where nothing is known."""
    values = course.values[name]
    groups = ([v for v in values[at : at + each] if v is not None] for at in range(0, len(values), each))
    return [math.fsum(group) / len(group) if group else 0.0 for group in groups]


def bars(shares: Sequence[float], height: int = _HEIGHT) -> list[str]:
    """Columns of bars, `height` lines from above. shares: 0 to 1; what is above 0 has at least an eighth."""
    steps = len(_BARS) - 1
    levels = [
        min(height * steps, max(1, round(share * height * steps))) if share > 0 else 0 for share in shares
    ]
    return [
        "".join(_BARS[min(steps, max(0, level - steps * below))] for level in levels).rstrip()
        for below in reversed(range(height))
    ]


def _peak(token: TokenScore, unit: str) -> str:
    logprob = token.logprob or 0.0
    amount = -logprob / (LN2 if unit == "bit" else 1.0)
    return f"{token.index:>9} {amount:>5.1f} {unit} {percent(logprob):>7}  {visible(token.bytes)}"


def view(courses: Sequence[Course], unit: str) -> "View":
    """The chart for files. Tokens have their number in the text; of several texts that in its own part."""
    from numpy import array

    from ropechat.inspector.rope.blocks import Block, Curve, Note, Plot, Table, View

    scale, together = LN2 if unit == "bit" else 1.0, len(courses) > 1
    x_label = "token, from 0 in each text" if together else "token"

    def curve(course: Course, name: str, label: str) -> Curve:
        base = course.at[0] if course.at and together else 0
        points = [
            (at - base, y) for at, y in zip(course.at, course.values[name], strict=True) if y is not None
        ]
        return Curve(label, array([x for x, _ in points], float), array([y for _, y in points], float))

    blocks: list[Block] = []
    drawn = known(courses)
    for every, label in ((AMOUNTS, f"{unit}s"), (SQUARES, f"{unit}s²"), (SHARES, "probability")):
        names = [name for name in every if name in drawn]
        if not names:
            continue
        if not together:
            curves = tuple(curve(courses[0], name, name) for name in names)
            y_label = label if len(names) > 1 else f"{names[0]}, {label}"  # one curve has no legend
            blocks.append(Plot(", ".join(names), x_label, y_label, curves))
        else:
            blocks += (
                Plot(
                    name,
                    x_label,
                    f"{name}, {label}",
                    tuple(
                        curve(course, name, course.name or f"text {at}")
                        for at, course in enumerate(courses, 1)
                    ),
                )
                for name in names
            )
    for course in courses:
        rows = tuple(
            (
                token.index,
                visible(token.bytes),
                round(-(token.logprob or 0.0) / scale, 2),
                percent(token.logprob or 0.0),
            )
            for token in course.peaks
        )
        blocks.append(Note(f"{course.name}: {course.summary}" if course.name else course.summary))
        blocks.append(Table("most surprising tokens", ("#", "token", f"{unit}s", "prob"), rows))
    return View("chart", "How sure the model was, token by token", tuple(blocks))
