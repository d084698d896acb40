"""The model that comes with ropechat. A leaf: imports nothing of ours. How it was made is in `training`."""

from pathlib import Path

NAME = "builtin"
"""What `-m` takes for it, and what is taken when no model is named."""
FOLDER = Path(__file__).parent
NOTE = "The built-in model, a tiny one. A bigger one: ropechat chat -m path/to/model"
