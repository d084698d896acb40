"""The model included in ropechat. `training` has the scripts that produced it."""

from pathlib import Path

NAME = "builtin"
"""Its name for `-m`, and the default model."""
FOLDER = Path(__file__).parent
NOTE = "The built-in model, a tiny one."
