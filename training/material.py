"""The hand-written material: TOML files in `material/`, read once."""

import functools
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "material"


@functools.cache
def table(name: str) -> dict[str, Any]:
    """What stands in material/NAME.toml."""
    with (FOLDER / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


@functools.cache
def asked() -> dict[str, list[str]]:
    """Questions as new users type them, by the id of the topic that answers them: material/asked/*.toml."""
    found: dict[str, list[str]] = {}
    for path in sorted((FOLDER / "asked").glob("*.toml")):
        for name, questions in tomllib.loads(path.read_text(encoding="utf-8")).items():
            found.setdefault(name, []).extend(questions)
    return found


def article(noun: str) -> str:
    """A noun with a or an."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def capital(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]
