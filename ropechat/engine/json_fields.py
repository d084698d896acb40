"""The fields of a JSON text: the path, value and place of each, and the values that a schema lists for it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Key = str | int
Path = tuple[Key, ...]
_NAME = re.compile(r"[^\W\d][\w-]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(strict=False)
_MAX_REFERENCES = 32


class Field(NamedTuple):
    """A value in a JSON text that is no object and no list."""

    path: Path
    value: Any
    start: int
    """Of the value in characters; of a string, of what is between its quotes."""
    end: int


def name_of(path: Sequence[Key]) -> str:
    """A path as text: `author`, `address.city`, `tags[0]`, `["a key"].x`; "$" for the whole text."""
    parts = []
    for key in path:
        if isinstance(key, int):
            parts.append(f"[{key}]")
        elif _NAME.fullmatch(key):
            parts.append(f".{key}" if parts else key)
        else:
            parts.append(f"[{json.dumps(key, ensure_ascii=False)}]")
    return "".join(parts) or "$"


def fields_of(text: str) -> list[Field]:
    """The fields of a JSON text in its order; of a name that is given twice both. Raises ValueError."""
    return list(_fields(text, _skip(text, 0), ())[0])


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _fields(text: str, at: int, path: Path) -> tuple[list[Field], int]:
    """The fields of the value at a place, and where it ends."""
    if not text.startswith(("{", "["), at):
        value, end = _DECODER.raw_decode(text, at)
        quote = text.startswith('"', at)
        return [Field(path, value, at + quote, end - quote)], end
    is_object, found = text[at] == "{", list[Field]()
    at, count = _skip(text, at + 1), 0
    while not text.startswith(("}", "]"), at):
        key: Key = count
        if is_object:
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # the colon
        inner, at = _fields(text, at, (*path, key))
        found += inner
        at = _skip(text, at)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
        count += 1
        if at >= len(text):
            raise ValueError("the JSON text ends early")
    return found, at + 1


def schema_at(schema: Any, path: Sequence[Key]) -> Any:
    """The part of a schema for a path; None if it has none, or several.

    References into the schema are followed.
    """
    here = resolved(schema, schema)
    for key in path:
        if not isinstance(here, dict):
            return None
        if isinstance(key, int):
            first = here.get("prefixItems") or []
            here = first[key] if isinstance(first, list) and key < len(first) else here.get("items")
        else:
            named = here.get("properties") or {}
            others = here.get("additionalProperties")
            here = named.get(key, others) if isinstance(named, dict) else others
        here = resolved(schema, here)
    return here


def resolved(root: Any, schema: Any) -> Any:
    """The schema that a reference names, within the same document."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(name := schema.get("$ref"), str):
            return schema
        if not name.startswith("#"):
            return None
        schema = root
        for part in name[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            schema = schema.get(key) if isinstance(schema, dict) else None
    return None


def listed_values(root: Any, schema: Any) -> list[Any] | None:
    """The values that a schema lists: enumerations, constants, booleans, null; None if others are allowed."""
    schema = resolved(root, schema)
    if not isinstance(schema, dict):
        return None
    members = schema.get("anyOf", schema.get("oneOf"))
    found: list[Any] = []
    for member in members if isinstance(members, list) else [schema]:
        values = _listed(resolved(root, member))
        if values is None:
            return None
        found += [value for value in values if not any(_same(value, other) for other in found)]
    return found or None


def _listed(schema: Any) -> list[Any] | None:
    """As `listed_values`, of a schema that is no union."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return None if any(isinstance(value, list | dict) for value in values) else list(values)
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not set(kinds) <= {"boolean", "null"}:
        return None
    return [*([True, False] if "boolean" in kinds else []), *([None] if "null" in kinds else [])]


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def leaves(schema: Any) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield (path, schema) of each property of an object; of one that is an object itself, its properties."""
    yield from _leaves(schema, schema, (), ())


def _leaves(
    root: Any, schema: Any, path: tuple[str, ...], above: tuple[int, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    here = resolved(root, schema)
    named = here.get("properties") if isinstance(here, dict) else None
    if isinstance(named, dict) and id(here) not in above:
        for name, inner in named.items():
            yield from _leaves(root, inner, (*path, name), (*above, id(here)))
    elif path:
        yield path, here if isinstance(here, dict) else {}
