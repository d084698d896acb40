"""Whether a JSON text is what a JSON schema describes, for the checks of a grid.

The keywords are those of JSON Schema 2020-12 that structured output knows; a schema with another one is
refused, as a check that it does not make would pass silently. Structured output's own engine cannot judge
a text: it wants the keys in the order of the schema, and refuses `not` and parts of `oneOf` that overlap.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from ropechat.engine.json_fields import resolved

_ANNOTATIONS = ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default")
_IGNORED = (*_ANNOTATIONS, "examples", "deprecated", "readOnly", "writeOnly", "format", "x-guidance")
_MAX_DEPTH = 100


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == math.floor(value),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal in JSON, where true is not 1 and 1 is 1.0."""
    if _is_number(one) and _is_number(other):
        return bool(one == other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def _is_multiple(value: Any, of: Any) -> bool:
    """By the decimal digits: 0.3 is a multiple of 0.1."""
    return Fraction(repr(value)) % Fraction(repr(of)) == 0


_KEYWORDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda value, bound: value >= bound),
    "maximum": ("number", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("number", lambda value, bound: value > bound),
    "exclusiveMaximum": ("number", lambda value, bound: value < bound),
    "multipleOf": ("number", _is_multiple),
    "minLength": ("string", lambda value, bound: len(value) >= bound),
    "maxLength": ("string", lambda value, bound: len(value) <= bound),
    "pattern": ("string", lambda value, pattern: re.search(pattern, value) is not None),
    "minItems": ("array", lambda value, bound: len(value) >= bound),
    "maxItems": ("array", lambda value, bound: len(value) <= bound),
    "minProperties": ("object", lambda value, bound: len(value) >= bound),
    "maxProperties": ("object", lambda value, bound: len(value) <= bound),
    "required": ("object", lambda value, names: all(name in value for name in names)),
}
"""Keyword -> the type of values that it is about, and what it says of them."""
_NESTED = ("properties", "patternProperties", "additionalProperties", "items", "prefixItems")
_UNIONS = ("anyOf", "oneOf", "allOf")
_ALL = (*_IGNORED, *_KEYWORDS, *_NESTED, *_UNIONS, "type", "enum", "const", "$ref", "not")


def unknown_keyword(schema: Any) -> str | None:
    """A keyword of a schema that `matches` does not check; None without one."""
    if isinstance(schema, list):
        return next((found for one in schema if (found := unknown_keyword(one))), None)
    if not isinstance(schema, dict):
        return None
    for key, value in schema.items():
        if key not in _ALL:
            return str(key)
        if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            found = unknown_keyword(list(value.values()))
        else:
            found = unknown_keyword(value) if key in (*_NESTED, *_UNIONS, "not") else None
        if found is not None:
            return found
    return None


def matches(schema: Any, text: str) -> bool:
    """Whether a text is JSON of a schema. Raises re.error for a pattern that Python does not know."""
    try:
        value = json.loads(text, parse_constant=lambda name: _reject(name))
        return _fits(schema, schema, value, 0)
    except (ValueError, RecursionError):
        return False


def _reject(name: str) -> float:
    raise ValueError(f"{name}: not a number of JSON")


def _fits(root: Any, schema: Any, value: Any, depth: int) -> bool:
    if isinstance(schema, bool):
        return schema
    if depth > _MAX_DEPTH or not isinstance(schema, dict):
        return False

    def fits(inner: Any, part: Any = value) -> bool:
        return _fits(root, inner, part, depth + 1)

    if "$ref" in schema and not fits(resolved(root, schema)):
        return False
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(kind in _TYPES and _TYPES[kind](value) for kind in kinds):
        return False
    if "const" in schema and not _same(schema["const"], value):
        return False
    if "enum" in schema and not any(_same(one, value) for one in schema["enum"]):
        return False
    for name, (kind, check) in _KEYWORDS.items():
        if name in schema and _TYPES[kind](value) and not check(value, schema[name]):
            return False
    if "not" in schema and fits(schema["not"]):
        return False
    if not all(fits(one) for one in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(fits(one) for one in schema["anyOf"]):
        return False
    if "oneOf" in schema and sum(fits(one) for one in schema["oneOf"]) != 1:
        return False
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        return all(fits(first[n] if n < len(first) else rest, one) for n, one in enumerate(value))
    return not isinstance(value, dict) or all(
        fits(inner, value[name]) for name in value for inner in _of_property(schema, name)
    )


def _of_property(schema: Mapping[str, Any], name: str) -> list[Any]:
    """The schemas of a property."""
    found = [schema["properties"][name]] if name in schema.get("properties", {}) else []
    patterns = schema.get("patternProperties", {})
    found += [inner for pattern, inner in patterns.items() if re.search(pattern, name)]
    return found or [schema.get("additionalProperties", True)]
