"""The built-in model without an end: a longer context, and no token that ends a text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ropechat.builtin import FOLDER

CONTEXT = 65536
# What the footer shows in colours, and the model does not say: the keys that send, and that stop.
IDLE, BUSY = "⏎".encode(), b"27mesc\x1b[0m"


def endless(folder: Path) -> Path:
    """A model folder around the built-in weights; what it says beyond their context has no meaning."""
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copyfile(FOLDER / name, folder / name)  # a link out of its folder is not followed
    config = json.loads((FOLDER / "config.json").read_text())
    config |= {"max_position_embeddings": CONTEXT, "eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(config))
    words = json.loads((FOLDER / "tokenizer_config.json").read_text())
    words |= {"eos_token": None, "chat_template": words["chat_template"].replace("<|im_end|>", "")}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return folder
