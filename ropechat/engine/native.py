"""The compiled engine, `ropechat.engine._core`, and the weights of a model on their way into it.

The only importer of `_core`. A load begins in a thread of its own, where Python is not needed: tokenizer,
template and all that is imported for them are made ready beside it.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from ropechat.errors import InternalError, MemoryLimitError
from ropechat.models.pack_cache import cache_mode, load_options
from ropechat.util.background import BackgroundCall

if TYPE_CHECKING:
    from ropechat.engine import _core

T = TypeVar("T")


def load_core() -> ModuleType:
    """`ropechat.engine._core`. Raises InternalError where it was not built."""
    try:
        from ropechat.engine import _core
    except ImportError as error:
        raise InternalError(
            f"ropechat.engine._core: {error}; build it with `make` or reinstall ropechat"
        ) from None
    return _core


def free_memory() -> int | None:
    """Bytes that a model could take; None where the system does not say."""
    free: int | None = load_core().free_memory()
    return free


def exit_when_cut(*, screen: bool) -> None:
    """End this process (a program's, no library's) with exit code 74 when a mapped file of a model is cut."""
    load_core().exit_when_cut(screen=screen)


def gguf_metadata(path: str) -> Mapping[str, Any]:
    """The keys and values of a GGUF file. Raises ModelFileError."""
    return dict(load_core().gguf_metadata(path))


class LoadOptions(TypedDict, total=False):
    """What `Engine.load` takes besides the model; see there."""

    dtype: str
    kv_dtype: str
    threads: int | None
    context: int | None
    cache: str | None


class ModelLoad:
    """The weights of a model folder or GGUF file, being loaded. Raises as `Engine.load`.

    Packing large weights waits for the work given to `run_before_packing`: checking a vocabulary takes memory
    that is free again before packing needs it. After this is left as a context manager, it does not wait.
    use_cache: whether prepared data is cached on disk for the next start.
    """

    def __init__(self, folder: Path, **options: Unpack[LoadOptions]) -> None:
        module = load_core()
        self.folder = folder
        self.vocab_size: int = module.read_config(str(folder))["vocab_size"]
        self._may_pack = threading.Event()
        mode = cache_mode(options.pop("cache", None))
        self.use_cache = mode != "off"
        given = {**options, **load_options(mode), "before_packing": self._may_pack.wait}
        try:
            self._core: BackgroundCall[_core.Engine] = BackgroundCall(
                lambda: module.Engine.load(str(folder), **given)
            )
        except RuntimeError:
            left = f"{module.free_memory()} bytes are left"
            what = "a higher `ulimit -v`, or fewer programs, make room"
            raise MemoryLimitError(f"{folder}: memory: no room for a thread, {left}; {what}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._may_pack.set()

    def run_before_packing(self, work: Callable[[], T]) -> T:
        """What `work` returns, before large weights are packed."""
        with self:
            return work()

    def result(self) -> "_core.Engine":
        """The compiled engine, when it is there. Raises what went wrong on the way."""
        self._may_pack.set()
        return self._core.result()
