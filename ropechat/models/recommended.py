"""The settings of the sampler that the maker of a model recommends.

generation_config.json or the keys `general.sampling.*` of a GGUF file; for files that have none of these, the
model's entry in the catalog. Some models have others for answers without a thought: those are in the catalog.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropechat.models.weights import quant_of
from ropechat.sampling.sources import valid_numbers


def own_sampling(
    path: Path, name: str, generation: Mapping[str, Any], *, thinks: bool = True
) -> dict[str, float]:
    """The recommended settings, by name; {} without any.

    path, name: of the model, as for `CatalogModel.is_model`. generation: the fact of this name. thinks:
    whether the model may think before its answers. `do_sample: false` is temperature 0.
    """
    numbers = {one: value for one, value in generation.items() if one != "do_sample"}
    if generation.get("do_sample") is False:
        numbers = {"temperature": 0.0}
    if numbers and thinks:
        return valid_numbers(numbers)
    from ropechat.models.catalog import read_catalog  # imported here: it reads a file

    names = {_plain(path.name), _plain(name)}
    entries = (one for one in read_catalog() if one.is_model(name, path) or _plain(one.file) in names)
    entry = next(entries, None)
    if entry is not None and not thinks and entry.sampling_without_thinking:
        return valid_numbers(entry.sampling_without_thinking)
    return valid_numbers(numbers or (entry.sampling if entry is not None else {}))


def _plain(name: str) -> str:
    """The name of a model or file without its owner, its quantization and suffixes."""
    found = name.rpartition("/")[2].partition(":")[0].lower().removesuffix(".gguf").removesuffix("-gguf")
    quant = (quant_of(name) or "").lower()
    return found.removesuffix(quant).rstrip("-._:") if quant else found
