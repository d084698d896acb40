"""The compiled engine, `ropechat.engine._core` (this is its only importer), and loading weights into it.

A load runs in its own thread and does not hold the GIL; tokenizer and template are prepared meanwhile.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from ropechat.engine.validation import validate_size
from ropechat.errors import InternalError, MemoryLimitError
from ropechat.models.pack_cache import cache_mode, load_options
from ropechat.models.resolve import resolve
from ropechat.util.background import BackgroundCall
from ropechat.util.progress import Progress
from ropechat.util.text import format_bytes

if TYPE_CHECKING:
    from ropechat.engine import _core

T = TypeVar("T")
_ATTENTION_COST = (
    2.5  # seconds per multiplication in attention, over those in a product with weights; measured
)


def load_core() -> ModuleType:
    """Import `ropechat.engine._core`. Raises InternalError if it was not built."""
    try:
        from ropechat.engine import _core
    except ImportError as error:
        raise InternalError(
            f"ropechat.engine._core: {error}; build it with `make` or reinstall ropechat"
        ) from None
    return _core


def free_memory() -> int | None:
    """Bytes of memory available to a model; None if the system does not say."""
    free: int | None = load_core().free_memory()
    return free


def exit_when_cut(*, screen: bool) -> None:
    """Exit with code 74 if a memory-mapped model file is truncated. For programs, not for libraries."""
    load_core().exit_when_cut(screen=screen)


def gguf_metadata(path: str) -> Mapping[str, Any]:
    """Read the metadata of a GGUF file. Raises ModelFileError."""
    return dict(load_core().gguf_metadata(path))


def model_types() -> list[str]:
    """The values of `model_type` that the engine computes, in the order of its registry of families."""
    return list(load_core().model_types())


def gguf_architectures() -> dict[str, list[str]]:
    """For each model type the architectures of its GGUF files that the engine computes."""
    of_types: dict[str, list[str]] = {}
    for architecture, types in load_core().gguf_architectures():
        for model_type in types:
            of_types.setdefault(model_type, []).append(architecture)
    return of_types


def rope_spec(path: str, length: int = 0) -> Mapping[str, Any]:
    """What a config says about positions: see `_core.rope_spec`. Raises as `read_config`."""
    return dict(load_core().rope_spec(path, length=length))


class ProgressMeter:
    """How far the work of an engine is: loading, packing or reading. Any thread may read it.

    growth: of the cost of reading, as in `Progress`.
    """

    def __init__(self) -> None:
        self.growth = 0.0
        self._core: _core.Progress | None = None

    @property
    def core(self) -> "_core.Progress":
        """What the compiled engine writes to."""
        if self._core is None:  # not before a load: importing the compiled engine takes time
            self._core = load_core().Progress()
        return self._core

    def read(self) -> Progress | None:
        """The present stage, in bytes (loading, packing) or tokens (reading); None while nothing waits."""
        found = None if self._core is None else self._core.read()
        if found is None:
            return None
        stage, done, total = found
        if stage == "reading":
            return Progress(stage, done, total, "tokens", self.growth)
        return Progress(stage, done, total, "bytes")


def attention_growth(facts: Mapping[str, Any]) -> float:
    """How much each token before a token adds to its cost, where the first one costs 1: `Progress.growth`.

    Multiplications of attention with one key and one value, over those with the layers' weights.
    """
    heads = facts["num_hidden_layers"] * facts["num_attention_heads"] * facts["widest_head_dim"]
    weights = facts["num_parameters"] - facts["vocab_size"] * facts["hidden_size"]
    return float(_ATTENTION_COST * 2 * heads / weights) if weights > 0 else 0.0


class Request:
    """A running request, which `Engine.cancel` cancels as long as it exists."""

    def __init__(self, core: "_core.Engine") -> None:
        self.core: _core.Engine = core
        self.token: _core.CancelToken = load_core().CancelToken()


class LoadOptions(TypedDict, total=False):
    """The options of `Engine.load`."""

    dtype: str
    kv_dtype: str
    threads: int | None
    context: int | None
    prefix_bytes: int | None
    speculative: str
    draft: str | Path | None
    cache: str | None
    progress: ProgressMeter | None


class ModelLoad:
    """A model load in progress, from a folder or GGUF file. Raises as `Engine.load`.

    Packing large weights waits for the work given to `run_before_packing`: checking a vocabulary takes memory
    that is free again before packing needs it. After this is left as a context manager, it does not wait.
    draft: the path of the draft model. use_cache: whether prepared data is cached on disk for the next start.
    facts: those of the config. progress: how far it is.
    """

    def __init__(self, folder: Path, **options: Unpack[LoadOptions]) -> None:
        for name in ("threads", "context", "prefix_bytes"):
            validate_size(name, options.get(name))
        module = load_core()
        self.folder = folder
        self.facts: dict[str, Any] = module.read_config(str(folder))
        self.vocab_size: int = self.facts["vocab_size"]
        self._may_pack = threading.Event()
        named = options.pop("draft", None)
        drafts = options.get("speculative") != "off"
        self.draft = resolve(named) if named is not None and drafts else None
        mode = cache_mode(options.pop("cache", None))
        self.use_cache = mode != "off"
        self.progress = options.pop("progress", None) or ProgressMeter()
        given = {**options, **load_options(mode), "before_packing": self._may_pack.wait}
        given["progress"] = self.progress.core
        given["draft"] = None if self.draft is None else str(self.draft)
        try:
            self._core: BackgroundCall[_core.Engine] = BackgroundCall(
                lambda: module.Engine.load(str(folder), **given)
            )
        except RuntimeError:
            left = f"{format_bytes(module.free_memory() or 0)} free"
            what = "raise `ulimit -v` or close programs"
            raise MemoryLimitError(f"{folder}: memory: cannot start a thread ({left}); {what}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._may_pack.set()

    def run_before_packing(self, work: Callable[[], T]) -> T:
        """Run `work` before large weights are packed and return its result."""
        with self:
            return work()

    def result(self) -> "_core.Engine":
        """Wait for the compiled engine and return it. Raises the errors of the load."""
        self._may_pack.set()
        return self._core.result()
