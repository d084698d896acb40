"""The models on this machine, described by their headers: in the Hub cache, built in, or at a path."""

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropechat.errors import RopechatError
from ropechat.models.hub import cached_models as shelf
from ropechat.models.hub.names import HubName
from ropechat.models.pack_cache import PackedEntry, kv_entries, packed_entries
from ropechat.models.resolve import BUILTIN, builtin_folder
from ropechat.models.weights import CONFIG, INDEX, SINGLE, quant_of
from ropechat.util.files import read_json

ReadHeader = Callable[[str | Path], dict[str, Any]]
"""Reads a model's config and headers: `ropechat.engine.loading.read_header`."""

_TEMPLATE_KEY = b"tokenizer.chat_template"
_GGUF_HEAD = 64 << 20  # bytes of a GGUF file that are searched for metadata keys
_DEFAULT_CONTEXT = 8192  # tokens, the largest default context
_KV_VALUE_BYTES = 2  # bytes of a number in the KV cache


@dataclass(frozen=True)
class ModelSummary:
    """A model in the list. packed: bytes of packed weights. reason: why it cannot be loaded; None if it can.

    needs: estimated bytes of memory: the weights as stored and the KV cache of a full context.
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

    def record(self) -> dict[str, Any]:
        """The object of --json; size and packed are in bytes."""
        return {**self.__dict__, "path": str(self.path)}


def format_count(number: int) -> str:
    """A number of parameters: 135M."""
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return str(number)


def read_catalog(header: ReadHeader) -> Iterator[ModelSummary]:
    """Yield every model in the Hub cache, then the built-in one if there is one."""
    for one in shelf.list_cached():
        if one.missing:
            reason = (
                f"incomplete: {', '.join(one.missing)}; run `ropechat models pull {one.name}` to complete it"
            )
            yield ModelSummary(str(one.name), one.path, one.size, reason=reason)
        else:
            yield summarize(str(one.name), one.path, one.size, header)
    folder = builtin_folder()
    if (folder / CONFIG).is_file():
        size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        yield summarize(BUILTIN, folder, size, header)


def summarize(name: str, path: Path, size: int, header: ReadHeader) -> ModelSummary:
    """Describe a model by its headers; its weights are not read."""
    try:
        facts = header(path)
        return ModelSummary(
            name,
            path,
            size,
            packed_size(path),
            facts["model_type"],
            facts["num_parameters"],
            stored_dtype(path),
            facts["max_position_embeddings"],
            has_chat_template(path),
            size + _kv_bytes(facts),
        )
    except RopechatError as error:
        return ModelSummary(name, path, size, reason=str(error))


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
    gone = shelf.plan_removal(name)
    cached = [*find_packs(gone.paths), *find_kv(gone.paths)]
    size = gone.size + sum(entry.size for entry in cached)
    shelf.Removal((*gone.paths, *(entry.path for entry in cached)), size).execute()
    return size


def stored_dtype(path: Path) -> str | None:
    """The stored type of the weights: a GGUF's quantization, or the dtype in config.json."""
    if path.is_file():
        return quant_of(path.name)
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


def _kv_bytes(facts: dict[str, Any]) -> int:
    """Bytes of the KV cache of a full context, without multi-head latent attention (MLA)."""
    tokens = min(facts["max_position_embeddings"], _DEFAULT_CONTEXT)
    width = facts["num_key_value_heads"] * facts["head_dim"]
    return int(2 * _KV_VALUE_BYTES * tokens * facts["num_hidden_layers"] * width)
