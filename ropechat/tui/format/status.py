"""The texts of title, gauge and headings, as functions of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.chat import presets
from ropechat.chat.context import OverflowPolicy
from ropechat.conversation import NodeState
from ropechat.models.catalog import shown_name
from ropechat.sampling import MAX_BIAS
from ropechat.tui.render.tint import BY_NAME
from ropechat.tui.widgets.bars import JOIN, Part, draw_meter
from ropechat.util.progress import format_rate
from ropechat.util.text import count_of, format_duration, format_seconds, one_line
from ropechat.util.width import fit

if TYPE_CHECKING:
    from ropechat.chat.answer import Answer
    from ropechat.chat.session import Session
    from ropechat.conversation import Node
    from ropechat.util.progress import Wait

TOLD_FROM_S = 2.0  # a question that takes longer to read says so before it is sent
ANSWER_NOW = "answer now"
SHOWN_AFTER_S = 0.5  # a shorter wait leaves the gauge as it is


def title(session: Session, width: int) -> tuple[list[Part], list[Part]]:
    """(left, right) parts of the title: the chat; the model and its activity."""
    name = _model_name(session)
    left: list[Part] = [("  ropechat  ", "bold $primary")] if width >= 70 else [("  ", "")]
    left.append((session.title, "$foreground"))
    known = session.info is not None and not session.coming and width >= 70
    dtype = f"·{session.info.dtype}" if known and session.info and session.info.dtype else ""
    mark, colour, words = activity(session)
    right: list[Part] = [
        *_under(session, width),
        *[(f"  {words}", "$warning") for words in _weighed(session)],
        *[(f"  {words}", "$foreground") for words in _thinks(session)],
        ("  " + name, "$foreground"),
        (dtype, "$quiet"),
        (f"  {mark} ", colour),
        (words + "  ", "$quiet"),
    ]
    return left, right


def title_links(session: Session) -> dict[str, str]:
    """{part of the title: the command that a click on it runs}."""
    name = _model_name(session)
    return {
        "ropechat": "app.help",
        one_line(session.title).strip(): "chat.list",
        one_line(name).strip(): "model.pick",
        "sampling": "sampling.open",
        (presets.preset_of(session.sampling) or f"T {session.sampling.temperature:g}"): "sampling.open",
        "persona": "prompt.persona",
        "system": "prompt.system",
        session.persona or "system": "prompt.persona",
        **dict.fromkeys(_thinks(session), "sampling.open"),
    } | dict.fromkeys(_weighed(session), "sampling.bias")


def _model_name(session: Session) -> str:
    """The model that is loaded, or being loaded."""
    return session.coming or (shown_name(session.info.name) if session.info else session.model)


def _weighed(session: Session) -> list[str]:
    """How many tokens are banned, and how many favoured or disfavoured."""
    biases = [bias for _, bias in session.sampling.logit_bias if bias]
    banned = sum(bias <= -MAX_BIAS for bias in biases)
    weighed = len(biases) - banned
    return [f"{banned} banned"] * bool(banned) + [f"{weighed} biased"] * bool(weighed)


def _thinks(session: Session) -> list[str]:
    """How much the model is told to think, where that is not as its chat template says."""
    known = session.info is not None and session.info.thinks
    return presets.thinking_words(session.sampling) if known else []


def _under(session: Session, width: int) -> list[Part]:
    """The persona and the preset, if there is room."""
    if width < 100:
        return []
    parts: list[Part] = []
    if session.system:
        name = session.persona
        parts.append(("  persona " if name else "  system ", "$quiet"))
        parts.append((name or fit(one_line(session.system), 20).rstrip(), "$foreground"))
    if width >= 120:
        preset = presets.preset_of(session.sampling) or f"T {session.sampling.temperature:g}"
        parts += [("  sampling ", "$quiet"), (preset, "$foreground")]
    return [*parts, ("  ", "")]


def model_heading(model: str) -> str:
    """A model's name for a heading."""
    return one_line(shown_name(model)) or "answer"


def activity(session: Session) -> tuple[str, str, str]:
    """(mark, colour, words) of the model's present activity."""
    if session.load_error is not None:
        return "✗", "$error", "not loaded"
    if session.info is None or session.coming:
        return "○", "$quiet", _waiting(session.wait) or "loading"
    if session.last is None:
        return "●", "$success", "ready"
    answer = session.last.answer
    if not answer.live:
        rated = answer.node.state is not NodeState.FAILED and _by_this_model(session)
        return "●", "$success", (format_rate(answer.rate) if rated else "") or "ready"
    if answer.stopping:
        return "●", "$warning", "stopping"
    if answer.first_at is not None:
        return "●", "$primary", format_rate(answer.rate) or "writing"
    if answer.started:
        return "●", "$primary", _waiting(session.wait) or "reading"
    return "●", "$primary", "waiting"


def _waiting(wait: Wait | None) -> str:
    """A wait in few words: reading 16%, 1 min 35 s left; "" for none."""
    if wait is None or (share := wait.progress.share) is None:
        return ""
    left = "" if wait.left is None else f", {format_duration(wait.left)} left"
    return f"{wait.progress.stage} {share:.0%}{left}"


def _by_this_model(session: Session) -> bool:
    """Whether the loaded model wrote the newest answer in this session."""
    last = session.last
    node = session.tree.nodes.get(last.node or "") if last is not None else None
    asked = last is not None and last.request is not None
    return asked and node is not None and session.info is not None and node.model == session.info.name


def gauge(session: Session, width: int, *, share: bool = True) -> list[Part]:
    """The parts of the context gauge: used and total tokens, and the policy for a question that does not fit.

    share: also show percent.
    """
    context, used = session.context, session.used
    if session.wait is not None and session.wait.elapsed >= SHOWN_AFTER_S:
        return _wait_gauge(session.wait, width)
    if context is None:
        return [("  context", "$quiet")]
    known = used if used is not None else 0
    full = known >= context
    cells = 10 if width < 70 or full else 12 if width < 120 else 16 if width < 180 else 32
    colour = "$error" if full else "$warning" if known > 0.9 * context else "$primary"
    filled, rest = draw_meter(known / context, cells)
    left: list[Part] = [("  ctx ", "$quiet"), (filled, colour), (rest, "$rule")]
    if full and not session.generating:
        return [*left, (f" {known:,} tokens do not fit in {context:,}", colour), _when_full(session, width)]
    count = f" {known:,}/{context:,}" if used is not None else f" {context:,} tokens"
    left.append((count, "$foreground"))
    if used is not None and width >= 70 and (share or full):
        left.append(("  full", colour) if full else (f"  {known / context:.0%}", "$quiet"))
    if (
        (seconds := session.draft_seconds)
        and seconds >= TOLD_FROM_S
        and used is not None
        and not session.generating
    ):
        price = f"about {format_duration(rounded(seconds))} to read"
        count = f"{session.draft_unread:,} tokens, " if width >= 76 else ""
        return [*left, (f"  {count}{price}", "$warning")]
    if not session.generating and width >= 100 and (unsent := session.thoughts_left_out):
        left.append((f"  {count_of(unsent, 'token')} of thoughts not sent again", "$quiet"))
    if session.when_full is not OverflowPolicy.ASK and width >= 70:
        left.append((f"  {session.when_full}", "$quiet"))
    if session.read_ahead is not None and not session.generating:
        done, total = session.read_ahead
        left.append((f"  {done:,} of {total:,} read", "$quiet"))
    return left


def _wait_gauge(wait: Wait, width: int) -> list[Part]:
    """The gauge while the model is loaded or reads: a bar, what is done, the rate and the time left."""
    filled, rest = draw_meter(wait.progress.share or 0.0, 10 if width < 70 else 16 if width < 120 else 32)
    words = wait.words()
    return [
        (f"  {wait.progress.stage} ", "$quiet"),
        (filled, "$primary"),
        (rest, "$rule"),
        (f" {words[0]}", "$foreground"),
        ("".join(JOIN + word for word in words[1:]), "$quiet"),
    ]


def rounded(seconds: float) -> float:
    """A time that is only expected: to whole seconds below 10, to 5 below a minute, then to minutes."""
    step = 1 if seconds < 10 else 5 if seconds < 60 else 60
    return max(step, round(seconds / step) * step)


def _when_full(session: Session, width: int) -> Part:
    if session.draft_alone:
        return (": too long by itself" if width >= 76 else "", "$quiet")
    words = {
        OverflowPolicy.ASK: "⏎ asks what to leave out",
        OverflowPolicy.SLIDE: "⏎ leaves out the oldest turns",
        OverflowPolicy.STOP: "it will not be sent",
    }
    return (f": {words[session.when_full]}" if width >= 76 else "", "$quiet")


def legend(tint: str, colours: tuple[str, ...]) -> list[Part]:
    """The legend of a tint: the value at which each level begins."""
    if tint not in BY_NAME:
        return []
    shown = BY_NAME[tint]
    samples = [(f" {limit:g} ", colour) for limit, colour in zip(shown.limits, colours[1:], strict=True)]
    return [(f"{shown.name} ", "$quiet"), *samples, (f" {shown.unit}   ", "$quiet")]


def summarize(answer: Answer) -> str:
    """The note at the right of a finished answer's heading."""
    node = answer.node
    count = len(node.steps)
    if not count:  # imported as text
        return why_ended(node)
    words = [f"{count:,} tok" + (f" ({count - node.prefix_length:,} new)" if node.prefix_length else "")]
    words += [format_seconds(answer.seconds)] if node.ended_after is not None else []
    if answer.rate is not None:
        words.append(format_rate(answer.rate))
    words.append(f"{answer.bits_per_token or 0.0:.2f} bits/token")
    reason = why_ended(node)
    return JOIN.join([reason, *words] if reason else words)


def thought_line(answer: Answer, now: float, key: str) -> str:
    """The line above a thought. now: seconds, monotonic. key: the one that has the model answer now."""
    thought = answer.thought
    if thought is None:
        return ""
    count = f"{thought.tokens:,} tok"
    if answer.thinking and not answer.stopping:
        spent = "" if answer.first_at is None else f"{JOIN}{now - answer.first_at:.0f} s"
        return f"thinking  {count}{spent}{JOIN}{key}: {ANSWER_NOW}"
    words = [count] if thought.tokens else []
    words += [] if thought.seconds is None else [format_seconds(thought.seconds)]
    words += [f"{thought.bits / thought.tokens:.2f} bits/token"] if thought.tokens else []
    return "  ".join(["thought", JOIN.join(words)]).rstrip()


def cut_line(node: Node, way: str) -> str:
    """The line below an answer that is not complete; "" if it is. way: how to continue it; "": not said."""
    reason = why_ended(node)
    if not node.steps or reason == "failed":
        return ""
    if node.steps[-1].channel != "answer" and not node.text:
        reason = "cut while thinking" if reason else "ended while thinking"
    if not reason:
        return ""
    return f"{reason}{JOIN}{way} continues" if way else reason


def why_ended(node: Node) -> str:
    """Why an answer is not complete; "" if it is."""
    if node.state in (NodeState.STOPPED, NodeState.STREAMING):  # streaming: another program writes it
        return "stopped"
    if node.state is NodeState.FAILED:
        return "failed"
    return {"length": "cut at the token limit", "context": "context full"}.get(node.finish_reason or "", "")
