"""The tree of continuations as a picture (SVG) and as a page (HTML).

In the picture each column is one token further, and the height of a node is the probability of its path, so
all nodes of a column and the gaps between them (rests) have the height of the whole. The page has the picture
and the nodes as a list to open and close; see `page`.
"""

import html
import math
from collections.abc import Iterator

from ropechat.inspector import page
from ropechat.inspector.scored_text import LN2, percent
from ropechat.inspector.strip import xml_text
from ropechat.inspector.tree import Tree, TreeNode
from ropechat.inspector.tree_view import name_of, prompt_end, summary, visible_text
from ropechat.util.text import token_name
from ropechat.util.width import cell_width, fit

_COLUMN, _GAP, _HEIGHT, _EDGE, _LINE = 104, 2, 520, 16, 13
_CELL = 6.9  # width of a character of 11.5px in a monospaced font
_LEAST = 0.6  # height below which a node is not drawn
_PICTURE_STYLE = """
.tree { font: 11.5px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
.tree text { fill: var(--ink, #1d1b18); }
.tree .dim { fill: var(--dim, #6f6a62); }
.tree .node { fill: var(--tint, #e8731a); stroke: var(--card, #ffffff); stroke-width: .5; }
.tree .given { stroke: var(--accent, #1f5fbf); stroke-width: 2; }
"""
_STYLE = (
    _PICTURE_STYLE
    + """
.picture { overflow-x: auto; margin-bottom: 1.2rem; }
.nodes { font: 14px/1.7 var(--mono); max-width: 56rem; }
.nodes details > *:not(summary) { margin-left: 1.1rem; }
.nodes summary, .nodes .leaf { display: flex; align-items: center; border-bottom: 1px solid var(--line); }
.nodes summary { cursor: pointer; list-style: none; }
.nodes summary::before, .nodes .leaf::before { content: ""; width: 1.1rem; color: var(--dim); }
.nodes details > summary::before { content: "▸"; }
.nodes details[open] > summary::before { content: "▾"; }
.nodes .name { flex: 1; overflow-wrap: anywhere; }
.nodes svg { flex: none; width: 8rem; height: .75em; margin-left: .6rem; }
.nodes svg rect { fill: var(--tint); }
.nodes .value { flex: none; width: 5em; text-align: right; font-variant-numeric: tabular-nums; }
.nodes .given .name { color: var(--accent); }
"""
)
_LEAD = (
    "The likeliest continuations, best first. The height of a node, and its bar, are the probability of the "
    "path up to it; the tint is the probability of its token after those before it."
)


def svg(tree: Tree) -> Iterator[str]:
    """Yield the picture as a file of its own."""
    yield from _picture(tree, alone=True)


def render(tree: Tree, title: str) -> Iterator[str]:
    """Yield the page in pieces. title: plain text."""
    yield from page.page(title, _body(tree), lead=_LEAD, style=_STYLE)


def _body(tree: Tree) -> Iterator[str]:
    root, meta = tree.nodes[0], tree.meta
    yield page.facts(
        [
            ("model", str(meta.get("model") or "–")),
            ("weights", str(meta.get("dtype") or "–")),
            ("nodes", page.number(len(tree.nodes) - 1, 0)),
            ("ends of the paths", f"{tree.mass:.2%}"),
            ("rests", f"{tree.remainder:.2%}"),
            ("entropy after the prompt", f"{page.number((root.entropy or 0.0) / LN2)} bits"),
        ]
    )
    if text := meta.get("text"):
        yield f'<pre class="tokens card">{page.text(text)}</pre>\n'
    yield '<h2>Picture</h2>\n<div class="picture">'
    yield from _picture(tree, alone=False)
    yield '</div>\n<h2>Paths</h2>\n<div class="nodes">\n'
    yield f'<div class="leaf dim">{_item("token", 0.0, "path", "token")}</div>\n'
    yield from _list(tree, 0)
    yield "</div>\n"


def _list(tree: Tree, index: int) -> Iterator[str]:
    """The nodes below one, as elements to open and close."""
    for child in tree.nodes[index].children:
        node = tree.nodes[child]
        facts, kind = page.text(_facts(tree, child)), " given" if node.is_given else ""
        end = ' <span class="dim">end</span>' if node.is_end else ""
        name = f"{page.line(name_of(tree, child))}{end}"
        shown = _item(name, node.prob, percent(node.path_logprob), percent(node.logprob))
        if not node.children:
            yield f'<div class="leaf{kind}" title="{facts}">{shown}</div>\n'
            continue
        yield f'<details open><summary class="{kind.strip()}" title="{facts}">{shown}</summary>\n'
        yield from _list(tree, child)
        yield "</details>\n"
    if (rest := tree.rest(index)) > 0.0:
        share = f"{rest / tree.nodes[index].prob:.2%}"
        yield f'<div class="leaf dim">{_item("(rest)", rest, f"{rest:.2%}", share)}</div>\n'


def _item(name: str, prob: float, path: str, own: str) -> str:
    """What a node shows: HTML of its name, the bar and probability of the path, that of its token."""
    rect = f'<rect width="{100 * prob:.2f}" height="10"/>'
    return (
        f'<span class="name">{name}</span><svg viewBox="0 0 100 10" preserveAspectRatio="none">{rect}</svg>'
        f'<span class="value">{path}</span><span class="value">{own}</span>'
    )


def _facts(tree: Tree, index: int) -> str:
    """What a pointer shows at a node."""
    node = tree.nodes[index]
    facts = [
        visible_text(tree, index),
        f"path {percent(node.path_logprob)}, {0.0 - node.path_logprob / LN2:.2f} bits",
        f"token {percent(node.logprob)}, {0.0 - node.logprob / LN2:.2f} bits, rank {node.rank}",
    ]
    facts += [] if node.entropy is None else [f"entropy of what follows {node.entropy / LN2:.2f} bits"]
    facts += [f"the text in all tokenizations {tree.text_prob(index):.3%}"] if node.twins else []
    return "\n".join(facts)


def _picture(tree: Tree, *, alone: bool) -> Iterator[str]:
    columns = max(node.depth for node in tree.nodes)
    width = columns * _COLUMN + 2 * _EDGE
    head, foot = 2 * _EDGE, 2 * _EDGE
    height = head + _HEIGHT + foot
    space = ' xmlns="http://www.w3.org/2000/svg"' if alone else ""
    yield (
        f'<svg{space} class="tree" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img">\n'
        "<title>The likeliest continuations</title>\n"
    )
    if alone:
        yield f'<style>{_PICTURE_STYLE}</style>\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
    room = int((width - 2 * _EDGE) / _CELL)
    yield _text(_EDGE, head - 10, prompt_end(tree, room) or "the prompt", "dim")
    yield from _column(tree, 0, float(head))
    words = f"{summary(tree)}; {tree.meta.get('model') or 'model'}, {tree.meta.get('dtype') or ''}"
    yield _text(_EDGE, height - 12, fit(words.rstrip(", "), max(room, 20)).rstrip(), "dim")
    yield "</svg>\n"


def _column(tree: Tree, index: int, top: float) -> Iterator[str]:
    """The rectangles of a node's children, from the top of the node on."""
    for child in tree.nodes[index].children:
        node = tree.nodes[child]
        height = node.prob * _HEIGHT
        if height >= _LEAST:
            yield from _node(tree, child, node, top, height)
            yield from _column(tree, child, top)
        top += height


def _node(tree: Tree, index: int, node: TreeNode, top: float, height: float) -> Iterator[str]:
    x, width = _EDGE + (node.depth - 1) * _COLUMN, _COLUMN - _GAP
    opacity = 0.12 + 0.6 * min(1.0, math.exp(node.logprob))
    kind = "node given" if node.is_given else "node"
    yield (
        f'<rect class="{kind}" x="{x}" y="{top:.2f}" width="{width}" height="{height:.2f}" '
        f'fill-opacity="{opacity:.2f}"><title>{_xml(_facts(tree, index))}</title></rect>\n'
    )
    if height >= _LINE:
        cells = int((width - 6) / _CELL)
        share = percent(node.path_logprob)
        name = token_name(node.id, node.bytes)
        one = fit(name, cells - len(share) - 1) + " " + share
        if cell_width(name) > cells - len(share) - 1 and height >= 2 * _LINE:
            yield _text(x + 3, top + height / 2 - 2, fit(name, cells).rstrip(), "")
            yield _text(x + 3, top + height / 2 + _LINE - 2, share, "dim")
        else:
            yield _text(x + 3, top + height / 2 + 4, one, "")


def _text(x: float, y: float, text: str, kind: str) -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" xml:space="preserve"{named}>{_xml(text)}</text>\n'


def _xml(text: str) -> str:
    """Text without what XML forbids, escaped; line ends stay."""
    return "\n".join(html.escape(xml_text(line)) for line in text.split("\n"))
