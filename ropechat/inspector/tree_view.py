"""The tree of continuations as text with bars, and as JSON lines (schema `ropechat.tree/1`) and CSV.

JSON lines: line 1 describes prompt, model and limits; one line per node follows, by falling probability; the
last one (`"summary": true`) has `mass` and `remainder`, which sum to 1. `node` counts from 1, the root being
node 0, and `parent` names a node. `logprob` is of the token after those before it, `path_logprob` the sum
along the path; both raw, in nats; fields whose names end in `_bits` are in bits. `prob` is the probability of
the path and `rest` what the children of a node do not cover of it (of a leaf 0). `joined` names the likelier
node with the same text by another tokenization, `text_prob` the probability of the text by all of them.
CSV has the same as columns.
"""

from collections.abc import Iterator
from typing import Any

from ropechat.inspector.ansi import DIM, paint
from ropechat.inspector.scored_text import LN2, percent
from ropechat.inspector.tree import Tree
from ropechat.util.records import ByteValues, Csv, TokenText, bar, cells, json_line
from ropechat.util.text import count_of, one_line, token_name
from ropechat.util.width import fit

SCHEMA = "ropechat.tree/1"
COLUMNS = (
    *("node", "parent", "depth", "id", "token", "bytes", "text", "rank", "logprob", "surprisal_bits"),
    *("path_logprob", "path_bits", "prob", "rest", "entropy_bits", "end", "given", "joined", "text_prob"),
)
_FACTS = ("model", "revision", "dtype", "kv_dtype", "isa", "engine", "top_k", "depth", "nodes", "mass", "at")
_BAR = 10
_LEAST_REST = 0.001


def node_record(tree: Tree, index: int) -> dict[str, Any]:
    """The record of a node."""
    node = tree.nodes[index]
    return {
        "node": index,
        "parent": node.parent,
        "depth": node.depth,
        "id": node.id,
        "token": TokenText(node.bytes),
        "bytes": ByteValues(node.bytes),
        "text": TokenText(tree.text(index)),
        "rank": node.rank,
        "logprob": node.logprob,
        "surprisal_bits": 0.0 - node.logprob / LN2,
        "path_logprob": node.path_logprob,
        "path_bits": 0.0 - node.path_logprob / LN2,
        "prob": node.prob,
        "rest": tree.rest(index),
        "entropy_bits": None if node.entropy is None else node.entropy / LN2,
        "end": node.is_end,
        "given": node.is_given,
        "joined": node.joined,
        "text_prob": tree.text_prob(index),
    }


def json_lines(tree: Tree) -> Iterator[str]:
    """Yield the lines, with newlines."""
    root, text = tree.nodes[0], tree.meta.get("text")
    yield json_line(
        {
            "schema": SCHEMA,
            **{fact: tree.meta.get(fact) for fact in _FACTS},
            "log_base": "e",
            "stage": "raw",
            "rest": tree.rest(0),
            "entropy_bits": None if root.entropy is None else root.entropy / LN2,
            "text": text,
        }
    )
    for index in range(1, len(tree.nodes)):
        yield json_line(node_record(tree, index))
    yield json_line(
        {
            "summary": True,
            "nodes": len(tree.nodes) - 1,
            "rows": tree.computed,
            "stopped": tree.stopped,
            "mass": tree.mass,
            "remainder": tree.remainder,
        }
    )


def csv_lines(tree: Tree) -> Iterator[str]:
    """Yield the lines, with line ends."""
    out = Csv(COLUMNS)
    yield out.head
    for index in range(1, len(tree.nodes)):
        yield out.line(cells(node_record(tree, index)))


def name_of(tree: Tree, index: int) -> str:
    """The token of a node, with what is special about it."""
    node = tree.nodes[index]
    marks = [f"≡ {visible_text(tree, node.joined)}"] if node.joined is not None else []
    marks += ["◂"] if node.is_given else []
    return "  ".join([token_name(node.id, node.bytes), *marks])


def visible_text(tree: Tree, index: int) -> str:
    """The text of a path, with marks for spaces and line ends."""
    return "".join(token_name(node.id, node.bytes) for node in tree.path(index))


def prompt_end(tree: Tree, width: int) -> str:
    """The end of the prompt in so many columns."""
    text = one_line(tree.meta.get("text") or "")
    while text and len(fit(text, width).rstrip()) < len(text.rstrip()):
        text = text[max(1, len(text) - width) :]
    return text


def summary(tree: Tree) -> str:
    """What the tree covers."""
    stopped = ", stopped early" if tree.stopped else ""
    return (
        f"{count_of(len(tree.nodes) - 1, 'node')}{stopped}: the ends of the paths have {tree.mass:.1%}, "
        f"the rests {tree.remainder:.1%}"
    )


def lines(tree: Tree, width: int = 80, *, color: bool = False) -> Iterator[str]:
    """Yield the lines of the tree: the probability of the path, a bar, that of the token, and the token.

    A rest below 0.1% has no line. ◂ marks what really follows, ∎ the end of a text, ≡ a text that meets a
    likelier one again.
    """
    head = f"{'path':>7}  {'':{_BAR}}  {'token':>7}  {prompt_end(tree, width - 30)}"
    yield paint(fit(head, width).rstrip(), DIM, color)
    yield from _below(tree, 0, "", width, color)
    yield paint(fit(summary(tree), width).rstrip(), DIM, color)


def _below(tree: Tree, index: int, indent: str, width: int, color: bool) -> Iterator[str]:
    """The lines below a node."""
    rest, node = tree.rest(index), tree.nodes[index]
    shows_rest = rest >= _LEAST_REST
    for place, child in enumerate(node.children):
        is_last = place == len(node.children) - 1 and not shows_rest
        at, end = tree.nodes[child], " ∎" if tree.nodes[child].is_end else ""
        stem = f"{indent}{'└ ' if is_last else '├ '}" if node.parent is not None else ""
        facts = f"{percent(at.path_logprob):>7}  {bar(at.prob, _BAR)}  {percent(at.logprob):>7}  "
        yield fit(f"{facts}{stem}{name_of(tree, child)}{end}", width).rstrip()
        inner = indent if node.parent is None else f"{indent}{'  ' if is_last else '│ '}"
        yield from _below(tree, child, inner, width, color)
    if node.children and shows_rest:
        stem = f"{indent}└ " if node.parent is not None else ""
        facts = f"{rest:>7.1%}  {bar(rest, _BAR)}  {rest / node.prob:>7.1%}  "
        yield paint(fit(f"{facts}{stem}(rest)", width).rstrip(), DIM, color)
