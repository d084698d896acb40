"""A conversation as an HTML page without scripts: tokens tinted by surprisal, with numbers in tooltips."""

import html
import math

from ropechat.conversation import Node, Role, surprisal_bits
from ropechat.store.queries import Chat
from ropechat.trace import Step
from ropechat.util.text import clean

MAX_ALTERNATIVES = 5  # alternatives in a tooltip
FULL_TINT_BITS = 10.0  # bits at which the tint is at its strongest

STYLE = """
:root { color-scheme: light dark; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.55 system-ui, sans-serif; }
article { margin: 1.5rem 0; }
h2 { font-size: .85rem; font-weight: normal; opacity: .7; margin: 0 0 .3rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: inherit; margin: 0; }
.user pre { border-left: 3px solid #b7791f; padding-left: .8rem; }
.system pre { opacity: .7; }
"""


def to_html(chat: Chat) -> str:
    """The branch on screen as a self-contained page."""
    title = html.escape(clean(" ".join(chat.title.split())))
    body = "\n".join(_article(chat, node) for node in chat.tree.path())
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\n"
        "<p>A stronger tint means a less probable token: "
        f"none at 0 bits, full at {FULL_TINT_BITS:g}.</p>\n</body>\n</html>\n"
    )


def _article(chat: Chat, node: Node) -> str:
    who = {Role.SYSTEM: "system", Role.USER: "you", Role.ASSISTANT: node.model or "answer"}[node.role]
    place, of = chat.tree.sibling_position(node.id)
    facts = [html.escape(clean(who))]
    facts += [f"{place}/{of}"] if of > 1 else []
    if node.steps:
        facts.append(f"{len(node.steps)} tokens")
        facts += [] if math.isnan(node.ppl) else [f"{node.bits:.1f} bits", f"perplexity {node.ppl:.2f}"]
    said = "".join(map(_token, node.steps)) if node.steps else html.escape(clean(node.text))
    return f'<article class="{node.role}">\n<h2>{" · ".join(facts)}</h2>\n<pre>{said}</pre>\n</article>'


def _token(step: Step) -> str:
    text = html.escape(clean(step.text))
    if not text:
        return ""
    if math.isnan(step.logprob):
        return f"<u>{text}</u>"
    cost = surprisal_bits(step)
    strength = min(1.0, cost / FULL_TINT_BITS)
    tint = f' style="background: rgb(237 137 54 / {strength:.2f})"' if strength >= 0.02 else ""
    ranks = ", ".join(f"{math.exp(logprob):.3f}" for _, logprob in step.top[:MAX_ALTERNATIVES])
    facts = f"{math.exp(step.logprob):.4f} · {cost:.2f} bits · rank {step.rank}"
    facts += f" · best {ranks}" if ranks else ""
    return f'<span{tint} title="{facts}">{text}</span>'
