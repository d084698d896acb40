"""Figures of an answer, the memory and the model: as rows of a list, and as one line of the gauge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.engine.native import free_memory
from ropechat.models.installed import format_count
from ropechat.util.progress import format_rate
from ropechat.util.text import count_of, format_bytes, format_seconds, one_line

if TYPE_CHECKING:
    from ropechat.chat.answer import Answer
    from ropechat.chat.session import Session

Rows = list[tuple[str, str]]


def answer_rows(answer: Answer) -> Rows:
    """Rows of one answer: prompt, reused cache, speed and surprisal."""
    given = answer.node.prefix_length
    rows = [("prompt", count_of(answer.node.prompt_tokens, "token"))]
    if answer.reused is not None:
        new = answer.fed - answer.reused
        rows.append(("from cache", f"{count_of(answer.reused, 'token')}, {new:,} computed"))
    rows += [
        ("prefill", format_rate(answer.prefill_rate) or "nothing to measure"),
        (
            "first token",
            "–" if answer.time_to_first_token is None else format_seconds(answer.time_to_first_token),
        ),
        ("decode", format_rate(answer.rate) or "nothing to measure"),
        ("tokens", f"{answer.drawn:,} drawn" + (f", {given:,} given" if given else "")),
        ("time", format_seconds(answer.seconds)),
    ]
    if (thought := answer.thought) is not None and thought.tokens:
        bits = f"{thought.bits / thought.tokens:.2f} bits/token"
        rows.append(("thought", f"{count_of(thought.tokens, 'token')} of them, {bits}"))
    if answer.bits_per_token is not None:
        each, total = f"{answer.bits_per_token:.2f} bits/token", f"{answer.total_bits:,.0f} bits in all"
        rows.append(("surprisal", f"{each}, {total}"))
    return rows


def memory_rows(session: Session) -> Rows:
    """Rows of memory: weights, KV cache and free."""
    facts = session.info.facts if session.info else {}
    rows: Rows = []
    if (weights := facts.get("weight_bytes")) is not None:
        source = ", mapped from the packed file" if facts.get("from_pack") else ""
        rows.append(("weights", format_bytes(int(weights)) + source))
    kv_bytes = next((turn.answer.kv_bytes for turn in reversed(session.turns) if turn.answer.kv_bytes), 0)
    rows.append(("KV cache", format_bytes(kv_bytes) if kv_bytes else "empty"))
    if (free := free_memory()) is not None:
        rows.append(("free", format_bytes(free)))
    return rows


def model_rows(session: Session) -> Rows:
    """Rows of the model: size, architecture, and how it is computed."""
    info = session.info
    if info is None:
        return [("model", "not loaded")]
    facts = info.facts
    rows = [("model", one_line(info.name)), ("context", f"{info.context:,} tokens")]
    names = (
        ("architecture", "model_type"),
        ("layers", "num_hidden_layers"),
        ("hidden size", "hidden_size"),
        ("heads", "num_attention_heads"),
        ("vocabulary", "vocab_size"),
        ("dtype", "dtype"),
        ("KV cache", "kv_dtype"),
        ("instructions", "isa"),
        ("threads", "threads"),
    )
    rows += [(name, one_line(str(facts[key]))) for name, key in names if key in facts]
    if "num_parameters" in facts:
        rows.insert(1, ("parameters", format_count(int(facts["num_parameters"]))))
    rows += [("note", one_line(str(note))) for note in facts.get("notes", ())]
    rows += [("warning", one_line(str(warning))) for warning in facts.get("warnings", ())]
    return rows


def gauge_figures(answer: Answer, width: int) -> list[str]:
    """Figures of an answer for the gauge, the most important last: a narrow gauge drops those at the left."""
    found: list[str] = []
    if width >= 120 and (prefill := format_rate(answer.prefill_rate)):
        found.append(f"prefill {prefill}")
    if width >= 120 and (decode := format_rate(answer.rate)):
        found.append(f"decode {decode}")
    if answer.reused is not None and width >= 76:
        found.append(f"from cache {answer.reused:,}")
    if answer.time_to_first_token is not None:
        found.append(f"first token {format_seconds(answer.time_to_first_token)}")
    if answer.bits_per_token is not None and width >= 56:
        found.append(f"{answer.bits_per_token:.2f} bits/token")
    return found
