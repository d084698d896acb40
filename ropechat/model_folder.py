"""What a model folder says besides its weights: where it is, how it is called, which ids end a text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropechat import builtin
from ropechat.errors import ConfigError, FileAccessError, ModelPathError
from ropechat.model_files import read_json
from ropechat.template import ChatTemplate
from ropechat.tokenizer import Tokenizer

_PLAIN_NAMES = ("hf", "model", "main", "checkpoint", "weights", "snapshot")
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")


def resolve(model: str | Path) -> Path:
    """The folder of a model, or of `builtin`. Raises ModelPathError that lists what was tried."""
    text = str(model)
    if not text or "\0" in text:
        raise ModelPathError(f"{text!r}: no model; name a folder with config.json and *.safetensors")
    if text == builtin.NAME:
        return builtin.FOLDER
    path = Path(text).expanduser()
    try:
        if path.is_dir():
            return path
        exists = path.exists()
    except OSError as error:
        raise FileAccessError(f"{text}: {error.strerror}") from None
    if exists:
        raise ModelPathError(f"{text}: a file; a folder with config.json and *.safetensors is required")
    raise ModelPathError(
        f"{text}: no such model; tried the folder {path.absolute()}; "
        "give a folder with config.json and *.safetensors"
    )


def display_name(folder: Path) -> str:
    """What people call the model in this folder."""
    path = folder.absolute()
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    if path.name.lower() in _PLAIN_NAMES and path.parent.name:
        return f"{path.parent.name}/{path.name}"
    return path.name or str(path)


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
