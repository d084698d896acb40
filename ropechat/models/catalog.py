"""The catalog: models that people use, of families that are tested here, from catalog.toml."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ropechat.models.hub.names import HubName
from ropechat.models.speed import Machine, Speed, expected_speed
from ropechat.models.weights import quant_of
from ropechat.util.text import closest_name

FILE = Path(__file__).with_name("catalog.toml")
_SHORT = re.compile(r"(?a)[A-Za-z0-9][\w.-]*(?::[\w.-]+)?")
_KV_VALUE_BYTES = 2  # bytes of a number in the KV cache
_LATEST = ":latest"  # what Ollama appends to a name without a tag
_DEFAULT_CONTEXT = 8192  # tokens, the largest default context


@dataclass(frozen=True)
class PackagedFile:
    """The file of an entry inside a package of a Python index; catalog.toml describes the fields."""

    name: str
    version: str
    file: str
    wheel_size: int
    sha256: str
    commit: str


@dataclass(frozen=True)
class CatalogModel:
    """A model of the catalog; catalog.toml describes the fields."""

    name: str
    short: tuple[str, ...]
    repo: str
    file: str
    size: int
    model_type: str
    num_parameters: int
    max_position_embeddings: int
    num_hidden_layers: int
    num_key_value_heads: int
    head_dim: int
    license: str
    gated: bool
    about: str
    checked: str
    num_attention_layers: int | None = None
    thinking: bool = False
    package: PackagedFile | None = None
    sampling: Mapping[str, float] = field(default_factory=dict, hash=False)
    sampling_without_thinking: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def hub_name(self) -> HubName:
        """Its name on the Hub: org/name:QUANT for a GGUF."""
        return HubName(self.repo, quant=quant_of(self.file) if self.file.endswith(".gguf") else None)

    def is_model(self, name: str, path: Path) -> bool:
        """Whether a model that was found is this one, by its name on the Hub or in Ollama, or its file's.

        llama.cpp puts the repository before the file's name.
        """
        files = (self.file, f"{self.repo.replace('/', '_')}_{self.file}")
        is_file = self.hub_name.quant is not None and path.name in files
        return is_file or name.lower() in (self.short[0], str(self.hub_name).lower())

    @property
    def needs(self) -> int:
        """Bytes of memory, as `needed_memory` estimates them; windows count as full attention."""
        layers = self.num_attention_layers or self.num_hidden_layers
        values = 2 * layers * self.num_key_value_heads * self.head_dim
        return needed_memory(self.size, self.max_position_embeddings, _KV_VALUE_BYTES * values)


@cache
def read_catalog() -> tuple[CatalogModel, ...]:
    """All models of the catalog, the smallest file first."""
    import tomllib  # imported here: most starts need no catalog

    with FILE.open("rb") as stream:
        entries = tomllib.load(stream)["model"]
    return tuple(map(_to_model, entries))


def _to_model(entry: dict[str, Any]) -> CatalogModel:
    package = entry.get("package")
    return CatalogModel(
        **{**entry, "short": tuple(entry["short"]), "package": package and PackagedFile(**package)}
    )


@cache
def shown_name(name: str) -> str:
    """A model's name for the screen: that of the catalog for a model of the catalog, else the same.

    name: as answers are marked with it.
    """
    if "/" not in name:
        return name
    return next((one.name for one in read_catalog() if str(one.hub_name) == name), name)


def offered_model() -> CatalogModel:
    """The model that is offered to those who have none: the smallest one."""
    return read_catalog()[0]


def is_short(text: str) -> bool:
    """Whether a text has the form of a short name: word or word:tag, and not that of a file's name."""
    return _SHORT.fullmatch(text) is not None and not text.endswith(".gguf")


def find_short(text: str) -> CatalogModel | None:
    """The model of a short name, in any case; None if the catalog does not have it."""
    if not is_short(text):
        return None
    wanted = text.lower().removesuffix(_LATEST)
    return next((one for one in read_catalog() if wanted in one.short), None)


def closest_short(text: str) -> str:
    """The short name that is most similar to a mistyped one; "" if none is similar."""
    return closest_name(text, (name for one in read_catalog() for name in one.short))


def expected_of(model: CatalogModel, known: Iterable[Speed], machine: Machine | None) -> Speed:
    """How fast a model of the catalog should be here."""
    dtype = model.hub_name.quant or ""
    return expected_speed(model.size, model.num_parameters, known, dtype, machine)


def needed_memory(size: int, max_position_embeddings: int, kv_token_bytes: int) -> int:
    """Bytes for the weights as stored and the KV cache of a full context, at most the default one.

    kv_token_bytes: what a token takes in the KV cache.
    """
    return size + kv_token_bytes * min(max_position_embeddings, _DEFAULT_CONTEXT)
