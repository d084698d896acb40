"""Each fault of `make mutants` still has its place: the program would only say so after an hour."""

import tomllib
from pathlib import Path


def test_every_fault_can_be_applied() -> None:
    top = Path(__file__).parents[2]
    faults = tomllib.loads((top / "tests/mutants/mutants.toml").read_text("utf-8"))["mutant"]
    lost = [one["name"] for one in faults if (top / one["file"]).read_text("utf-8").count(one["old"]) != 1]
    assert not lost
