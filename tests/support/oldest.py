"""The oldest versions of the direct dependencies that pyproject.toml allows, as arguments for pip."""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def main() -> None:
    for line in PROJECT["dependencies"]:
        name, _, oldest = re.split(r"(>=|~=)", line.partition(",")[0])
        print(f"{name}=={oldest}")


if __name__ == "__main__":
    main()
