"""The model that comes with ropechat; it imports nothing else of ropechat. `training` is how it was made."""

from pathlib import Path

NAME = "builtin"
"""What `-m` takes for it, and what is taken when no model is named."""
FOLDER = Path(__file__).parent
NOTE = "The built-in model, a tiny one. A bigger one: ropechat chat -m path/to/model"
