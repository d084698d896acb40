"""The models on this machine, described by their headers."""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropechat.errors import RopechatError
from ropechat.models import ollama
from ropechat.models.catalog import needed_memory
from ropechat.models.folders import FoundModel, OnNote, models_below, models_of_programs
from ropechat.models.hub import cached_models
from ropechat.models.hub.names import HubName
from ropechat.models.pack_cache import PackedEntry, kv_entries, packed_entries
from ropechat.models.packages import models_of_packages
from ropechat.models.recent import recent_by_path
from ropechat.models.resolve import BUILTIN, builtin_folder, resolve
from ropechat.models.speed import (
    Speed,
    count_products,
    expected_speed,
    known_machine,
    known_speeds,
    load_speed,
)
from ropechat.models.weights import CONFIG, INDEX, SINGLE, quant_of
from ropechat.util.files import read_json

ReadHeader = Callable[[str | Path], dict[str, Any]]
"""Reads a model's config and headers: `ropechat.engine.loading.read_header`."""

HUB_CACHE, BUILT_IN = "Hub cache", "built in"
_TEMPLATE_KEY = b"tokenizer.chat_template"
_GGUF_HEAD = 64 << 20  # bytes of a GGUF file that are searched for metadata keys


@dataclass(frozen=True)
class ModelSummary:
    """A model in the list. packed: bytes of packed weights. reason: why it cannot be loaded; None if it can.

    needs: bytes of memory, as `needed_memory` estimates them. source: the Hub cache, a program, or a folder
    that the user named. prefill_tok_s, decode_tok_s: tokens per second of reading and writing here, measured,
    or expected from those that were and a probe; None: nothing was measured yet.
    """

    name: str
    path: Path
    size: int
    packed: int = 0
    model_type: str | None = None
    num_parameters: int | None = None
    dtype: str | None = None
    context: int | None = None
    chat_template: bool | None = None
    needs: int | None = None
    reason: str | None = None
    source: str = ""
    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None

    def record(self) -> dict[str, Any]:
        """The object of --json; size and packed are in bytes."""
        return {**self.__dict__, "path": str(self.path)}


def format_count(number: int) -> str:
    """A number of parameters: 135M."""
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= 0.9995 * limit:  # 999.9M would be rounded to 1000M
            return f"{number / limit:.3g}{unit}"
    return str(number)


def list_installed(
    header: ReadHeader, folders: Sequence[Path] = (), on_note: OnNote = lambda note: None
) -> Iterator[ModelSummary]:
    """Yield every model on this machine, each file once.

    The Hub cache comes first, then the built-in model, Ollama, LM Studio, llama.cpp, Python packages,
    `folders`, and what was opened by path. on_note: is called with what was skipped, and why.
    """
    seen: set[Path] = set()
    known = known_speeds()
    for one in find_models(folders, on_note):
        if one.source != HUB_CACHE and one.source != ollama.SOURCE and one.path.resolve() in seen:
            continue
        seen.add(one.path.resolve())
        if one.reason is not None:
            yield ModelSummary(one.name, one.path, one.size, reason=one.reason, source=one.source)
        else:
            yield summarize(one.name, one.path, one.size, header, one.source, known)


def find_models(folders: Sequence[Path], on_note: OnNote) -> Iterator[FoundModel]:
    """Yield what `list_installed` describes, without reading a header; a file of two programs comes twice."""
    try:
        in_cache = cached_models.list_cached()
    except OSError as error:
        on_note(f"skipped ({error.strerror or error}): {error.filename}")
        in_cache = []
    for cached in in_cache:
        pull = f"run `ropechat models pull {cached.name}` to complete it"
        reason = f"incomplete: {', '.join(cached.missing)}; {pull}" if cached.missing else None
        yield FoundModel(str(cached.name), cached.path, cached.size, HUB_CACHE, reason)
    folder = builtin_folder()
    if (folder / CONFIG).is_file():
        size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        yield FoundModel(BUILTIN, folder, size, BUILT_IN)
    yield from ollama.list_models(on_note)
    yield from models_of_programs(on_note)
    yield from models_of_packages(on_note)
    for named in folders:
        yield from models_below(named, str(named), on_note)
    yield from recent_by_path()


def summarize(
    name: str,
    path: Path,
    size: int,
    header: ReadHeader,
    source: str = "",
    known: Sequence[Speed] = (),
) -> ModelSummary:
    """Describe a model by its headers; its weights are not read. known: speeds of models on this machine."""
    try:
        facts, real = header(path), resolve(path)
        measured = load_speed(real) or Speed()
        dtype = stored_dtype(real, facts.get("tensor_types") or {})
        expected = expected_speed(size, count_products(facts), known, dtype or "", known_machine())
        return ModelSummary(
            name,
            path,
            size,
            packed_size(real),
            facts["model_type"],
            facts["num_parameters"],
            dtype,
            facts["max_position_embeddings"],
            has_chat_template(real),
            needed_memory(size, facts["max_position_embeddings"], facts["kv_token_bytes"]),
            source=source,
            prefill_tok_s=measured.prefill or expected.prefill,
            decode_tok_s=measured.decode or expected.decode,
        )
    except RopechatError as error:
        return ModelSummary(name, path, size, reason=str(error), source=source)


def packed_size(path: Path) -> int:
    """Bytes of a model's packed weights on disk."""
    files = [path] if path.is_file() else [path / name for name in (SINGLE, INDEX)]
    listings = {str(file.resolve()) for file in files}
    return sum(entry.size for entry in packed_entries() if entry.model in listings)


def find_packs(roots: Sequence[Path]) -> list[PackedEntry]:
    """Packed weights of the models below these paths, following links of the Hub cache."""
    return _of_models(packed_entries(), roots)


def find_kv(roots: Sequence[Path]) -> list[PackedEntry]:
    """What chats have read with the models below these paths, as `find_packs`."""
    return _of_models(kv_entries(), roots)


def _of_models(entries: Sequence[PackedEntry], roots: Sequence[Path]) -> list[PackedEntry]:
    real = {file.resolve() for root in roots for file in ([root] if root.is_file() else root.glob("model.*"))}
    tops = [root.resolve() for root in roots]
    return [
        entry
        for entry in entries
        if Path(entry.model) in real or any(Path(entry.model).is_relative_to(top) for top in tops)
    ]


def remove(name: HubName) -> int:
    """Remove a model and its packed weights from the disk; return the number of bytes freed.

    Raises ModelNotFoundError, OSError.
    """
    gone = cached_models.plan_removal(name)
    cached = [*find_packs(gone.paths), *find_kv(gone.paths)]
    size = gone.size + sum(entry.size for entry in cached)
    cached_models.Removal((*gone.paths, *(entry.path for entry in cached)), size).execute()
    return size


def stored_dtype(path: Path, types: Mapping[str, int]) -> str | None:
    """The stored type of the weights: a GGUF's quantization, or the dtype in config.json.

    types: how many numbers of a GGUF have each type. Its name says more (Q4_K_M), if it says the same.
    """
    if path.is_file():
        most, named = max(types, key=lambda one: types[one], default=None), quant_of(path.name)
        return named if most is None or (named is not None and most in named) else most
    config = read_json(path, CONFIG) or {}
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for key in ("dtype", "torch_dtype"):
            if isinstance(part.get(key), str):
                return str(part[key])
    return None


def has_chat_template(path: Path) -> bool:
    """Whether a model has a chat template; it is not compiled.

    A GGUF file is searched for the stored key: its length in 8 bytes, then its name. Reading the metadata
    would need the engine, from which this room must not import.
    """
    folder = path if path.is_dir() else path.parent
    if (folder / "chat_template.jinja").is_file():
        return True
    if (read_json(folder, "tokenizer_config.json") or {}).get("chat_template"):
        return True
    if path.is_dir():
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        stored = len(_TEMPLATE_KEY).to_bytes(8, "little") + _TEMPLATE_KEY
        return data.find(stored, 0, _GGUF_HEAD) >= 0
