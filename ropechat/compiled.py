"""The compiled engine, `ropechat._core`, and the weights of a model on their way into it.

The only importer of `_core`. A load begins in a thread of its own, where Python is not needed: tokenizer,
template and all that is imported for them are made ready beside it.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from ropechat.beside import Beside
from ropechat.errors import InternalError, MemoryLimitError
from ropechat.packed import cache_mode, load_options

if TYPE_CHECKING:
    from ropechat import _core

T = TypeVar("T")


def compiled() -> ModuleType:
    """`ropechat._core`. Raises InternalError where it was not built."""
    try:
        from ropechat import _core
    except ImportError as error:
        raise InternalError(f"ropechat._core: {error}; build it with `make` or reinstall ropechat") from None
    return _core


def free_memory() -> int | None:
    """Bytes that a model could take; None where the system does not say."""
    free: int | None = compiled().free_memory()
    return free


def exit_when_cut(*, screen: bool) -> None:
    """End this process (a program's, no library's) with exit code 74 when a mapped file of a model is cut."""
    compiled().exit_when_cut(screen=screen)


def gguf_metadata(path: str) -> Mapping[str, Any]:
    """The keys and values of a GGUF file. Raises ModelFileError."""
    return dict(compiled().gguf_metadata(path))


class LoadOptions(TypedDict, total=False):
    """What `Engine.load` takes besides the model; see there."""

    dtype: str
    kv_dtype: str
    threads: int | None
    context: int | None
    cache: str | None


class Loading:
    """The weights of a model folder or GGUF file, being loaded. Raises as `Engine.load`.

    Large weights that no earlier start packed wait for what runs in `meanwhile`: to check a vocabulary takes
    memory that is free again before theirs is needed. Once this is left as a context, they do not wait.
    keeps: what was made ready is kept on disk for the next start.
    """

    def __init__(self, folder: Path, **options: Unpack[LoadOptions]) -> None:
        module = compiled()
        self.folder = folder
        self.vocab_size: int = module.read_config(str(folder))["vocab_size"]
        self._may_pack = threading.Event()
        mode = cache_mode(options.pop("cache", None))
        self.keeps = mode != "off"
        given = {**options, **load_options(mode), "before_packing": self._may_pack.wait}
        try:
            self._core: Beside[_core.Engine] = Beside(lambda: module.Engine.load(str(folder), **given))
        except RuntimeError:
            left = f"{module.free_memory()} bytes are left"
            what = "a higher `ulimit -v`, or fewer programs, make room"
            raise MemoryLimitError(f"{folder}: memory: no room for a thread, {left}; {what}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._may_pack.set()

    def meanwhile(self, work: Callable[[], T]) -> T:
        """What `work` returns, before large weights are packed."""
        with self:
            return work()

    def result(self) -> "_core.Engine":
        """The compiled engine, when it is there. Raises what went wrong on the way."""
        self._may_pack.set()
        return self._core.result()
