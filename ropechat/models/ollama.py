"""The models of Ollama: manifests, and the blobs they name.

<models>/manifests/registry.ollama.ai/library/<model>/<tag>   JSON: layers with a media type and a digest
         manifests/<host>/<namespace>/<model>/<tag>            of another user or host
         blobs/sha256-<hex>                                    the bytes; those of a model are a GGUF file
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ropechat.errors import RopechatError
from ropechat.models.folders import FoundModel, OnNote
from ropechat.util.files import parse_json, read_bytes
from ropechat.util.paths import expand_home

SOURCE = "Ollama"
_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the service that the Linux installer sets up
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_MODEL = "application/vnd.ollama.image.model"
_ADAPTER = "application/vnd.ollama.image.adapter"
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_PART = r"(?a)[A-Za-z0-9_][\w.-]*"
_MAX_MANIFEST = 1 << 20
_MAX_MANIFESTS = 5000


class OllamaName(NamedTuple):
    """The four parts of a name; the folders of its manifest."""

    host: str
    namespace: str
    model: str
    tag: str

    def __str__(self) -> str:
        """As Ollama shows it, without what is usual."""
        where = "" if self.namespace == _NAMESPACE and self.host == _HOST else f"{self.namespace}/"
        where = where if self.host == _HOST else f"{self.host}/{self.namespace}/"
        return where + self.model + ("" if self.tag == _TAG else f":{self.tag}")


def parse_name(text: str) -> OllamaName | None:
    """Parse model, model:tag, namespace/model:tag or host/namespace/model:tag; None for anything else."""
    whole, _, tag = text.partition(":")
    parts = whole.split("/")
    if len(parts) > 3 or not all(re.fullmatch(_PART, part) for part in (*parts, tag or _TAG)):
        return None
    usual = (_HOST, _NAMESPACE)[: 3 - len(parts)]
    return OllamaName._make((*usual, *parts, tag or _TAG))


def models_folders() -> list[Path]:
    """The folders in which Ollama may keep models: OLLAMA_MODELS, or the user's and the Linux service's."""
    if chosen := os.environ.get("OLLAMA_MODELS"):
        return [expand_home(chosen)]
    return [Path(os.path.expanduser("~/.ollama/models")), _SERVICE]


def list_models(on_note: OnNote) -> Iterator[FoundModel]:
    """Yield Ollama's models by name. on_note: is called with what was skipped, and why."""
    for folder in models_folders():
        for name in sorted(_names(folder, on_note)):
            if (found := _read(folder, name, on_note)) is not None:
                yield found


def find(text: str) -> Path | None:
    """The GGUF file of the model that Ollama has under a name; None if it has none."""
    name = parse_name(text)
    for folder in models_folders() if name is not None else ():
        found = None if name is None else _read(folder, name, lambda note: None)
        if found is not None and found.reason is None:
            return found.path
    return None


def name_of(blob: Path) -> str | None:
    """The name under which Ollama has a blob; None if no manifest names it."""
    folder = blob.parent.parent
    for name in sorted(_names(folder, lambda note: None)):
        found = _read(folder, name, lambda note: None)
        if found is not None and found.path.name == blob.name:
            return found.name
    return None


def _names(folder: Path, on_note: OnNote) -> list[OllamaName]:
    """The names of all manifests."""
    found: list[tuple[str, ...]] = [()]
    for _ in OllamaName._fields:
        deeper: list[tuple[str, ...]] = []
        for parts in found:
            where = folder.joinpath("manifests", *parts)
            try:
                deeper += [(*parts, name) for name in os.listdir(where) if re.fullmatch(_PART, name)]
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                on_note(f"skipped ({error.strerror or error}): {where}")
        found = deeper[:_MAX_MANIFESTS]
    return [OllamaName._make(parts) for parts in found]


def _read(folder: Path, name: OllamaName, on_note: OnNote) -> FoundModel | None:
    """Read a manifest; None if there is none, or if it names no model."""
    where = folder.joinpath("manifests", *name[:-1])
    try:
        data = read_bytes(where, name.tag, _MAX_MANIFEST)
        layers = None if data is None else parse_json(data, where / name.tag).get("layers")
    except RopechatError as error:
        on_note(f"skipped: {error}")
        return None
    digests = _digests(layers, _MODEL)
    if not digests:
        return None
    path = folder / "blobs" / f"sha256-{digests[0]}"
    reason = None
    if len(digests) > 1 or _digests(layers, _ADAPTER):
        reason = "it consists of several files (parts, or an adapter), which is not supported"
    try:
        size = path.stat().st_size
    except OSError as error:
        size, reason = 0, f"{path}: {error.strerror or error}; run `ollama pull {name}`"
    return FoundModel(str(name), path, size, SOURCE, reason)


def _digests(layers: Any, kind: str) -> list[str]:
    """The sha256 of the layers of a media type, in hex; what is malformed is left out."""
    entries = [one for one in layers if isinstance(one, dict)] if isinstance(layers, list) else []
    found = [_DIGEST.fullmatch(str(one.get("digest"))) for one in entries if one.get("mediaType") == kind]
    return [match[1] for match in found if match is not None]
