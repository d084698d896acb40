"""Finding a model by its name among those of other programs, and in the folders that the user names."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from ropechat.models import ollama
from ropechat.models.catalog import find_short
from ropechat.models.folders import FoundModel, models_below, models_of_programs
from ropechat.models.packages import models_of_packages
from ropechat.models.recent import recent_by_path


def find_elsewhere(text: str, folders: Sequence[Path] = ()) -> Path | None:
    """The path of a model of this name in Ollama, LM Studio, llama.cpp, Python packages or `folders`, or of
    one that was opened by path before; None without one.

    The name is that of the list, or of the file, as answers are marked with. A model of the catalog is also
    found by its first short name in Ollama, and by its file elsewhere.
    """
    known = find_short(text)
    for name in dict.fromkeys((text, known.short[0] if known else text)):
        if (path := ollama.find(name)) is not None:
            return path

    def fits(one: FoundModel) -> bool:
        names = one.name, one.path.name, one.path.name.removesuffix(".gguf")
        named = text.lower() in map(str.lower, names)
        return (named or (known is not None and known.is_model(one.name, one.path))) and one.reason is None

    found = chain(
        models_of_programs(_ignore),
        models_of_packages(_ignore),
        *(models_below(folder, str(folder), _ignore) for folder in folders),
        recent_by_path(),
    )
    return next((one.path for one in found if fits(one)), None)


def _ignore(note: str) -> None:
    """Ignore an unreadable place silently: the search goes on."""
