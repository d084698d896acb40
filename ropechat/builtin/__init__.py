"""The model that comes with ropechat. A leaf: imports nothing of ours. How it was made is in `training`."""

from pathlib import Path

NAME = "builtin"
"""What `-m` takes for it, and what is taken when no model is named."""
FOLDER = Path(__file__).parent
NOTE = (
    "This is ropechat's built-in model, a tiny one: it knows ropechat, language models and a few simple "
    "things. For a bigger one: ropechat chat -m path/to/model"
)
