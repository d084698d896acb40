"""What tests have to know of the built-in model, from its config: a new training may change all of it."""

import json

from ropechat import builtin

CONFIG = json.loads((builtin.FOLDER / "config.json").read_text(encoding="utf-8"))
LAYERS: int = CONFIG["num_hidden_layers"]
HEADS: int = CONFIG["num_attention_heads"]
TRAINED_LENGTH: int = CONFIG["max_position_embeddings"]
TOO_LONG = "long " * (TRAINED_LENGTH + 1)
"""A prompt of more tokens than the model was trained for."""
