"""An answer's Markdown as HTML in which every token stays one span, see `chat_page`.

The characters are those of the answer, in their order. The signs of Markdown are in `<i class="syn">`, which
the style sheet hides; a page shows them again for the token under the cursor, and all of them as they were
written. A token belongs to the block of its last character that is shown.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from ropechat.inspector import page
from ropechat.inspector.spans import NEWLINE_SIGN, Token, TokenSpans
from ropechat.util.markdown.blocks import BlockParser, MarkdownBlock, split_cells
from ropechat.util.markdown.inline import parse_inline, parse_inline_lines
from ropechat.util.markdown.spans import StyledSpan

_ENTITY = re.compile(r"&[^;\s]+;")
_TAGS = {"strong": "b", "em": "em", "strike": "s", "code": "code"}
_TAGS |= {"link": "u", "url": "small", "marker": "var"}
_MARKS = {"• ": "bullet", "☐ ": "bullet task", "☑ ": "bullet done"}  # for the style sheet
_HIDDEN = "syn"
MAX_DEPTH = 6  # of lists and quotes, for the style sheet

Path = tuple[tuple[int, str], ...]
"""The HTML elements around characters: the number of each, and its opening tag."""
_PARAGRAPH: Path = ((-1, '<div class="p">'),)


class _Run(NamedTuple):
    """Visible characters and the HTML elements around them."""

    start: int
    end: int
    look: str
    path: Path


def render(tokens: Sequence[tuple[str, Token | None]], spans: TokenSpans) -> Iterator[str]:
    """Yield the HTML. tokens: (text, what is known of the token); None: text without tokens."""
    text = "".join(said for said, _ in tokens)
    looks: list[str] = [_HIDDEN] * len(text)
    paths: list[Path | None] = [None] * len(text)
    for run in _runs(text):
        looks[run.start : run.end] = [run.look] * (run.end - run.start)
        paths[run.start : run.end] = [run.path] * (run.end - run.start)
    path: Path = ()
    at = 0
    for said, token in tokens:
        end = at + len(said)
        for start, stop in [(at, end)] if token is not None else _parts(paths, at, end):
            wanted = _path_of(text, paths, start, stop, path)
            yield _moved(path, wanted)
            path = wanted
            inner = _inner(text, looks, start, stop)
            yield inner if token is None else spans.span(token, inner)
        at = end
    yield _moved(path, ())


def _parts(paths: Sequence[Path | None], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Text without tokens, cut before each block."""
    at, path = start, None
    for place in range(start, end):
        if paths[place] is not None and paths[place] != path:
            if path is not None:
                yield at, place
                at = place
            path = paths[place]
    yield at, end


def _path_of(text: str, paths: Sequence[Path | None], start: int, end: int, before: Path) -> Path:
    """Where a token belongs: signs that begin a line to what follows, other ones to what was before."""
    shown = next((paths[at] for at in range(end - 1, start - 1, -1) if paths[at] is not None), None)
    if shown is not None:
        return shown
    line = text.rfind("\n", 0, start) + 1
    leads = text[start:end].strip() and all(paths[at] is None for at in range(line, start))
    if leads or not before:
        return next((path for path in paths[end:] if path is not None), before or _PARAGRAPH)
    return before


def _moved(old: Path, new: Path) -> str:
    """The tags between two places."""
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    return "</div>" * (len(old) - same) + "".join(tag for _, tag in new[same:])


def _inner(text: str, looks: Sequence[str], start: int, end: int) -> str:
    found = []
    for look, places in groupby(range(start, end), lambda at: looks[at]):
        said = page.text("".join(text[at] for at in places)).replace("\n", NEWLINE_SIGN)
        tags = [_TAGS[name] for name in look.split() if name in _TAGS]
        if look == _HIDDEN:
            said = f'<i class="syn">{said}</i>'
        found.append("".join(f"<{tag}>" for tag in tags) + said + "".join(f"</{tag}>" for tag in tags[::-1]))
    return "".join(found)


def _runs(text: str) -> Iterator[_Run]:
    for number, (block, begin, end) in enumerate(_blocks(text)):
        depth = min(MAX_DEPTH, len(block.first))
        classes = [{"text": "p", "heading": f"h{block.level}"}.get(block.kind, block.kind)]
        classes += [f"d{depth}"] if depth else []
        classes += ["quote"] if any(piece.look == "quote" for piece in block.first) else []
        marks = [piece for piece in block.first if piece.look == "marker" and piece.at >= 0]
        classes += [_MARKS.get(mark.text, "") for mark in marks[-1:]]
        language = f' data-language="{page.line(block.info)}"' if block.info else ""
        path: Path = ((number, f'<div class="{" ".join(filter(None, classes))}"{language}>'),)
        for mark in marks:
            if mark.text not in _MARKS:
                yield _Run(mark.at, mark.at + len(mark.text), "marker", path)
        if block.kind == "rule":
            yield _Run(begin, end, _HIDDEN, path)
        yield from _of_block(text, block, path)


def _blocks(text: str) -> list[tuple[MarkdownBlock, int, int]]:
    """The blocks, each with the place of its first line."""
    parser, found, at = BlockParser(), [], 0
    for line in text.split("\n"):
        if (opened := parser.push(line, at).opened) is not None:
            found.append((opened, at, at + len(line)))
        at += len(line) + 1
    return found


def _of_block(text: str, block: MarkdownBlock, path: Path) -> Iterator[_Run]:
    if block.kind == "table":
        yield from _table(text, block, path)
    elif block.kind == "code":
        for line, at in block.lines:
            yield _Run(at, min(len(text), at + len(line) + 1), "", path)
    elif block.kind != "rule":
        lines = block.lines[1:] if len(block.lines) > 1 and not block.lines[0][0] else block.lines
        for number, pieces in enumerate(parse_inline_lines(lines)):
            yield from _shown(text, pieces, path)
            if number < len(lines) - 1:  # a line break of a paragraph is one of the page
                end = text.index("\n", lines[number][1] + len(lines[number][0]))
                yield _Run(end, end + 1, "", path)


def _table(text: str, block: MarkdownBlock, path: Path) -> Iterator[_Run]:
    for number, (line, at) in enumerate(block.lines):
        if number == 1:
            continue  # the delimiters
        row = f'<div class="row{"" if number else " head"}">'
        for column, (cell, inside) in enumerate(split_cells(line)):
            where = (*path, (number, row), (column, '<div class="cell">'))
            yield from _shown(text, parse_inline(cell, at + inside), where)


def _shown(text: str, pieces: Sequence[StyledSpan], path: Path) -> Iterator[_Run]:
    for said, look, at in pieces:
        if at < 0 or not said:
            continue
        start, end = at, at + len(said)
        if "url" in look.split():
            start += 1  # ](address)
        elif text.startswith("\\", start) and said != text[start:end]:
            start, end = start + 1, end + 1
        elif said != text[start:end] and (entity := _ENTITY.match(text, start)):
            end = entity.end()
        yield _Run(min(start, len(text)), min(end, len(text)), look, path)
