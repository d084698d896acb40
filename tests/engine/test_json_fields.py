"""Where the fields of a JSON text are, and what a schema lists for them."""

import json
import random
from typing import Any

import pytest

from ropechat.engine.json_fields import fields_of, leaves, listed_values, name_of, schema_at


def some(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(8 if depth < 4 else 6)
    if kind == 6:
        return [some(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 7:
        return {
            draw.choice(["a", "b c", "é", '"', "0"]): some(draw, depth + 1) for _ in range(draw.randrange(4))
        }
    return draw.choice([1, -2.5e10, True, None, "", 'x"y', "\\", "{[,:]}", "é\n"])


def flat(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        return [one for key, inner in value.items() for one in flat(inner, (*path, key))]
    if isinstance(value, list):
        return [one for key, inner in enumerate(value) for one in flat(inner, (*path, key))]
    return [(path, value)]


def test_fields_are_found_in_any_text() -> None:
    draw = random.Random(3)
    for _ in range(300):
        value = some(draw)
        text = json.dumps(value, ensure_ascii=draw.random() < 0.5, indent=draw.choice([None, 1]))
        found = fields_of(text)
        assert [(field.path, field.value) for field in found] == flat(value)
        for field in found:
            quotes = '"' if isinstance(field.value, str) else ""
            assert json.loads(quotes + text[field.start : field.end] + quotes) == field.value


@pytest.mark.parametrize("text", ["", "{", '{"a"', '{"a":', '{"a":1', "[1,", "[", '{"a" 1}', "nul"])
def test_a_text_that_is_cut_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        fields_of(text)


def test_names_of_paths() -> None:
    assert name_of(()) == "$"
    assert name_of(("a", "b-c", 0, 1, "d e", "é")) == 'a.b-c[0][1]["d e"].é'
    assert name_of(("0", 0)) == '["0"][0]'


SCHEMA = {
    "$defs": {"a/b": {"enum": ["x", 1]}, "loop": {"properties": {"next": {"$ref": "#/$defs/loop"}}}},
    "properties": {
        "one": {"$ref": "#/$defs/a~1b"},
        "many": {"items": {"type": ["boolean", "null"]}, "prefixItems": [{"const": 3}]},
        "inner": {"properties": {"deep": {"type": "string"}}},
        "any": {"anyOf": [{"const": 1}, {"const": True}, {"const": 1}, {"$ref": "#/$defs/a~1b"}]},
        "loop": {"$ref": "#/$defs/loop"},
    },
    "additionalProperties": {"type": "boolean"},
}


def test_what_a_schema_lists() -> None:
    def listed(*path: Any) -> Any:
        return listed_values(SCHEMA, schema_at(SCHEMA, path))

    assert listed("one") == ["x", 1]
    assert [listed("many", 0), listed("many", 1)] == [[3], [True, False, None]]
    assert listed("any") == [1, True, "x"]
    assert listed("other") == [True, False]
    for path in (("inner", "deep"), ("inner", "none"), ("many",), ("one", 0), ("loop", "next", "next"), ()):
        assert listed(*path) is None
    assert listed_values({}, {"enum": [["a"]]}) is None
    assert listed_values({}, {"anyOf": [{"const": 1}, {"type": "integer"}]}) is None
    circle = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "anyOf": [{"$ref": "#/$defs/a"}]}
    assert listed_values(circle, circle) is None


def test_the_properties_of_an_object() -> None:
    found = dict(leaves(SCHEMA))
    assert [*found] == [("one",), ("many",), ("inner", "deep"), ("any",), ("loop", "next")]
    assert found["inner", "deep"] == {"type": "string"}
    assert [*leaves(True)] == [*leaves({"type": "string"})] == []
