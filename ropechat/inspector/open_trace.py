"""Reading a trace (`ropechat.trace/1`, JSON lines) that was recorded by `inspect` or `run`.

A trace is a file like any other: every field is checked, and a bad one is an error that names the line.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from ropechat.errors import RequestError
from ropechat.inspector.draws import RecordedDraws
from ropechat.sampling import Sampling
from ropechat.trace import Candidate, Stage, TokenDistribution, TokenScore
from ropechat.util.text import limit_words

SCHEMA = "ropechat.trace/1"
MAX_LINE_BYTES = 64 << 20
_NAME = re.compile("[a-z_]{1,40}")


def read_trace(lines: Iterable[bytes], where: str) -> RecordedDraws:
    """Read the lines of one trace. where: the file's name, for messages. Raises RequestError, OSError."""
    tokens, spellings = list[TokenScore](), dict[int, bytes]()
    meta: dict[str, Any] | None = None
    following: TokenDistribution | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _Record(_parse(line, f"{where}: line {number}"), f"{where}: line {number}")
        if meta is None:
            meta = _meta(record)
        elif record.value.get("schema") is not None:
            record.fail("schema", "in the first line only; open a file with one text")
        elif record.value.get("next") is True:
            entropy = _or_nan(record.number("entropy"))
            following = _row(record, (tokens[-1].index if tokens else -1), entropy)
            _spell(record, spellings)
        elif record.value.get("summary") is not True:
            tokens.append(_token(record, spellings))
    if meta is None:
        raise RequestError(f"{where}: line 1: must describe a trace (got an empty file)")
    meta["tokens"] = len(tokens)
    return RecordedDraws(tuple(tokens), meta, following, spellings)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse(line: bytes, where: str) -> Any:
    if len(line) > MAX_LINE_BYTES:
        raise RequestError(f"{where}: {limit_words(MAX_LINE_BYTES, len(line))}")
    try:
        return json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        # Without the position that JSON's error ends with: its line 1 is this line.
        fault = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else error
        raise RequestError(f"{where}: must be JSON ({fault}); give a trace of `inspect` or `run`") from None


class _Record:
    """A JSON object; a bad field raises RequestError with the place and the field."""

    def __init__(self, value: Any, place: str) -> None:
        self.place = place
        if not isinstance(value, dict):
            raise RequestError(f"{place}: must be a JSON object (got {value!r:.40})")
        self.value: dict[str, Any] = value

    def fail(self, name: str, allowed: str) -> NoReturn:
        raise RequestError(f"{self.place}: {name}: must be {allowed} (got {self.value.get(name)!r:.40})")

    def of_kind(self, name: str, kinds: type | tuple[type, ...], allowed: str, required: bool) -> Any:
        value = self.value.get(name)
        if value is None and not required:
            return None
        if isinstance(value, bool) != (kinds is bool) or not isinstance(value, kinds):
            self.fail(name, allowed)
        return value

    def count(self, name: str) -> int:
        found: int = self.of_kind(name, int, "an integer from 0", True)
        return found if 0 <= found < 2**63 else self.fail(name, "an integer from 0")

    def optional_count(self, name: str) -> int | None:
        return None if self.value.get(name) is None else self.count(name)

    def number(self, name: str) -> float | None:
        found = self.of_kind(name, (int, float), "a number or null", False)
        try:
            value = None if found is None else float(found)
        except OverflowError:
            value = math.inf
        return value if value is None or math.isfinite(value) else self.fail(name, "a number or null")

    def text(self, name: str) -> str:
        found: str = self.of_kind(name, str, "a string", True)
        return found.encode("utf-8", "replace").decode()

    def name(self, name: str) -> str:
        """A name of a role or a stage, which goes to the screen as it is."""
        found = self.text(name)
        if not _NAME.fullmatch(found):
            self.fail(name, "a name of lowercase letters")
        return found

    def optional_text(self, name: str) -> str | None:
        return None if self.value.get(name) is None else self.text(name)

    def names(self, name: str) -> tuple[str, ...]:
        items = self.of_kind(name, list, "a list of strings", False) or []
        if not all(isinstance(item, str) and _NAME.fullmatch(item) for item in items):
            self.fail(name, "a list of names of lowercase letters")
        return tuple(items)

    def flag(self, name: str) -> bool:
        found: bool = self.of_kind(name, bool, "true or false", True)
        return found

    def records(self, name: str) -> "list[_Record]":
        items = self.of_kind(name, list, "a list", False) or []
        return [_Record(item, f"{self.place}: {name}[{index}]") for index, item in enumerate(items)]

    def numbers(self, name: str, length: int | None = None) -> tuple[float, ...]:
        items = self.of_kind(name, list, "a list of numbers", False) or []
        good = all(type(item) in (int, float) and abs(item) < 2**63 for item in items)
        if not good or (length is not None and len(items) != length):
            self.fail(name, "a list of numbers" if length is None else f"a list of {length} numbers")
        return tuple(float(item) for item in items)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _meta(record: _Record) -> dict[str, Any]:
    if record.value.get("schema") != SCHEMA:
        record.fail("schema", f'"{SCHEMA}"; give a trace of `inspect` or `run`')
    meta: dict[str, Any] = {
        name: value for name, value in record.value.items() if isinstance(value, str | int | float)
    }
    meta |= {"vocab_size": record.optional_count("vocab"), "text": record.optional_text("text")}
    meta |= {name: record.optional_count(name) for name in ("trained_length", "window", "stride")}
    meta["roles"] = record.names("roles")
    meta["sampling"] = None
    if record.value.get("sampling") is not None:
        settings = _Record(record.value["sampling"], f"{record.place}: sampling").value
        try:
            meta["sampling"] = Sampling(**settings)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{record.place}: sampling: {error}") from None
    return meta


def _top(record: _Record) -> tuple[tuple[int, float], ...]:
    items = record.of_kind("top", list, "a list", False) or []
    found = []
    for item in items:
        good = isinstance(item, list) and len(item) == 2 and type(item[0]) is int and 0 <= item[0] < 2**63
        if not good or not (item[1] is None or (type(item[1]) in (int, float) and -1e9 < item[1] < 1e-6)):
            record.fail("top", "a list of [id, logprob]")
        found.append((item[0], -math.inf if item[1] is None else float(item[1])))
    return tuple(found)


def _row(record: _Record, position: int, entropy: float) -> TokenDistribution:
    mass = record.number("top_mass")
    return TokenDistribution(position, _top(record), math.nan, entropy, 0.0 if mass is None else mass)


def _spell(record: _Record, spellings: dict[int, bytes]) -> None:
    """Keep the texts of the candidates, for ids that no token spells exactly."""
    texts = record.of_kind("top_text", list, "a list of strings", False) or []
    for (id, _), text in zip(_top(record), texts, strict=False):
        if not isinstance(text, str):
            record.fail("top_text", "a list of strings")
        spellings.setdefault(id, text.encode("utf-8", "replace"))


def _token(record: _Record, spellings: dict[int, bytes]) -> TokenScore:
    id, index, rank = record.count("id"), record.count("i"), record.value.get("rank")
    values = record.of_kind("bytes", list, "a list of bytes", False) or []
    if not all(type(value) is int and 0 <= value < 256 for value in values):
        record.fail("bytes", "a list of bytes")
    start, end = record.numbers("span", 2)
    data, entropy = bytes(values), record.number("entropy")
    spellings[id] = data
    _spell(record, spellings)
    given = record.value.get("sampler")
    sampler = _Record({} if given is None else given, f"{record.place}: sampler")
    interval = sampler.numbers("interval", 2) if sampler.value.get("interval") is not None else None
    return TokenScore(
        index=index,
        id=id,
        bytes=data,
        text=record.text("token"),
        span=(int(start), int(end)),
        role=record.name("role"),
        logprob=record.number("logprob"),
        rank=None if rank is None else record.count("rank"),
        entropy=entropy,
        context=record.optional_count("ctx") or 0,
        row=None if record.value.get("top") is None else _row(record, index - 1, _or_nan(entropy)),
        stages=tuple(_stage(stage) for stage in sampler.records("stages")),
        candidates=tuple(_candidate(one) for one in sampler.records("candidates")),
        interval=None if interval is None else (interval[0], interval[1]),
        u=sampler.number("u"),
    )


def _stage(record: _Record) -> Stage:
    mass, entropy = _or_nan(record.number("mass")), _or_nan(record.number("entropy"))
    return Stage(record.name("name"), record.count("kept"), mass, entropy)


def _candidate(record: _Record) -> Candidate:
    probability = record.number("p")
    if probability is None:
        record.fail("p", "a number")
    return Candidate(
        record.count("id"),
        record.count("rank"),
        None if record.value.get("cut") is None else record.name("cut"),
        record.flag("penalized"),
        probability,
        record.numbers("by_stage"),
    )
