"""Finding a model by its name among those of other programs, and in the folders that the user names."""

from collections.abc import Sequence
from pathlib import Path

from ropechat.models import ollama
from ropechat.models.catalog import find_short
from ropechat.models.folders import FoundModel, models_below, models_of_programs


def find_elsewhere(text: str, folders: Sequence[Path] = ()) -> Path | None:
    """The path of a model of this name in Ollama, LM Studio, llama.cpp or `folders`; None without one.

    A model of the catalog is also found by its first short name in Ollama, and by its file elsewhere.
    """
    known = find_short(text)
    for name in dict.fromkeys((text, known.short[0] if known else text)):
        if (path := ollama.find(name)) is not None:
            return path

    def fits(one: FoundModel) -> bool:
        named = one.name.lower() == text.lower() or (known is not None and known.is_model(one.name, one.path))
        return named and one.reason is None

    for one in models_of_programs(_ignore):
        if fits(one):
            return one.path
    for folder in folders:
        for one in models_below(folder, str(folder), _ignore):
            if fits(one):
                return one.path
    return None


def _ignore(note: str) -> None:
    """Ignore an unreadable place silently: the search goes on."""
