"""Takes the compiled engine from the file that SANITIZED_CORE names (`sanitize.py`), before ropechat does."""

import importlib.util
import os
import sys

NAME = "ropechat.engine._core"
_spec = importlib.util.spec_from_file_location(NAME, os.environ["SANITIZED_CORE"])
assert _spec is not None
assert _spec.loader is not None
sys.modules[NAME] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[NAME])
# The sandbox for templates and grammars limits its addresses, of which a sanitizer takes terabytes.
sys.executable = os.environ["PLAIN_PYTHON"]
