"""Completing the name of a model: a path, a short name, or a model on this machine."""

from collections.abc import Iterable

from ropechat.models.catalog import read_catalog
from ropechat.models.resolve import BUILTIN, LAST
from ropechat.util.paths import complete_path

_PATHS = ("/", "./", "../", "~")


def complete_model(begun: str, names: Iterable[str] = ()) -> list[str]:
    """What a name may become: of a path its folders and GGUF files, else known names, then such paths.

    names: models on this machine.
    """
    paths = complete_path(begun, (".gguf",))
    if begun.startswith(_PATHS):
        return paths
    short = [name for one in read_catalog() for name in one.short]
    known = [name for name in (BUILTIN, LAST, *short, *names) if name.lower().startswith(begun.lower())]
    return list(dict.fromkeys([*known, *paths]))
