"""`ropechat models families`, and the row of README.md that says the same."""

import json
import re
from pathlib import Path

from click.testing import CliRunner

from ropechat.cli import main
from ropechat.engine.native import model_types

README = Path(__file__).parents[2] / "README.md"


def test_readme_has_the_same_list() -> None:
    listed = CliRunner().invoke(main, ["models", "families"]).stdout.split()
    row = re.search(r"^\| families \| (.*?) \|$", README.read_text(), re.MULTILINE)
    assert row is not None
    assert row[1].split("; ")[0].split(", ") == listed
    assert json.loads(CliRunner().invoke(main, ["models", "families", "--json"]).stdout) == listed


def test_every_model_type_is_served_by_one_family() -> None:
    assert len(set(model_types())) == len(model_types())
    assert {"llama", "gemma4_text", "llama4", "dtransformer_rope"} <= set(model_types())
