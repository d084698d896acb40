"""Grammars that an answer must match."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["json_schema", "regex", "choices", "lark"]
_NAMES: dict[str, str] = {
    "json_schema": "JSON schema",
    "regex": "regex",
    "choices": "choices",
    "lark": "Lark grammar",
}


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        raise ValueError(f"{text:.20}: beyond the range of numbers")
    return value


@dataclass(frozen=True)
class Grammar:
    """What an answer must match, made by `json_schema`, `json_object`, `regex`, `choices` or `lark`.

    source: its text; of choices, each of them. flexible: whether JSON may have whitespace between its tokens;
    without, it is compact, which takes fewer tokens. Raises ValueError for a field of another type; what
    cannot be compiled is refused when it is checked or used.
    """

    kind: Kind
    source: tuple[str, ...]
    flexible: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            allowed = ", ".join(get_args(Kind))
            raise ValueError(f"grammar: kind: must be one of {allowed} (got {self.kind!r:.40})")
        given: Any = self.source
        if isinstance(given, str) or not all(isinstance(text, str) for text in given):
            raise ValueError(f"grammar: source: must be a list of texts (got {given!r:.40})")
        object.__setattr__(self, "source", tuple(given))
        if self.kind != "choices" and len(self.source) != 1:
            raise ValueError(f"grammar: source: must be one text (got {len(self.source)})")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str, *, flexible: bool = False) -> "Grammar":
        """JSON that a schema describes: a mapping, or the schema's own text."""
        import json  # imported here: rarely needed

        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        return cls("json_schema", (text,), flexible)

    @classmethod
    def json_object(cls, *, flexible: bool = False) -> "Grammar":
        """Any JSON object."""
        return cls.json_schema({"type": "object"}, flexible=flexible)

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Text that a regular expression matches from begin to end; without look-around."""
        return cls("regex", (pattern,))

    @classmethod
    def choices(cls, choices: Iterable[str]) -> "Grammar":
        """One of several texts."""
        return cls("choices", tuple(choices))

    @classmethod
    def lark(cls, text: str) -> "Grammar":
        """A context-free grammar in Lark's notation (llguidance's dialect), with a rule `start`."""
        return cls("lark", (text,))

    @property
    def name(self) -> str:
        """Its kind in words."""
        return _NAMES[self.kind]

    @property
    def is_json(self) -> bool:
        """Whether an answer is JSON."""
        return self.kind == "json_schema"

    def parse(self, text: str) -> Any:
        """The value of an answer's JSON; None if it is cut, has numbers out of range, or is not JSON."""
        if not self.is_json:
            return None
        import json  # imported here: rarely needed

        try:
            return json.loads(text, parse_float=_finite)
        except (ValueError, RecursionError):
            return None
