"""`ropechat inspect --lens` and `--attention`: what each layer predicts, and where each head looks."""

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from ropechat.cli.common import StdoutWriter, wants_color

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.conversation import Message
    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Special

F = TypeVar("F", bound=Callable[..., Any])
View = Literal["lens", "attention"]
_MAX_DISTANCE = 255
"""Largest distance whose mean weight is in the JSON records."""


def _numbers(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    """Parse "0,2,4"."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--layers: must be numbers such as 0,2,4 (got {text!r:.60})", ctx) from None


def inside_options(function: F) -> F:
    """--lens, --attention, --layers."""
    for option in (
        click.option(
            "--layers",
            metavar="N,N,...",
            callback=_numbers,
            help="Layers for --lens and --attention, from 0 [default: all, or those that fit in a table].",
        ),
        click.option(
            "--attention",
            "view",
            flag_value="attention",
            help="Show where each head attends: first token, previous token, mean distance.",
        ),
        click.option(
            "--lens", "view", flag_value="lens", help="Show what each layer predicts (logit lens), by token."
        ),
    ):
        function = option(function)
    return function


def show(
    engine: "Engine",
    prompt: "str | Sequence[Message]",
    special: "Special",
    view: View,
    layers: list[int] | None,
    top_k: int,
    form: str,
) -> None:
    """Print one view of a text, as a table or as JSON lines."""
    text, tokens = engine.chat.encode_prompt(prompt, special)
    ids = [token.id for token in tokens]
    facts = {name: engine.facts[name] for name in ("dtype", "kv_dtype", "isa")}
    meta = {"model": engine.name, "revision": engine.revision, **facts, "ids": ids, "text": text}
    show_view = _show_lens if view == "lens" else _show_attention
    show_view(engine, ids, meta, layers, top_k, form)


def _show_lens(
    engine: "Engine", ids: list[int], meta: dict[str, Any], layers: list[int] | None, top_k: int, form: str
) -> None:
    from ropechat.inspector import lens

    out = StdoutWriter()
    if form == "jsonl":
        for line in lens.lines(engine.lens(ids, layers, top_k), meta, engine.token_bytes):
            out.write(line + "\n")
        return
    width = shutil.get_terminal_size((100, 24)).columns
    if layers is None:
        layers = lens.layers_that_fit(range(engine.facts["num_hidden_layers"]), len(ids), width)
    rows = engine.lens(ids, layers, 1)
    at = lens.layout(sorted(set(layers)), len(ids), width, color=wants_color())
    for line in lens.render(rows, ids, engine.token_bytes, at):
        out.raw_line(line)


def _show_attention(
    engine: "Engine", ids: list[int], meta: dict[str, Any], layers: list[int] | None, top_k: int, form: str
) -> None:
    from ropechat.inspector import attention

    out = StdoutWriter()
    found = engine.attention_by_distance(ids, layers, max_distance=_MAX_DISTANCE)
    for line in attention.render(found) if form == "table" else attention.lines(found, meta):
        out.write(line + "\n")
