"""The grammar of a line: OpenAI's `response_format`, vLLM's `structured_outputs`."""

import json
from typing import Any, NoReturn

from ropechat.engine.grammars import check_grammar
from ropechat.errors import RequestError
from ropechat.sampling.grammar import Grammar

RESPONSE_FORMAT, STRUCTURED = "response_format", "structured_outputs"
FIELDS = (RESPONSE_FORMAT, STRUCTURED)
_KEYS = ("json", "json_object", "regex", "choice", "grammar")


class _FieldError(ValueError):
    """An error in a field: `<field>: must be ...`."""


def _reject(text: str) -> NoReturn:
    raise _FieldError(text)


def grammar_of(fields: dict[str, Any], *, flexible: bool) -> tuple[bool, Grammar | None]:
    """Remove the fields; return whether the line says what its answer must match, and the grammar.

    The grammar is None for {"type": "text"}. flexible: whether JSON may have whitespace. Raises ValueError
    naming the field, also if the grammar cannot be used.
    """
    given = {name: fields.pop(name) for name in FIELDS if name in fields}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return False, None
    if len(given) > 1:
        _reject(f"{STRUCTURED}: must not be given together with {RESPONSE_FORMAT}")
    ((name, value),) = given.items()
    if not isinstance(value, dict):
        _reject(f"{name}: must be an object (got {value!r:.40})")
    grammar = (_response_format if name == RESPONSE_FORMAT else _structured)(value, flexible)
    if grammar is not None:
        try:
            check_grammar(grammar, grammar.name)
        except RequestError as error:
            _reject(f"{name}: {error}")
    return True, grammar


def _response_format(value: dict[str, Any], flexible: bool) -> Grammar | None:
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.json_object(flexible=flexible)
    if kind != "json_schema":
        _reject(f"{RESPONSE_FORMAT}.type: must be text, json_object or json_schema (got {kind!r:.40})")
    inner = value.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return _schema(f"{RESPONSE_FORMAT}.json_schema.schema", schema, flexible)


def _schema(field: str, value: object, flexible: bool) -> Grammar:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            _reject(f"{field}: must be JSON ({error})")
    if not isinstance(value, dict | bool):
        _reject(f"{field}: must be an object (got {value!r:.40})")
    return Grammar.json_schema(value, flexible=flexible)


def _structured(value: dict[str, Any], flexible: bool) -> Grammar:
    given = [name for name, one in value.items() if one is not None]
    if len(given) != 1 or given[0] not in _KEYS:
        _reject(f"{STRUCTURED}: must have one of {', '.join(_KEYS)} (got {', '.join(given) or 'none'!s:.60})")
    name, one = given[0], value[given[0]]
    field = f"{STRUCTURED}.{name}"
    if name == "json":
        return _schema(field, one, flexible)
    if name == "json_object":
        if one is not True:
            _reject(f"{field}: must be true (got {one!r:.40})")
        return Grammar.json_object(flexible=flexible)
    if name == "choice":
        if not isinstance(one, list) or not all(isinstance(text, str) for text in one):
            _reject(f"{field}: must be a list of texts (got {one!r:.40})")
        return Grammar.choices(one)
    if not isinstance(one, str):
        _reject(f"{field}: must be a string (got {one!r:.40})")
    return Grammar.regex(one) if name == "regex" else Grammar.lark(one)
