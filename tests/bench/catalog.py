"""Checks the catalog of models against the Hub's listing: file, size, licence, gate, context, parameters.

    python tests/bench/catalog.py [NAME ...] [--write]

NAME: short names; without one all models. Each difference is a line. --write: the day goes into `checked` of
each model without a difference; nothing else in the file changes. Exit code 1 if anything differs, or was not
found.
"""

import argparse
import datetime
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ropechat.errors import RopechatError
from ropechat.models import catalog
from ropechat.models.catalog import CatalogModel, read_catalog
from ropechat.models.hub import client
from ropechat.models.weights import choose_files

ALLOWED = (
    0.01  # share of the parameters by which counts may differ: a GGUF may store RoPE factors as a tensor
)


def differences(model: CatalogModel) -> Iterator[str]:
    """Yield what the Hub lists in another way. Raises DownloadError, ModelNotFoundError."""
    info = client.listing(model.hub_name)
    sizes = {str(entry.rfilename): entry.size for entry in info.siblings or ()}
    weights = choose_files(list(sizes), model.hub_name.quant, dict, str(model.hub_name)).weights
    if weights != (model.file,):
        yield f"file: {model.file}, but {model.hub_name} selects {', '.join(weights)}"
    if model.file in sizes and sizes[model.file] != model.size:
        yield f"size: {model.size}, the Hub lists {sizes[model.file]}"
    if bool(info.gated) != model.gated:
        yield f"gated: {model.gated}, the Hub lists {info.gated}"
    card = info.card_data
    license = card.get("license_name" if card.get("license") == "other" else "license") if card else None
    if license != model.license:
        yield f"license: {model.license}, the Hub lists {license}"
    yield from _differences_of_shape(model, info)


def _differences_of_shape(model: CatalogModel, info: Any) -> Iterator[str]:
    """Context and parameters, where the Hub has read them from the file."""
    header = info.gguf or {}
    context = header.get("context_length", model.max_position_embeddings)
    if context != model.max_position_embeddings:
        yield f"max_position_embeddings: {model.max_position_embeddings}, the Hub lists {context}"
    total = info.safetensors.total if info.safetensors else header.get("total", model.num_parameters)
    if abs(total - model.num_parameters) > ALLOWED * model.num_parameters:
        yield f"num_parameters: {model.num_parameters}, the Hub lists {total}"


def mark(path: Path, models: set[str], day: str) -> None:
    """Write the day into the entries of these models, by name."""
    lines, name = path.read_text(encoding="utf-8").splitlines(keepends=True), ""
    for at, line in enumerate(lines):
        key, _, value = line.partition(" = ")
        if key == "name":
            name = value.strip().strip('"')
        elif key == "checked" and name in models:
            lines[at] = f'checked = "{day}"\n'
    path.write_text("".join(lines), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Check the models; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true", help="write the day into the catalog")
    given = parser.parse_args(arguments)
    chosen = [one for one in read_catalog() if not given.names or set(given.names) & set(one.short)]
    if not chosen:
        parser.error(f"{' '.join(given.names)}: not in the catalog")
    right: set[str] = set()
    for model in chosen:
        try:
            found = list(differences(model))
        except RopechatError as error:
            found = [str(error)]
        right |= set() if found else {model.name}
        print("\n".join(f"{model.short[0]}: {text}" for text in found or ["as the Hub lists it"]), flush=True)
    if given.write:
        mark(catalog.FILE, right, datetime.datetime.now(datetime.UTC).date().isoformat())
    return 0 if len(right) == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
