"""`ropechat inspect --lens` and `--attention`: what each layer predicts, and where each head attends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.exit_codes import say
from ropechat.cli.inspect_output import Output, write_pieces
from ropechat.cli.option_groups import option_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.conversation import Message
    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Bos, Special

_FORMS = {"lens": ("table", "jsonl", "html"), "attention": ("table", "jsonl")}
_TOP_K = 5
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


inside_options = option_set(
    click.option("--lens", is_flag=True, help="Show what each layer predicts (logit lens), by token."),
    click.option(
        "--attention",
        is_flag=True,
        help="Show where each head attends: first token, previous token, mean distance.",
    ),
    click.option(
        "--layers",
        metavar="N,N,...",
        callback=_numbers,
        help="Layers for --lens and --attention, from 0 [default: all, or those that fit in a table].",
    ),
)


@dataclass(frozen=True)
class View:
    """A view of the inside of the model. Made by `view_of`."""

    name: str
    layers: list[int] | None
    top_k: int


def view_of(given: dict[str, Any], output: Output, top_k: int | None) -> View | None:
    """Remove the options of `inside_options` from `given` and check them; None if no view is asked for.

    Raises UsageError for options that do not fit together.
    """
    lens, attention, layers = given.pop("lens"), given.pop("attention"), given.pop("layers")
    if lens and attention:
        raise click.UsageError("--lens: not possible with --attention; give one of them")
    name = "lens" if lens else "attention" if attention else None
    if name is None:
        if layers is not None:
            raise click.UsageError("--layers: requires --lens or --attention; add one or omit it")
        return None
    forms = _FORMS[name]
    if output.form not in forms:
        raise click.UsageError(f"--{name}: not possible as {output.form}; use {' or '.join(forms)}")
    if output.by_line or output.look_up:
        raise click.UsageError(f"--{name}: not possible with --by line or --look-up; omit them")
    return View(name, layers, _TOP_K if top_k is None else top_k)


def show_view(
    engine: "Engine",
    prompt: "str | Sequence[Message]",
    special: "Special",
    bos: "Bos",
    view: View,
    output: Output,
) -> None:
    """Write one view of a text in the output's form. Raises FileAccessError, and as `Engine.lens`."""
    text, tokens = engine.prompts.encode_prompt(prompt, special, bos)
    ids = [token.id for token in tokens]
    trained = engine.facts["max_position_embeddings"]
    if len(ids) > trained:
        say(
            f"note: {len(ids)} tokens exceed the trained length of {trained}: what is shown beyond it is "
            "unreliable"
        )
    if output.form == "jsonl":
        facts = {name: engine.facts[name] for name in ("dtype", "kv_dtype", "isa")}
        meta = {"model": engine.name, "revision": engine.revision, **facts, "ids": ids, "text": text}
        lines = (_lens_lines if view.name == "lens" else _attention_lines)(engine, ids, meta, view)
    elif output.form == "html":
        lines = _lens_page(engine, ids, view)
    else:
        tables = _lens_table if view.name == "lens" else _attention_table
        lines = tables(engine, ids, view, output.width, output.color)
    write_pieces(output, (line + "\n" for line in lines))


def _lens_lines(engine: "Engine", ids: list[int], meta: dict[str, Any], view: View) -> Iterator[str]:
    from ropechat.inspector import lens

    return lens.lines(engine.lens(ids, view.layers, view.top_k), meta, engine.token_bytes)


def _lens_page(engine: "Engine", ids: list[int], view: View) -> Iterator[str]:
    from ropechat.inspector import lens_page

    layers = sorted(set(range(engine.facts["num_hidden_layers"]) if view.layers is None else view.layers))
    rows = engine.lens(ids, layers, view.top_k)
    return lens_page.render(rows, ids, layers, f"{engine.name}: layer by layer", engine.token_bytes)


def _lens_table(engine: "Engine", ids: list[int], view: View, width: int, color: bool) -> Iterator[str]:
    from ropechat.inspector import lens

    layers = view.layers
    if layers is None:
        layers = lens.layers_that_fit(range(engine.facts["num_hidden_layers"]), len(ids), width)
    rows = engine.lens(ids, layers, 1)
    at = lens.layout(sorted(set(layers)), len(ids), width, color=color)
    return lens.render(rows, ids, engine.token_bytes, at)


def _attention_lines(engine: "Engine", ids: list[int], meta: dict[str, Any], view: View) -> Iterator[str]:
    from ropechat.inspector import attention

    found = engine.attention_by_distance(ids, view.layers, max_distance=_MAX_DISTANCE)
    return attention.lines(found, meta)


def _attention_table(engine: "Engine", ids: list[int], view: View, width: int, color: bool) -> Iterator[str]:
    from ropechat.inspector import attention

    return attention.render(engine.attention_by_distance(ids, view.layers, max_distance=1))
