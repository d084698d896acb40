"""A conversation as one HTML page: answers as tinted tokens with candidates, see `page`, `spans`."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ropechat.conversation import Node, Role, spoken, surprisal_bits, thought_length
from ropechat.inspector import page
from ropechat.inspector.chat_markdown import render
from ropechat.inspector.spans import Token, TokenSpans
from ropechat.inspector.stages import describe_settings
from ropechat.inspector.trace_page import columns
from ropechat.sampling import Sampling
from ropechat.store.queries import Chat
from ropechat.trace import Step
from ropechat.util.text import count_of, local_time, visible

Spell = Callable[[str, int], bytes]
"""(model's name, id) -> the bytes of the token, b"" if unknown."""
_TEXT = page.choice("text", "Text", (("markdown", "Markdown"), ("source", "as written")))


def to_html(chat: Chat, spell: Spell) -> Iterator[str]:
    """Yield the page of the branch on screen in pieces. spell: for the alternatives."""
    style = page.asset("tokens.css") + page.asset("chat.css")
    title = " ".join(chat.title.split()) or "Conversation"
    yield from page.page(title, _body(chat, spell), style=style, script=page.asset("tokens.js"))


def _body(chat: Chat, spell: Spell) -> Iterator[str]:
    path = chat.tree.path()
    said = {(node.model, step.id): step.bytes for node in path for step in node.steps if step.bytes}
    spans = TokenSpans()

    def bytes_of(model: str, id: int) -> bytes:
        return spell(model, id) or said.get((model, id), b"")

    def articles() -> Iterator[str]:
        for node in path:
            if node.steps:
                spans.use(node.model, partial(bytes_of, node.model))
            yield _article(chat, node, spans)

    yield from columns(articles(), spans, _TEXT)


def _article(chat: Chat, node: Node, spans: TokenSpans) -> str:
    who = {Role.SYSTEM: "system", Role.USER: "you", Role.ASSISTANT: node.model or "answer"}[node.role]
    place, of = chat.tree.sibling_position(node.id)
    facts = [page.line(who)]
    facts += [f"{place}/{of}"] if of > 1 else []
    facts += [f"{local_time(node.created):%Y-%m-%d %H:%M}"] if node.created else []
    if node.steps:
        facts.append(count_of(len(node.steps), "token"))
        facts += [] if math.isnan(node.ppl) else [f"{node.bits:.1f} bits", f"perplexity {node.ppl:.2f}"]
    if node.sampling is not None:
        facts += [fact for fact in (describe_settings(node.sampling), _seed(node.sampling)) if fact]
    count = thought_length(node.steps)
    thought = _thought(node, count, spans)  # before the answer: tokens are numbered as they are written
    if node.role is Role.ASSISTANT:
        tokens = [(token.text, token) for token in map(_token, _shown(node.steps[count:]))]
        said = "".join(render(tokens if node.steps else [(node.text, None)], spans))
        said = f'<div class="prose markdown">{said}</div>'
    else:
        said = page.text(node.text)
        said = f"\n{said}" if said.startswith("\n") else said  # HTML drops a newline after <pre>
        said = f'<pre class="prose">{said}</pre>'
    head = f'<article class="{node.role}">\n<h2>{" · ".join(facts)}</h2>\n'
    return f"{head}{thought}{said}\n</article>\n"


def _shown(steps: Sequence[Step]) -> Iterator[Step]:
    return (step for step in steps if spoken(step) or step.bytes)


def _tokens(steps: Sequence[Step], spans: TokenSpans) -> str:
    return "".join(spans.span(_token(step)) for step in _shown(steps))


def _thought(node: Node, count: int, spans: TokenSpans) -> str:
    """What the model thought before its answer, folded."""
    if not count and not node.final_reasoning:
        return ""
    facts = ["thought"]
    if count:
        facts += [count_of(count, "token"), f"{math.fsum(map(surprisal_bits, node.steps[:count])):.1f} bits"]
    said = _tokens(node.steps[:count], spans) if count else page.text(node.reasoning.strip())
    summary = f"<summary>{' · '.join(facts)}</summary>"
    return f'<details class="thought">\n{summary}\n<pre class="prose">{said}</pre>\n</details>\n'


def _seed(sampling: Sampling) -> str:
    return "" if sampling.seed is None or sampling.temperature == 0 else f"seed {sampling.seed}"


def _token(step: Step) -> Token:
    given = math.isnan(step.logprob)
    kind = "special" if step.channel == "marker" else "given" if given else ""
    return Token(
        step.id,
        step.reasoning + step.text,
        visible(step.bytes),
        kind,
        None if given else step.logprob,
        step.rank,
        step.entropy,
        step.top,
    )
