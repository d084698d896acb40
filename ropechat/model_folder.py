"""What a model folder says besides its weights: how it is called, which ids end a text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropechat.errors import ConfigError, TokenizerError
from ropechat.model_files import read_json
from ropechat.template import ChatTemplate
from ropechat.tokenizer import Tokenizer
from ropechat.weight_files import quant_of

_PLAIN_NAMES = ("hf", "model", "main", "checkpoint", "weights", "snapshot")
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")


def display_name(model: Path) -> str:
    """What people call the model in this folder or GGUF file."""
    path = model.absolute()
    for folder in path.parents:
        repo = folder.parent.name
        if folder.name == "snapshots" and repo.startswith("models--"):
            quant = f":{quant_of(path.name) or path.name}" if path.suffix == ".gguf" else ""
            return repo.removeprefix("models--").replace("--", "/") + quant
    if path.name.lower() in _PLAIN_NAMES and path.parent.name:
        return f"{path.parent.name}/{path.name}"
    return path.name.removesuffix(".gguf") or str(path)


def _generation_eos(folder: Path, vocab_size: int) -> list[int]:
    config = read_json(folder, "generation_config.json") or {}
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocab_size:
            raise ConfigError(
                f"{folder / 'generation_config.json'}: eos_token_id: {id!r}; "
                f"ids from 0 to {vocab_size - 1} are allowed"
            )
    return ids


def load_template(folder: Path) -> ChatTemplate | None:
    """The chat template of a model folder, without its tokenizer. Raises as `ChatTemplate.load`."""
    return ChatTemplate.load(folder, read_json(folder, "tokenizer_config.json", TokenizerError) or {})


def find_stop_ids(
    folder: Path, facts: Mapping[str, Any], tokenizer: Tokenizer, template: ChatTemplate | None
) -> frozenset[int]:
    """The ids that end a text: those of generation_config.json, config.json and the tokenizer's eos_token.

    A chat template that closes turns with a token of its own adds that one.
    """
    ids = {*_generation_eos(folder, facts["vocab_size"]), *facts["eos_token_id"]}
    if tokenizer.eos_id is not None:
        ids.add(tokenizer.eos_id)
    if template is not None:
        for token in _TURN_ENDS:
            id = tokenizer.id_of(token)
            if token in template.source and id is not None and id in tokenizer.special_ids:
                ids.add(id)
    return frozenset(ids)
