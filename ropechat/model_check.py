"""What a model's files say, without loading its weights: headers, vocabulary and template."""

from pathlib import Path
from typing import Any

from ropechat.compiled import compiled, gguf_metadata
from ropechat.errors import TokenizerError
from ropechat.model_files import read_json
from ropechat.model_folder import find_stop_ids, is_gguf, template_of, tokenizer_of
from ropechat.model_source import resolve
from ropechat.packed import cache_mode
from ropechat.template import ChatTemplate


def header(model: str | Path) -> dict[str, Any]:
    """The facts that stand in the config and in the headers of the weights. Raises as `Engine.load` does."""
    return dict(compiled().check(str(resolve(model))))


def check(model: str | Path, cache: str | None = None) -> dict[str, Any]:
    """Validate a model without loading its weights; returns its facts. cache, errors: as `Engine.load`."""
    folder = resolve(model)
    facts = header(folder)
    keep = cache_mode(cache) != "off"
    tokenizer = tokenizer_of(folder, facts["vocab_size"], gguf_metadata, keep=keep)
    template = template_of(folder, tokenizer)
    stop_ids = find_stop_ids(folder, facts, tokenizer, template)
    return facts | {
        "stop_ids": sorted(stop_ids),
        "tokenizer": tokenizer.vocab_size if tokenizer.present else None,
        "chat_template": template is not None,
    }


def load_template(model: str | Path) -> ChatTemplate | None:
    """The chat template of a model, or None. Raises as `check`."""
    folder = resolve(model)
    if not is_gguf(folder):
        return ChatTemplate.load(folder, read_json(folder, "tokenizer_config.json", TokenizerError) or {})
    return template_of(folder, tokenizer_of(folder, header(folder)["vocab_size"], gguf_metadata))
