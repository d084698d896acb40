"""A matrix of prompts by answers as a table, JSON lines (schema `ropechat.matrix/1`) and CSV.

JSON lines: line 1 describes the model, prompts and answers; one line per cell follows, row by row: `prompt`
and `answer` count from 1, `logprob` is of all tokens of the answer, in nats; `bits` and `bits_per_byte` are
the surprisal in bits; `rank` is the answer's place among the answers after this prompt, `share` its part of
the probability of all of them (null in a row that is not complete); `first_logprob` and `first_rank` are of
its first token over the whole vocabulary; `target` says whether it is the right answer, where that is known.
The last line (`"summary": true`) has `mean_share` of each answer. CSV has the cells.
"""

from collections.abc import Iterator
from typing import Any

from ropechat.inspector.ansi import DIM, paint, rank_color
from ropechat.inspector.matrix import Cell, Matrix, Row
from ropechat.inspector.scored_text import LN2
from ropechat.util.records import Csv, cells, finite, json_line, number
from ropechat.util.text import count_of, visible
from ropechat.util.width import cell_width, fit, fit_end

SCHEMA = "ropechat.matrix/1"
COLUMNS = (
    *("prompt", "answer", "prompt_text", "answer_text", "tokens", "logprob", "bits", "bits_per_byte"),
    *("rank", "share", "first_logprob", "first_rank", "is_greedy", "target"),
)
_FACTS = ("model", "revision", "dtype", "kv_dtype", "isa", "engine")
_LABEL, _CELL, _GAP = 11, 12, 2


def record(matrix: Matrix, row: int, place: int) -> dict[str, Any]:
    """The record of a cell. row, place: from 0."""
    of, cell = matrix.rows[row], matrix.rows[row].cells[place]
    return {
        "prompt": row + 1,
        "answer": place + 1,
        "prompt_text": of.prompt,
        "answer_text": of.answers[place],
        "tokens": None if cell is None else cell.tokens,
        "logprob": None if cell is None else finite(cell.logprob),
        "bits": None if cell is None else finite(cell.bits),
        "bits_per_byte": None if cell is None else finite(cell.bits_per_byte),
        "rank": of.rank(place),
        "share": of.share(place),
        "first_logprob": None if cell is None else finite(cell.first_logprob),
        "first_rank": None if cell is None else cell.first_rank,
        "is_greedy": None if cell is None else cell.is_greedy,
        **({} if of.target is None else {"target": of.target == place}),
    }


def _records(matrix: Matrix) -> Iterator[dict[str, Any]]:
    for at, row in enumerate(matrix.rows):
        for place in range(len(row.cells)):
            yield record(matrix, at, place)


def json_lines(matrix: Matrix) -> Iterator[str]:
    """Yield the lines, with newlines."""
    facts = {name: matrix.meta.get(name) for name in _FACTS}
    prompts, answers = [row.prompt for row in matrix.rows], matrix.answers
    stage = matrix.meta.get("stage") or "raw"
    yield json_line(
        {"schema": SCHEMA, **facts, "log_base": "e", "stage": stage, "prompts": prompts, "answers": answers}
    )
    yield from map(json_line, _records(matrix))
    shares = [matrix.mean_share(place) for place in range(matrix.columns)]
    complete = sum(row.is_complete for row in matrix.rows)
    right = matrix.correct()
    yield json_line(
        {
            "summary": True,
            "cells": matrix.count,
            "complete_rows": complete,
            "mean_share": shares if matrix.answers is not None else None,
            **({} if right is None else {"correct": right[0], "judged": right[1]}),
        }
    )


def csv_lines(matrix: Matrix) -> Iterator[str]:
    """Yield the lines, with line ends."""
    out = Csv(COLUMNS)
    yield out.head
    for one in _records(matrix):
        texts = {
            name: visible(one[name].encode("utf-8", "replace")) for name in ("prompt_text", "answer_text")
        }
        yield out.line({**cells(one), **texts})


def lines(matrix: Matrix, width: int, unit: str = "bit", *, color: bool = False) -> Iterator[str]:
    """Yield the lines of a table for a terminal; columns that do not fit beside the others follow below."""
    prompts = [_plain(row.prompt) for row in matrix.rows]
    room = max(_LABEL, width - (_CELL + _GAP) * min(3, max(1, matrix.columns)))
    label = min(room, max([_LABEL, *(cell_width(prompt) for prompt in prompts)]))
    begins = {prompt[: label // 2] for prompt in prompts}
    cut = fit_end if len(begins) < len(prompts) else fit  # what prompts have in common says least
    each = max(1, (width - label) // (_CELL + _GAP))
    for start in range(0, matrix.columns, each):
        places = range(start, min(start + each, matrix.columns))
        if start:
            yield ""
        heads = (_head(matrix, place) for place in places)
        yield paint(
            f"{f'{unit}s, share':{label}}" + "".join(f"  {head}" for head in heads), DIM, color
        ).rstrip()
        for row, prompt in zip(matrix.rows, prompts, strict=True):
            shown = (_cell(row, place, unit, color=color) for place in places)
            yield (cut(prompt, label) + "".join(f"  {one}" for one in shown)).rstrip()
        if matrix.answers is not None and len(matrix.rows) > 1:
            means = (number(matrix.mean_share(place), ".1%").rjust(_CELL) for place in places)
            yield paint("mean share".ljust(label) + "".join(f"  {one}" for one in means), DIM, color)
    yield from (paint(fit(line, width).rstrip(), DIM, color) for line in _summary(matrix))


def _plain(text: str) -> str:
    return " ".join(visible(text.encode("utf-8", "replace")).replace("·", " ").split())


def _head(matrix: Matrix, place: int) -> str:
    text = (
        f"choice {place + 1}"
        if matrix.answers is None
        else visible(matrix.answers[place].encode("utf-8", "replace"))
    )
    cut = fit(text, _CELL).rstrip()
    return cut.rjust(_CELL) if len(cut) <= _CELL else cut


def _cell(row: Row, place: int, unit: str, *, color: bool) -> str:
    """A surprisal and a share in fixed width; ▸ marks the likeliest answer, * the right one."""
    cell: Cell | None = row.cells[place] if place < len(row.cells) else None
    if cell is None:
        return ("–" if place < len(row.cells) else "").rjust(_CELL)
    rank, share = row.rank(place), row.share(place)
    amount = number(cell.bits * (1.0 if unit == "bit" else LN2), ".1f")
    marks = ("▸" if rank == 1 else "") + ("*" if row.target == place else "")
    return paint(f"{marks + amount:>7} {number(share, '.0%'):>4}", rank_color(rank), color)


def _summary(matrix: Matrix) -> Iterator[str]:
    whole = sum(len(row.answers) for row in matrix.rows)
    told = f"{count_of(len(matrix.rows), 'prompt')}, {count_of(matrix.columns, 'answer')}"
    yield told if matrix.count == whole else f"{told}: {matrix.count:,} of {whole:,} cells computed"
    if (right := matrix.correct()) is not None:
        yield f"the right answer (*) is the likeliest in {right[0]:,} of {right[1]:,}"
