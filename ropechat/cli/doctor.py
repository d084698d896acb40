"""`ropechat doctor`: what ropechat needs on this machine, each thing good or with what to do."""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from ropechat.cli.common import StdoutWriter, model_folders, wants_color
from ropechat.cli.exit_codes import CHECK_FAILED, OK
from ropechat.cli.option_groups import GroupedCommand, option
from ropechat.errors import RopechatError
from ropechat.util.text import count_of, format_bytes, one_line

GOOD, NOTE, FAILS = "good", "note", "fails"
_COLORS = {GOOD: "32", NOTE: "33", FAILS: "31"}
_EXAMPLES = """
  ropechat doctor
  ropechat doctor --json
"""
_FAST = ("avx2", "avx512", "amx", "neon", "i8mm", "dotprod", "sve")
"""What the names of instruction sets begin with that the engine has fast arithmetic for."""
_MEGABYTES, _PASSES = 64, 5
_LEAST_MEMORY, _LEAST_DISK = 1_000_000_000, 1_000_000_000
_SMALLEST = (60, 20)  # columns, rows


class Finding(NamedTuple):
    """One line. state: GOOD, NOTE (works, with less) or FAILS. advice: what to do, "" if nothing."""

    name: str
    state: str
    found: str
    advice: str = ""


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _engine() -> Iterator[Finding]:
    """The processor, and an answer of the built-in model: the whole way from a question to a text."""
    from ropechat.engine.engine import Engine
    from ropechat.engine.native import load_core
    from ropechat.sampling import Sampling

    try:
        version = load_core().__version__
        engine = Engine.load("builtin", cache="off", speculative="off")
    except (ImportError, RopechatError, OSError) as error:
        yield Finding("engine", FAILS, one_line(str(error)), "install ropechat again for this Python")
        return
    isa, threads = str(engine.facts["isa"]), int(engine.facts["threads"])
    slow = not isa.startswith(_FAST)
    yield Finding(
        "processor",
        NOTE if slow else GOOD,
        f"{_processor_name()}, {count_of(threads, 'thread')}, {isa}",
        "this processor has none of the instructions that are fast (AVX2, AVX-512, NEON): take small models"
        if slow
        else "",
    )
    text = "".join(step.text for step in engine.generate("RoPE", Sampling(temperature=0, max_tokens=4)))
    engine.close()
    state, advice = (GOOD, "") if text else (FAILS, "please report it, with the output of --json")
    yield Finding("engine", state, f"ropechat {version}: the built-in model answers", advice)
    yield from _memory(threads)


def _memory(threads: int) -> Iterator[Finding]:
    from ropechat.engine.bench.memory import Memory
    from ropechat.engine.native import free_memory

    free = free_memory()
    if free is not None:
        few = free < _LEAST_MEMORY
        advice = "close other programs, or take a small model with --context 1024" if few else ""
        yield Finding("memory", NOTE if few else GOOD, f"{format_bytes(free)} free", advice)
    if free is not None and free < 4 * _MEGABYTES << 20:
        return
    memory = Memory(_MEGABYTES)
    rate = max(memory.read(threads) for _ in range(_PASSES))
    found = f"{rate / 1e9:.1f} GB/s read: a model of 1 GB writes at most {rate / 1e9:.0f} tokens/s"
    yield Finding("bandwidth", GOOD, found)


def _folders() -> Iterator[Finding]:
    from ropechat.models.hub.cache import cache_folder as hub_folder
    from ropechat.util.paths import cache_folder, data_folder, settings_file

    for name, find, variable, without in (
        ("chats", data_folder, "ROPECHAT_DATA", ""),
        ("settings", lambda: settings_file().parent, "ROPECHAT_CONFIG", "changes are not kept"),
        ("cache", cache_folder, "XDG_CACHE_HOME", "starts are slower"),
        ("downloads", hub_folder, "HF_HOME", ""),
    ):
        yield _folder(name, find, variable, without)


def _folder(name: str, find: Callable[[], Path], variable: str, without: str) -> Finding:
    """A folder that is written. without: what happens where it cannot be, "" if something does not work."""
    import tempfile

    from ropechat.util.system import free_disk

    elsewhere = f"{without or 'nothing is stored'}; make it writable, or set {variable} to another place"
    bad = NOTE if without else FAILS
    try:
        folder = find()
        there = folder
        while not os.path.lexists(there) and there != there.parent:
            there = there.parent
        with tempfile.TemporaryFile(dir=there):
            free = free_disk(folder)
    except RopechatError as error:
        return Finding(name, bad, str(error), elsewhere)
    except OSError as error:
        return Finding(name, bad, f"{folder}: cannot be written ({error.strerror or error})", elsewhere)
    if free < _LEAST_DISK:
        return Finding(name, NOTE, f"{folder}: {format_bytes(free)} free", "make space for models and caches")
    return Finding(name, GOOD, f"{folder}: {format_bytes(free)} free")


def _settings() -> Iterator[Finding]:
    from ropechat.cli.config import checked_keys
    from ropechat.settings.file import read_settings

    try:
        found = read_settings(on_missing=lambda message: None)
        checked_keys(found)
        found.effective()
    except RopechatError as error:
        yield Finding("settings file", FAILS, one_line(str(error)), "`ropechat config check` says more")
        return
    there = found.path.exists()
    yield Finding("settings file", GOOD, f"{found.path}: {'valid' if there else 'none, defaults count'}")


def _caches() -> Iterator[Finding]:
    from ropechat.models.pack_cache import cache_mode, kv_entries, packed_entries

    try:
        mode = cache_mode()
        packed, kept = (sum(entry.size for entry in found()) for found in (packed_entries, kv_entries))
    except RopechatError as error:
        yield Finding("caches", FAILS, one_line(str(error)), "correct it, or remove the folder")
        return
    if mode == "off":
        yield Finding("caches", NOTE, "off", "unset ROPECHAT_CACHE, and starts are faster")
        return
    found = f"packed weights {format_bytes(packed)}, KV caches {format_bytes(kept)}"
    yield Finding("caches", GOOD, found)


def _model() -> Iterator[Finding]:
    from ropechat import builtin
    from ropechat.models.catalog import offered_model
    from ropechat.models.installed import find_models
    from ropechat.models.last import find_last

    try:
        folders = model_folders()
        models = [one for one in find_models(folders, lambda note: None) if one.reason is None]
        opened = find_last(folders).model
    except (RopechatError, OSError) as error:
        yield Finding("models", FAILS, one_line(str(error)), "`ropechat models list` says more")
        return
    others = len({one.path for one in models if one.name != builtin.NAME})
    if not others and opened == builtin.NAME:
        offer = offered_model()
        advice = f"get one: `ropechat models pull {offer.short[0]}` ({format_bytes(offer.size)})"
        yield Finding("models", NOTE, "only the built-in one, which is tiny", advice)
        return
    yield Finding("models", GOOD, f"{count_of(others, 'model')}; `ropechat` opens {opened}")


def _terminal() -> Iterator[Finding]:
    import shutil

    encoding = (getattr(sys.stdout, "encoding", None) or "none").lower()
    if encoding.replace("-", "") == "utf8":
        yield Finding("characters", GOOD, "UTF-8")
    else:
        yield Finding("characters", NOTE, encoding, "set LANG=C.UTF-8, for bars and other alphabets")
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        yield Finding("terminal", NOTE, "none here: a chat is plain, a line for a message", "run it in one")
        return
    term = os.environ.get("TERM", "")
    if term in ("", "dumb"):
        yield Finding(
            "terminal", FAILS, f"TERM={term}", "set TERM, such as xterm-256color; `ropechat run` works"
        )
        return
    columns, rows = shutil.get_terminal_size()
    small = columns < _SMALLEST[0] or rows < _SMALLEST[1]
    advice = "make the window larger: 100 x 30 is comfortable" if small else ""
    yield Finding("size", NOTE if small else GOOD, f"{columns} columns, {rows} rows", advice)
    if os.environ.get("NO_COLOR"):
        yield Finding("colours", NOTE, "off", "unset NO_COLOR, to see how probable tokens are")
    elif os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        yield Finding("colours", GOOD, "16 million")
    else:
        number = "256" if "256" in term else "16"
        yield Finding("colours", NOTE, number, "if the terminal has more: COLORTERM=truecolor")
    if term.startswith("linux"):
        yield Finding("mouse", NOTE, "none", "keys do everything")
    else:
        yield Finding("mouse", GOOD, "of the terminal; F8 in the chat gives it back, to select text")


def examine() -> Iterator[Finding]:
    """All findings, in the order in which they are shown."""
    yield from _engine()
    yield from _folders()
    yield from _settings()
    yield from _caches()
    yield from _model()
    yield from _terminal()


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@option("--json", "as_json", is_flag=True, help="Write one JSON object per line of the table.")
def doctor(as_json: bool) -> int:
    """Check what ropechat needs on this machine.

    Each line says what is good, or what to do: processor, engine, memory and its bandwidth, folders,
    settings, caches, models, terminal. Nothing is downloaded.

    The exit code is 1 if something does not work.
    """
    out, failed = StdoutWriter(), False
    color = wants_color() and not as_json
    for one in examine():
        failed = failed or one.state == FAILS
        if as_json:
            out.write(json.dumps(one._asdict()) + "\n")
            continue
        state = f"\x1b[{_COLORS[one.state]}m{one.state:5}\x1b[0m" if color else f"{one.state:5}"
        out.raw_line(f"{state}  {one.name:13}  {one_line(one.found)}")
        if one.advice:
            out.raw_line(f"{'':22}→ {one.advice}")
    return CHECK_FAILED if failed else OK
