"""`ropechat rope`: what a model does with positions."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import (
    FileName,
    StdoutWriter,
    format_of,
    format_option,
    model_options,
    out_option,
    overwrite_option,
    read_text_file,
    refuse_existing,
    wants_color,
    write_output,
)
from ropechat.cli.loading import GivenModel, load, take_model
from ropechat.cli.option_groups import GroupedCommand, Rule, check_rules, option, option_set
from ropechat.util.paths import expand_home

if TYPE_CHECKING:
    from ropechat.inspector.rope.blocks import View
    from ropechat.inspector.rope.report import ViewOptions

_CONFIG = ("bands", "map", "matrix", "decay", "kernel", "properties", "compare", "length")
_WEIGHTS = ("shift", "split", "usage", "distance")
_BY_SUFFIX = {".txt": "term", ".json": "json", ".csv": "csv", ".svg": "svg", ".html": "html"}
_LONGEST_DISTANCE, _FURTHEST = 1 << 20, 1 << 30


def _views(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Parse names of views: "bands,decay"; "all": those that need no weights."""
    names: list[str] = []
    for name in (value or "").split(",") if value else ():
        name = name.strip()
        if name != "all" and name not in (*_CONFIG, *_WEIGHTS):
            allowed = ", ".join((*_CONFIG, *_WEIGHTS, "all"))
            raise click.BadParameter(f"must be some of {allowed} (got {name!r:.40})", ctx, parameter)
        names += _CONFIG if name == "all" else (name,)
    return tuple(dict.fromkeys(names))


def _shifts(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Parse "1,1000,32768"."""
    texts = [text.strip() for text in value.split(",")] if value is not None else []
    if not all(text.isdecimal() and 0 < int(text) <= _FURTHEST for text in texts):
        raise click.BadParameter(
            f"must be positions from 1 to {_FURTHEST}, as in 1,1000 (got {value!r:.40})", ctx, parameter
        )
    return tuple(map(int, texts))


_EXAMPLES = """
  ropechat rope
  ropechat rope --shape llama-3.2-1b --views decay,properties
  ropechat rope --views all -o rope.html
  ropechat rope --shift-test 1,1000,131072
  ropechat rope --views split,distance --layer 2 --head 0
"""


_view_options = option_set(
    option(
        "--views",
        "names",
        old=["--view"],
        metavar="NAME[,NAME]",
        callback=_views,
        help=f"From the config: {', '.join(_CONFIG)}; all: all of these. With the weights and a text: "
        f"{', '.join(_WEIGHTS)}. [default: bands]",
    ),
    option(
        "--shape",
        metavar="NAME",
        help="Instead of a model: the published config of a well-known one; `list` lists them.",
    ),
    option(
        "--shift-test",
        "shifts",
        metavar="N[,N]",
        callback=_shifts,
        help="Adds the view `shift`: the text again at positions N .., and how much its logits change.",
    ),
    option(
        "--max-distance",
        type=click.IntRange(2, _LONGEST_DISTANCE),
        metavar="N",
        default=4096,
        show_default=True,
        expert=True,
        help="The longest distance in tokens that `decay`, `kernel` and `properties` show.",
    ),
    option(
        "--length",
        type=click.IntRange(1, 1 << 40),
        metavar="N",
        expert=True,
        help="Tokens of the text, for `length` and for ropes that depend on it.",
    ),
    option(
        "--position",
        type=click.IntRange(0, 1 << 40),
        metavar="N",
        default=10,
        show_default=True,
        expert=True,
        help="Position of `matrix`.",
    ),
    option(
        "--seed",
        type=click.IntRange(0),
        metavar="N",
        default=0,
        show_default=True,
        expert=True,
        help="Seed of the queries and keys that views draw at random.",
    ),
    title="Views",
)
_text_options = option_set(
    option(
        "-f",
        "--file",
        "text",
        old=["--text"],
        type=FileName(),
        metavar="FILE",
        help="Text for the views with weights; - is stdin [default: a sample].",
    ),
    option("--layer", type=click.IntRange(0), metavar="N", help="Layer of `split`, `distance` and `matrix`."),
    option(
        "--head",
        type=click.IntRange(0),
        metavar="N",
        help="Attention head of `split`, `distance` and `matrix`.",
    ),
    option(
        "--query",
        type=click.IntRange(0),
        metavar="N",
        help="Token that attends, in `split` and `matrix` [default: the last].",
    ),
    option(
        "--key",
        type=click.IntRange(0),
        metavar="N",
        help="Token that it attends to [default: the most attended one].",
    ),
    title="Text",
)


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@_view_options
@_text_options
@option_set(
    out_option(_BY_SUFFIX), overwrite_option, format_option(_BY_SUFFIX.values(), "term"), title="Output"
)
@model_options
def rope(
    shape: str | None,
    names: tuple[str, ...],
    shifts: tuple[int, ...],
    text: Path | str | None,
    form: str | None,
    out: Path | str,
    overwrite: bool,
    **given: Any,
) -> None:
    """Show what a model does with positions: frequencies, decay, properties, use.

    Views of the config need no weights: -m may also name a config.json, or a folder that holds only that.
    The other views load the model, in f32 unless --dtype and --kv-dtype name another type.
    """
    from ropechat.inspector.rope.report import ViewOptions

    form = format_of(form, out, _BY_SUFFIX)
    if shape == "list":
        _list_shapes()
        return
    refuse_existing(out, overwrite=overwrite)
    if shifts:
        names = (*names, "shift") if "shift" not in names else names
        given["shifts"] = shifts
    names = names or ("bands",)
    options = ViewOptions(
        **{name: given.pop(name) for name in ViewOptions.__dataclass_fields__ if given.get(name) is not None}
    )
    title, found = _report(shape, names, text, options, take_model(given, raw=True))
    _write(found, title, form, out)


def _list_shapes() -> None:
    from ropechat.inspector.rope import shapes

    for name in shapes.names():
        StdoutWriter().write(f"{name}\n")


def _report(
    shape: str | None,
    names: Sequence[str],
    text: Path | str | None,
    options: "ViewOptions",
    model: GivenModel,
) -> "tuple[str, list[View]]":
    from ropechat.inspector.rope import report, shapes

    wanted = [name for name in names if name in _WEIGHTS]
    of_text = text is not None or any(
        getattr(options, name) is not None for name in ("layer", "head", "query")
    )
    if (of_text or wanted) and "matrix" in names:
        wanted.append("matrix")  # of a query of the text
    if of_text and not wanted:
        used = ", ".join(("matrix", *_WEIGHTS))
        raise click.UsageError(
            f"--file, --layer, --head and --query: used by the views {used}; add one to --views"
        )
    if shape is not None:
        check_rules(Rule("shape", excludes="model", hint="give one of them"))
        if wanted:
            raise click.UsageError(f"--shape has no weights, which the view {wanted[0]} needs; give a model")
        return f"RoPE of {shape}", list(report.config_views(shapes.config_path(shape), names, options))
    if not wanted:
        path = _config_path(model)
        name = path.absolute().parent.name if path.name == "config.json" else path.name
        return f"RoPE of {name}", list(report.config_views(path, names, options))
    types: dict[str, Any] = {
        name: "f32" for name in ("dtype", "kv_dtype") if getattr(model.spec, name) == "auto"
    }
    engine = load(model._replace(spec=replace(model.spec, **types)).find())
    ids = engine.tokenizer.encode(_text(text))
    found = list(report.config_views(engine, [name for name in names if name not in wanted], options))
    return f"RoPE of {engine.name}", found + list(report.weight_views(engine, ids, wanted, options))


def _config_path(model: GivenModel) -> Path:
    """The config.json or folder that -m names, or the path of the model."""
    path = expand_home(model.spec.name)
    if model.chosen and (path.suffix == ".json" or (path / "config.json").is_file()):
        return path
    return Path(model.find().name)


def _text(text: Path | str | None) -> str:
    from ropechat.inspector.rope.report import SAMPLE

    return SAMPLE if text is None else read_text_file(text)


def _write(views: "list[View]", title: str, form: str, out: Path | str) -> None:
    if form == "term":
        from ropechat.inspector.rope import term

        to_file = isinstance(out, Path)
        width = 100 if to_file else shutil.get_terminal_size((100, 24)).columns
        lines = term.render(views, width, color=wants_color() and not to_file)
        write_output(out, (f"{line}\n" for line in lines), lines=True)
    else:
        from ropechat.inspector.rope.output import WRITERS

        write_output(out, WRITERS[form](views, title))
