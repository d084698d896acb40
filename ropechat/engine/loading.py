"""What surrounds a model's weights: name, tokenizer, chat template, stop ids; and a check of all files."""

import filecmp
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropechat.engine.native import gguf_metadata, load_core
from ropechat.engine.templates.template import ChatTemplate
from ropechat.errors import ConfigError, RequestError, TokenizerError
from ropechat.models.pack_cache import cache_mode
from ropechat.models.resolve import resolve
from ropechat.models.weights import quant_of
from ropechat.tokenizer import Tokenizer
from ropechat.tokenizer.tokenizer import FILE as TOKENIZER_FILE
from ropechat.util.files import read_json

GgufMetadata = Callable[[str], Mapping[str, Any]]
_PLAIN_NAMES = ("hf", "model", "main", "checkpoint", "weights", "snapshot")
_TURN_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|return|>"),
    *("<|call|>", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>"),
)


def display_name(model: Path) -> str:
    """The name of the model in this folder or GGUF file, for display."""
    path = model.absolute()
    for folder in path.parents:
        repo = folder.parent.name
        if folder.name == "snapshots" and repo.startswith("models--"):
            quant = f":{quant_of(path.name) or path.name}" if path.suffix == ".gguf" else ""
            return repo.removeprefix("models--").replace("--", "/") + quant
    if path.parent.name == "blobs":
        from ropechat.models import ollama  # imported here: few models are of Ollama

        if (name := ollama.name_of(path)) is not None:
            return name
    if path.name.lower() in _PLAIN_NAMES and path.parent.name:
        return f"{path.parent.name}/{path.name}"
    return path.name.removesuffix(".gguf") or str(path)


def find_revision(model: Path) -> str | None:
    """The commit of a model in the Hub's cache; None for other models."""
    path = model.absolute()
    for folder in (path, *path.parents):
        if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
            return folder.name
    return None


def _generation_eos(folder: Path, vocab_size: int) -> list[int]:
    config = read_json(folder, "generation_config.json") or {}
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocab_size:
            raise ConfigError(
                f"{folder / 'generation_config.json'}: eos_token_id: must be an id from 0 to "
                f"{vocab_size - 1} (got {id!r})"
            )
    return ids


def is_gguf(model: Path) -> bool:
    """Whether a model is a GGUF file (or the first part of a split one) rather than a folder."""
    return not model.is_dir()


def load_tokenizer(
    model: Path, vocab_size: int, gguf_metadata: GgufMetadata, *, keep: bool | None = None
) -> Tokenizer:
    """Load the tokenizer of a model folder or GGUF file. gguf_metadata: reads the metadata of a GGUF file.

    keep, errors: as for `Tokenizer.load` and `Tokenizer.from_gguf`.
    """
    if is_gguf(model):
        return Tokenizer.from_gguf(model, lambda: gguf_metadata(str(model)), vocab_size, keep=keep)
    return Tokenizer.load(model, vocab_size, keep=keep)


def check_draft(model: Path, tokenizer: Tokenizer, draft: Path, *, keep: bool | None = None) -> None:
    """Check that a draft model has the vocabulary of a model, as far as both have tokens.

    keep: as for `load_tokenizer`. Raises RequestError that names the first id with another token.
    """
    file, draft_file = model / TOKENIZER_FILE, draft / TOKENIZER_FILE
    if file.is_file() and draft_file.is_file() and filecmp.cmp(file, draft_file, shallow=False):
        return
    name, vocab_size = display_name(draft), load_core().read_config(str(draft))["vocab_size"]
    other = load_tokenizer(draft, vocab_size, gguf_metadata, keep=keep)
    help = "give a model with the same tokenizer, or --no-speculative"
    if tokenizer.present != other.present:
        without = name if tokenizer.present else display_name(model)
        raise RequestError(f"draft: {name}: {without} has no tokenizer to compare; {help}")
    if not tokenizer.present:
        return
    for id in range(min(tokenizer.vocab_size, other.vocab_size)):
        if tokenizer.token(id) == other.token(id):
            continue
        here, there = tokenizer.token_bytes(id), other.token_bytes(id)
        if here and there and here != there:
            raise RequestError(
                f"draft: {name}: must have the vocabulary of {display_name(model)}: id {id} is "
                f"{there!r:.40} (must be {here!r:.40}); {help}"
            )


def load_chat_template(model: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Load the chat template of a model folder or GGUF file; None if it has none.

    Files beside a GGUF file take precedence over its metadata. Raises as `ChatTemplate.load`.
    """
    if not is_gguf(model):
        return ChatTemplate.load(model, tokenizer.config)
    folder = model.parent
    beside = (read_json(folder, "tokenizer_config.json", TokenizerError) or {}).get("chat_template")
    if beside is not None:
        return ChatTemplate.load(folder, {**tokenizer.config, "chat_template": beside})
    return ChatTemplate.load(folder, tokenizer.config, f"{model}: tokenizer.chat_template")


def find_stop_ids(
    model: Path, facts: Mapping[str, Any], tokenizer: Tokenizer, template: ChatTemplate | None
) -> frozenset[int]:
    """The ids that end a text: from generation_config.json, config.json and the tokenizer's files.

    A GGUF file has eos, eot and eom instead. The token with which the chat template ends turns is added.
    """
    ids = {*facts["eos_token_id"], *tokenizer.end_ids}
    if not is_gguf(model):
        ids.update(_generation_eos(model, facts["vocab_size"]))
    for token in _TURN_ENDS if template is not None else ():
        id = tokenizer.id_of(token)
        if template is not None and token in template.source and id in tokenizer.special_ids:
            ids.add(id)
    harmony = tokenizer.id_of("<|return|>") in tokenizer.special_ids
    if harmony:  # gpt-oss: <|end|> ends a message, and a reply may have several messages
        ids.discard(tokenizer.id_of("<|end|>"))
    return frozenset(id for id in ids if id is not None)


def read_header(model: str | Path) -> dict[str, Any]:
    """Read the config and the headers of the weights. Raises as `Engine.load`."""
    return dict(load_core().check(str(resolve(model))))


def check(model: str | Path, cache: str | None = None) -> dict[str, Any]:
    """Validate a model without loading its weights; return its facts. cache, errors: as `Engine.load`."""
    folder = resolve(model)
    facts = read_header(folder)
    keep = cache_mode(cache) != "off"
    tokenizer = load_tokenizer(folder, facts["vocab_size"], gguf_metadata, keep=keep)
    template = load_chat_template(folder, tokenizer)
    stop_ids = find_stop_ids(folder, facts, tokenizer, template)
    return facts | {
        "packed_types": dict(load_core().packed_types(str(folder))),
        "stop_ids": sorted(stop_ids),
        "tokenizer": tokenizer.vocab_size if tokenizer.present else None,
        "chat_template": template is not None,
    }


def find_tokenizer(model: str | Path, folders: Sequence[Path] = ()) -> Tokenizer:
    """Load the tokenizer of a model by name, without its weights. folders, errors: as `resolve`."""
    folder = resolve(model, folders)
    return load_tokenizer(folder, read_header(folder)["vocab_size"], gguf_metadata)


def load_template(model: str | Path) -> ChatTemplate | None:
    """Load the chat template of a model by name, or None if it has none. Raises as `check`."""
    folder = resolve(model)
    if not is_gguf(folder):
        return ChatTemplate.load(folder, read_json(folder, "tokenizer_config.json", TokenizerError) or {})
    return load_chat_template(folder, find_tokenizer(folder))
