"""What the title, the gauge and the footer say: plain functions of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.text import one_line
from ropechat.tui.render.tint import BY_NAME
from ropechat.tui.session import Session, State
from ropechat.tui.widgets.bars import Part, meter

if TYPE_CHECKING:
    from ropechat.tui.session import Answer


def title(session: Session, width: int) -> tuple[list[Part], list[Part]]:
    """Left: the chat. Right: the model and what it does."""
    name = session.info.name if session.info else session.model
    left: list[Part] = [("  ropechat  ", "bold $primary")] if width >= 70 else [("  ", "")]
    left.append((session.title, "$foreground"))
    dtype = f"·{session.info.dtype}" if session.info and session.info.dtype and width >= 70 else ""
    mark, colour, words = activity(session)
    right: list[Part] = [
        ("  " + name, "$foreground"),
        (dtype, "$quiet"),
        (f"  {mark} ", colour),
        (words + "  ", "$quiet"),
    ]
    return left, right


def short(model: str) -> str:
    """A model's name for a heading."""
    return one_line(model) or "answer"


def activity(session: Session) -> tuple[str, str, str]:
    """(mark, colour, words) for what the model does now."""
    if session.load_error is not None:
        return "✗", "$error", "not loaded"
    if session.info is None:
        return "○", "$quiet", "loading"
    if session.last is None:
        return "●", "$success", "ready"
    answer = session.last.answer
    match answer.state:
        case State.STOPPING:
            return "●", "$warning", "stopping"
        case State.WRITING:
            return "●", "$primary", rate(answer) or "writing"
        case State.DONE | State.STOPPED:
            return "●", "$success", rate(answer) or "ready"
        case State.FAILED:
            return "●", "$success", "ready"
        case State.READING:
            part = f" {answer.prefilled:,}/{answer.prompt_tokens:,}" if answer.prefilled else ""
            return "●", "$primary", "reading" + part
    return "●", "$primary", "waiting"


def rate(answer: Answer) -> str:
    """Tokens per second in words; nothing while that is not known."""
    value = answer.rate
    if value is None:
        return ""
    return f"{value:,.0f} tok/s" if value >= 100 else f"{value:.1f} tok/s"


def gauge(session: Session, width: int) -> tuple[list[Part], list[Part]]:
    """Left: the context. Right: figures of the newest answer."""
    context, used = session.context, session.used
    if context is None:
        return [("  context", "$quiet")], []
    cells = 10 if width < 70 else 20 if width < 120 else 32
    known = used if used is not None else 0
    full = known >= context
    colour = "$error" if full else "$warning" if known > 0.9 * context else "$primary"
    filled, rest = meter(known / context, cells)
    left: list[Part] = [("  ctx ", "$quiet"), (filled, colour), (rest, "$rule")]
    if known > context and not session.generating:
        left.append((f" {known:,} tokens do not fit in {context:,}", colour))
        return left, []
    count = f" {known:,}/{context:,}" if used is not None else f" {context:,} tokens"
    left.append((count, "$foreground"))
    if used is not None and width >= 70:
        left.append(("  full", colour) if full else (f"  {known / context:.0%}", "$quiet"))
    return left, _figures(session, width)


def _figures(session: Session, width: int) -> list[Part]:
    if session.last is None or not session.last.answer.steps:
        return []
    answer = session.last.answer
    figures: list[str] = []
    if answer.time_to_first_token is not None:
        figures.append(f"ttft {seconds(answer.time_to_first_token)}")
    if answer.bits_per_token is not None and width >= 56:
        figures.append(f"{answer.bits_per_token:.2f} b/tok")
    return [("  ".join(figures) + "  ", "$quiet")] if figures else []


def legend(tint: str, colours: tuple[str, ...]) -> list[Part]:
    """What the tints mean: from which value each begins."""
    if tint not in BY_NAME:
        return []
    shown = BY_NAME[tint]
    samples = [(f" {limit:g} ", colour) for limit, colour in zip(shown.limits, colours[1:], strict=True)]
    return [(f"{shown.name} ", "$quiet"), *samples, (f" {shown.unit}   ", "$quiet")]


def seconds(value: float) -> str:
    """A duration, three figures at most."""
    return f"{value * 1000:.0f} ms" if value < 0.1 else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def summary(answer: Answer) -> str:
    """The note at the right of a finished answer's heading."""
    count = len(answer.steps)
    words = [f"{count:,} tok"]
    if answer.steps:
        words += [seconds(answer.seconds)] if answer.last_at is not None else []
        if answer.rate is not None:
            words.append(rate(answer))
        words.append(f"{answer.bits_per_token or 0.0:.2f} b/tok")
    if answer.state is State.STOPPED:
        words.insert(0, "stopped")
    elif answer.state is State.FAILED:
        words.insert(0, "failed")
    elif answer.reason == "length":
        words.insert(0, "cut at the token limit")
    return " · ".join(words)
