"""Reading a trace (`ropechat.trace/1`, JSON lines) that was recorded by `inspect` or `run`.

A trace is a file like any other: every field is checked, and a bad one is an error that names the line.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from ropechat.errors import RequestError
from ropechat.inspector.draws import RecordedDraws
from ropechat.inspector.made_up_ids import MadeUpIds
from ropechat.sampling import Sampling
from ropechat.trace import Candidate, Stage, TokenDistribution, TokenScore
from ropechat.util.fields import Field
from ropechat.util.text import limit_words

SCHEMA = "ropechat.trace/1"
_KNOWN = "a trace of `inspect` or `run`"
MAX_LINE_BYTES = 64 << 20
MAX_VALUE_BYTES = 768 << 20
"""Most memory of a line's values. 64 MB of real candidates take less; 64 MB of `[],` would take 2 GB."""
_BYTES_OF = ((b"{", 200), (b"[", 88), (b",", 32), (b'"', 12))
"""Bytes of memory that the values behind a character have, in CPython of 64 bits: an object, a list, a number
with its place in a list, a short text (most are names of fields, which are made once)."""
_MOST = 2**63 - 1
_NAME = re.compile("[a-z_]{1,40}")


def read_trace(lines: Iterable[bytes], where: str) -> RecordedDraws:
    """Read the lines of one trace. where: the file's name, for messages. Raises RequestError, OSError."""
    tokens, ids = list[TokenScore](), MadeUpIds()
    meta: dict[str, Any] | None = None
    following: TokenDistribution | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{where}: line {number}"
        record = Field(parse(line, where, _KNOWN, number), "", RequestError, place)
        if meta is None:
            meta = _meta(record)
        elif record.of("schema").value is not None:
            raise record.of("schema").fail("in the first line only; open a file with one text")
        elif record.of("next").value is True:
            entropy = record.of("entropy").number()
            following = _row(record, (tokens[-1].index if tokens else -1), entropy, ids)
        elif record.of("summary").value is not True:
            tokens.append(_token(record, ids))
    if meta is None:
        raise RequestError(f"{where}: line 1: must describe a trace (got an empty file)")
    meta["tokens"] = len(tokens)
    return RecordedDraws(tuple(tokens), meta, following, ids.spelled)


def parse(data: bytes, where: str, wanted: str, line: int, *, is_strict: bool = True) -> Any:
    """The value of JSON text that begins at a line of a file. is_strict: whether -Infinity is refused, too.

    wanted: what to give, for messages. Raises RequestError.
    """

    def constant(name: str) -> float:
        if name != "-Infinity" or is_strict:
            raise ValueError(f"{name} is not JSON")
        return -math.inf

    if (size := too_large(data)) is not None:
        raise RequestError(f"{where}: line {line}: {size}; give {wanted}")
    try:
        return json.loads(data, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        fault: object = error
        if isinstance(error, json.JSONDecodeError):
            fault, line = f"{error.msg} at character {error.colno - 1}", line + error.lineno - 1
        raise RequestError(f"{where}: line {line}: must be JSON ({fault}); give {wanted}") from None


def too_large(data: bytes) -> str | None:
    """What is wrong with the size of JSON text, before it is read; None if nothing is."""
    if len(data) > MAX_LINE_BYTES:
        return limit_words(MAX_LINE_BYTES, len(data))
    memory = sum(data.count(character) * size for character, size in _BYTES_OF)
    if memory <= MAX_VALUE_BYTES:
        return None
    return f"memory of its JSON values: {limit_words(MAX_VALUE_BYTES, memory)}"


def _meta(record: Field) -> dict[str, Any]:
    if record.of("schema").value != SCHEMA:
        raise record.of("schema").fail(f'"{SCHEMA}"; give {_KNOWN}')
    meta: dict[str, Any] = {
        name: value for name, value in record.value.items() if isinstance(value, str | int | float)
    }
    meta |= {"vocab_size": _optional_count(record.of("vocab")), "text": record.of("text").optional_text()}
    meta |= {name: _optional_count(record.of(name)) for name in ("trained_length", "window", "stride")}
    meta["roles"] = tuple(map(_name, record.of("roles").optional_items()))
    settings = record.of("sampling")
    try:
        meta["sampling"] = None if settings.value is None else Sampling(**settings.value)
    except (TypeError, ValueError) as error:
        raise RequestError(f"{settings.where}: {error}") from None
    return meta


def _count(field: Field) -> int:
    return field.count(_MOST, required=True)


def _optional_count(field: Field) -> int | None:
    return None if field.value is None else _count(field)


def _name(field: Field) -> str:
    """A name of a role or a stage, which goes to the screen as it is."""
    if not _NAME.fullmatch(found := field.text()):
        raise field.fail("a name of lowercase letters")
    return found


def _pair(field: Field) -> tuple[float, float] | None:
    """Two numbers; None for null."""
    found = [one.number() for one in field.optional_items()]
    if field.value is not None and (len(found) != 2 or any(map(math.isnan, found))):
        raise field.fail("a list of 2 numbers")
    return (found[0], found[1]) if found else None


def _top(record: Field, ids: MadeUpIds) -> tuple[tuple[int, float], ...]:
    """The candidates; their texts are kept for ids that no token spells exactly."""
    found, texts = [], record.of("top_text").optional_items()
    for place, item in enumerate(record.of("top").value or ()):
        good = isinstance(item, list) and len(item) == 2
        text = texts[place].text().encode() if place < len(texts) else None
        good = good and (
            (type(item[0]) is int and 0 <= item[0] <= _MOST) or (item[0] is None and text is not None)
        )
        if not good or not (item[1] is None or (type(item[1]) in (int, float) and -1e9 < item[1] < 1e-6)):
            raise record.of("top").fail("a list of [id, logprob]")
        id = item[0] if text is None else ids.of(text, item[0])
        found.append((id, -math.inf if item[1] is None else float(item[1])))
    return tuple(found)


def _row(record: Field, position: int, entropy: float, ids: MadeUpIds) -> TokenDistribution:
    mass = record.of("top_mass").optional() or 0.0
    varentropy = record.of("varentropy").optional()
    return TokenDistribution(position, _top(record, ids), math.nan, entropy, mass, varentropy)


def _token(record: Field, ids: MadeUpIds) -> TokenScore:
    index, span = _count(record.of("i")), _pair(record.of("span"))
    if span is None:
        raise record.of("span").fail("a list of 2 numbers")
    data = bytes(one.count(255, required=True) for one in record.of("bytes").optional_items())
    id = ids.of(data, None if record.of("id").value is None else _count(record.of("id")))
    ids.spelled[id] = data
    entropy = record.of("entropy").number()
    sampler = record.of("sampler")
    has_stages = sampler.value is not None
    return TokenScore(
        index=index,
        id=id,
        bytes=data,
        text=record.of("token").text(),
        span=(int(span[0]), int(span[1])),
        role=_name(record.of("role")),
        logprob=record.of("logprob").optional(),
        rank=_optional_count(record.of("rank")),
        entropy=record.of("entropy").optional(),
        context=_optional_count(record.of("ctx")) or 0,
        row=None if record.of("top").value is None else _row(record, index - 1, entropy, ids),
        stages=tuple(map(_stage, sampler.of("stages").optional_items())) if has_stages else (),
        candidates=tuple(map(_candidate, sampler.of("candidates").optional_items())) if has_stages else (),
        interval=_pair(sampler.of("interval")) if has_stages else None,
        u=sampler.of("u").optional() if has_stages else None,
    )


def _stage(record: Field) -> Stage:
    mass, entropy = record.of("mass").number(), record.of("entropy").number()
    value = record.of("value").optional()
    return Stage(_name(record.of("name")), _count(record.of("kept")), mass, entropy, value)


def _candidate(record: Field) -> Candidate:
    probability, cut = record.of("p").optional(), record.of("cut")
    if probability is None:
        raise record.of("p").fail("a number")
    return Candidate(
        _count(record.of("id")),
        _count(record.of("rank")),
        None if cut.value is None else _name(cut),
        record.of("penalized").flag(),
        probability,
        tuple(one.number() for one in record.of("by_stage").optional_items()),
    )
