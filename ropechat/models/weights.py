"""Choosing the files of a model in a folder or Hub repository, by file names and the index of shards.

Safetensors: `model.safetensors`, else the shards that `model.safetensors.index.json` names. GGUF: one file,
or the parts of a split one (`-00001-of-00003`, by llama.cpp's gguf-split). Pickles are never chosen.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ropechat.errors import ConfigError, ModelNotFoundError, UnsafePathError

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20
_BESIDE = (
    CONFIG,
    "generation_config.json",
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
_MORE_TEMPLATES = r"additional_chat_templates/[^/]+\.jinja"  # compiled on use: rarely needed
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PART = r"-(\d{5})-of-(\d{5})$"
_QUANT = r"(?i)(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))$"
_NO_MODEL = r"(?i)mmproj|imatrix"  # vision projectors, statistics for quantizing
_PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "F16", "F32")
_NAMES_SHOWN = 12


class GgufSet(NamedTuple):
    """A GGUF model: one file, or all parts of a split one in order.

    quant: the quantization in its name, in capitals (Q4_K_M), or None.
    """

    files: tuple[str, ...]
    quant: str | None

    @property
    def name(self) -> str:
        """The file to open: the only one, or the first part."""
        return self.files[0]


class Contents(NamedTuple):
    """The files of one model. gguf: the GGUF file to open; None for safetensors."""

    files: tuple[str, ...]
    weights: tuple[str, ...]
    gguf: str | None


def quant_of(name: str) -> str | None:
    """The quantization at the end of a GGUF's name, or else of its folder's name, in capitals."""
    path = Path(name)
    for text in (re.sub(_PART, "", path.name.removesuffix(".gguf")), path.parent.name):
        if match := re.search(_QUANT, text):
            return match[1].upper().replace("FP16", "F16").replace("FP32", "F32")
    return None


def split_of(name: str) -> tuple[str, int]:
    """(name without the part's number and .gguf, number of parts) of a GGUF; 1 part if it is not split."""
    stem = name.removesuffix(".gguf")
    match = re.search(_PART, stem)
    return (stem, 1) if match is None else (stem[: match.start()], int(match[2]))


def part_names(name: str) -> tuple[str, ...]:
    """The names of all parts of a split GGUF, given one of them; `name` alone if it is not split."""
    stem = name.removesuffix(".gguf")
    match = re.search(_PART, stem)
    if match is None:
        return (name,)
    count = min(int(match[2]), 9999)
    return tuple(f"{stem[: match.start()]}-{i:05}-of-{match[2]}.gguf" for i in range(1, count + 1))


def gguf_sets(names: Iterable[str]) -> list[GgufSet]:
    """The GGUF models among file names, sorted; for a split one all parts, present or not."""
    models = (name for name in names if name.endswith(".gguf") and not re.search(_NO_MODEL, Path(name).name))
    found = {part_names(name) for name in models}
    return [GgufSet(files, quant_of(files[0])) for files in sorted(found) if files]


def join_names(names: Iterable[str]) -> str:
    """Join at most a dozen names for a message."""
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def choose_gguf(sets: Sequence[GgufSet], quant: str | None, where: str) -> GgufSet:
    """The GGUF of a quantization (any case) or file name; for None the preferred one, Q4_K_M if present.

    Raises ModelNotFoundError listing the available ones if none or several match.
    """
    if quant is None:
        for usual in _PREFERRED:
            for one in sets:
                if one.quant == usual:
                    return one
        return sets[0]
    label = quant.upper()
    for fits in (
        [one for one in sets if quant in (one.name, Path(one.name).name)],
        [one for one in sets if one.quant == label],
        [one for one in sets if one.quant == f"UD-{label}"],  # the same types in another mixture
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise ModelNotFoundError(
                f"{where}: {len(fits)} GGUF files match {label}: {join_names(one.name for one in fits)}; "
                "give a file name after the colon"
            )
    there = join_names(one.quant or one.name for one in sets)
    raise ModelNotFoundError(f"{where}: no GGUF file matches {quant}; available: {there or 'none'}")


def shard_names(index: dict[str, Any], where: str) -> list[str]:
    """The names of the shards in an index. Raises ConfigError; UnsafePathError for an unsafe name."""
    entries = index.get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise ConfigError(f"{where}: weight_map: must map tensor names to shard names; download it again")
    for name in (shards := sorted({str(value) for value in entries.values()})):
        if not is_plain(name) or "/" in name or not name.endswith(".safetensors"):
            raise UnsafePathError(
                f"{where}: weight_map: must be plain names of .safetensors files (got {name!r:.80})"
            )
    return shards


def is_plain(name: str) -> bool:
    """Whether an untrusted file name stays inside its folder."""
    pieces = name.split("/")
    return (
        len(name) <= 255
        and name.isprintable()
        and not any(character in name for character in '\\:*?"<>|')
        and all(piece not in ("", ".", "..") for piece in pieces)
    )


def choose_files(
    names: Sequence[str], quant: str | None, read_index: Callable[[], dict[str, Any]], where: str
) -> Contents:
    """Choose the files of the model with quantization `quant`; None prefers safetensors to GGUF.

    names: available files, as paths inside the repository. read_index: reads the index of shards.
    Raises ModelNotFoundError, ConfigError, UnsafePathError.
    """
    there, sets = set(names), gguf_sets(names)
    if quant is None and there & {SINGLE, INDEX}:
        weights = [SINGLE] if SINGLE in there else shard_names(read_index(), f"{where}: {INDEX}")
        beside = {name for name in there if name in _BESIDE or re.fullmatch(_MORE_TEMPLATES, name)}
        index = [] if SINGLE in there else [INDEX]
        return Contents((*sorted(beside | {CONFIG}), *index, *weights), tuple(weights), None)
    if sets or quant is not None:
        chosen = choose_gguf(sets, quant, where)
        return Contents(chosen.files, chosen.files, chosen.name)
    pickle = next((name for name in sorted(there) if name.endswith(_PICKLES)), None)
    has = f"found {join_names(sorted(there)) or 'nothing'}"
    if pickle is not None:
        has = f"{pickle} is not loaded: a pickle can run code"
    raise ModelNotFoundError(
        f"{where}: weights: must be {SINGLE}, {INDEX} with its shards, or *.gguf ({has}); "
        "use a repository with safetensors or GGUF files"
    )
