"""The forms of results: jsonl, openai, json, csv, tsv and parquet, from the records of one row at a time.

Everything in a result is determined by the row, the settings and the model, so that equal runs write equal
bytes: OpenAI's `created` is 0, and cached tokens are given in the run's record only.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from ropechat.batch.agree import agreed, agreement_of_records
from ropechat.batch.hash_index import hash64
from ropechat.batch.journal import INTERNAL, line_of
from ropechat.batch.line import CHAT, COMPLETIONS
from ropechat.batch.source import format_of
from ropechat.engine.certainty import has_certainty
from ropechat.engine.json_fields import leaves, name_of
from ropechat.errors import RequestError, UnsureError
from ropechat.sampling.grammar import Grammar
from ropechat.util.records import Csv

FORMS = ("jsonl", "openai", "json", "csv", "tsv", "parquet")
SHARD = "shard"
"""The form of a shard's file: the journal's records, of which `ropechat merge` makes every other form."""
STREAMED = ("jsonl", "openai", "csv", "tsv")
"""Forms that can be written to stdout line by line."""
_PARQUET_ROWS = 256

_MOST_PROPERTIES = 256
"""Properties of a schema that get columns."""
_KIND_OF_TYPE = {"boolean": "bool_", "number": "float64"}
"""Kinds of Parquet columns by the type of a JSON schema; integers may have any size."""
_USUAL = (*("id", "sample", "text", "finish_reason", "prompt_tokens", "completion_tokens", "seed", "error"),)

ResultColumn = list[str]
"""[name, kind of the Parquet column, key in the record, key in that, ...]."""
Records = Sequence[Mapping[str, Any]]
"""The records of one row: one per sample."""


def form_of(path: Path) -> str:
    """The form of an output, by the suffix of its name."""
    form = format_of(path)
    return form if form in FORMS else "jsonl"


class Form(Protocol):
    """Makes lines of records. head, tail: what is before the first and after the last."""

    head: str
    tail: str

    def lines(self, records: Records) -> str:
        """The lines of a row."""


def result_columns(grammar: Grammar | None, *, agree: bool = False) -> list[ResultColumn]:
    """The columns that a table has besides the usual ones: what records say of answers that match this.

    Of a JSON schema there is one for each property, and one for how sure it is. agree: also how far the
    samples agree.
    """
    found: list[ResultColumn] = []
    if agree:
        found.append(["agreement", "float64", "agreement", "share"])
        found.append(["entropy", "float64", "agreement", "entropy"])
    if grammar is None or not has_certainty(grammar):
        return found
    found += [[name, "float64", name] for name in ("confidence", "allowed")]
    if not grammar.is_json:
        return [*found, ["choices", "string", "choices"]]
    taken = {*_USUAL, *(column[0] for column in found)}
    for path, schema in islice(leaves(json.loads(grammar.source[0])), _MOST_PROPERTIES):
        field = name_of(path)
        name = field if field not in taken else f"parsed.{field}"
        of_type = schema.get("type")
        kind = _KIND_OF_TYPE.get(of_type, "string") if isinstance(of_type, str) else "string"
        mine: list[ResultColumn] = [[name, kind, "parsed", *path]]
        if of_type != "array":
            mine.append([f"{name}.confidence", "float64", "fields", field, "confidence"])
            if agree:
                mine.append([f"{name}.agreement", "float64", "agreement", "fields", field, "share"])
        if taken.isdisjoint(column[0] for column in mine):
            found += mine
            taken.update(column[0] for column in mine)
    return found


class Shape(NamedTuple):
    """What results are beside their form. columns: kept fields, for tables. more: `result_columns`.

    sampled: whether rows have several samples. agree: whether these become one record. excel: the delimiter
    of CSV that begins with a BOM; "" for a comma and no BOM. score: whether they are scores.
    """

    columns: Sequence[str] = ()
    more: Sequence[ResultColumn] = ()
    sampled: bool = False
    agree: bool = False
    excel: str = ""
    score: bool = False

    @classmethod
    def of(cls, header: Mapping[str, Any], columns: Sequence[str]) -> "Shape":
        """Of a run with this header."""
        agree = bool(header.get("agree"))
        sampled = header["n"] > 1 and not agree
        more, excel = header.get("columns", ()), header.get("excel", "")
        return cls(columns, more, sampled, agree, excel, bool(header["score"]))


def text_form(form: str, shape: Shape, model: Mapping[str, str]) -> Form:
    """A form by name. model: "name" and "fingerprint", for openai."""
    if form == SHARD:
        return _Whole()
    if form == "openai":  # whose choices are the samples
        return OpenAiForm(model, agree=shape.agree)
    made = _form(form, shape)
    return _Agreed(made) if shape.agree else made


def _form(form: str, shape: Shape) -> Form:
    if form == "json":
        return _Array()
    if form in ("csv", "tsv"):
        return _Table(_columns(shape), (shape.excel or ",") if form == "csv" else "\t", bom=bool(shape.excel))
    return _Lines()


def result_of(record: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
    """A journal's record without what is internal. alone: it is the only one of its row."""
    dropped = (*INTERNAL, "endpoint", "sample") if alone else (*INTERNAL, "endpoint")
    return {name: value for name, value in record.items() if name not in dropped}


class _Agreed:
    """A form with one record for each row."""

    def __init__(self, inner: Form) -> None:
        self._inner, self.head, self.tail = inner, inner.head, inner.tail

    def lines(self, records: Records) -> str:
        return self._inner.lines(agreed(records))


class _Lines:
    head = tail = ""

    def lines(self, records: Records) -> str:
        return "".join(line_of(result_of(record, alone=len(records) == 1)) for record in records)


class _Whole:
    head = tail = ""

    def lines(self, records: Records) -> str:
        return "".join(map(line_of, records))


class _Array:
    head, tail = "[", "\n]\n"

    def __init__(self) -> None:
        self._between = "\n"

    def lines(self, records: Records) -> str:
        made = []
        for record in records:
            made.append(self._between + line_of(result_of(record, alone=len(records) == 1))[:-1])
            self._between = ",\n"
        return "".join(made)


class _Column(NamedTuple):
    """A column of a table. kind: of a Parquet column. of: its value in a record, None without one."""

    name: str
    kind: str
    of: Callable[[Mapping[str, Any]], Any]


def _column(name: str, kind: str, *keys: str) -> _Column:
    """A column of what a record has at some keys."""

    def find(record: Mapping[str, Any]) -> Any:
        value: Any = record
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        is_number = kind == "float64" and isinstance(value, int) and not isinstance(value, bool)
        return float(value) if is_number else value

    return _Column(name, kind, find)


_ERROR = _Column("error", "string", lambda record: None if record["ok"] else record["error"]["message"])
_OF_CHOICES = (
    *(("text", "string"), ("answer", "string"), ("correct", "bool_"), ("correct_per_byte", "bool_")),
    *(("confidence", "float64"), ("allowed", "float64"), ("best", "int64"), ("best_per_byte", "int64")),
)
"""Columns of a scored row: of its choices."""
_OF_SCORE = (("logprob", "float64"), ("tokens", "int64"), ("bytes", "int64"), ("bits_per_byte", "float64"))
"""And of its completion or best choice."""


def _of_best(record: Mapping[str, Any], *, name: str) -> Any:
    found: Any = record["scores"][record["best"]] if "scores" in record else record
    return found.get(name)


def _score_columns() -> list[_Column]:
    found = [_column(name, kind, name) for name, kind in _OF_CHOICES]
    found += [_Column(name, kind, functools.partial(_of_best, name=name)) for name, kind in _OF_SCORE]
    return [*found, _ERROR]


def _answer_columns(more: Sequence[ResultColumn]) -> list[_Column]:
    return [
        _column("text", "string", "text"),
        *(_column(*column) for column in more),
        _column("finish_reason", "string", "finish_reason"),
        _column("prompt_tokens", "int64", "usage", "prompt_tokens"),
        _column("completion_tokens", "int64", "usage", "completion_tokens"),
        _column("seed", "uint64", "seed"),
        _ERROR,
    ]


def _columns(shape: Shape) -> list[_Column]:
    """The columns of a row. A kept field that is named as a column of the result gets the prefix input_."""
    ends = _score_columns() if shape.score else _answer_columns(shape.more)
    taken = {"id", "sample", *(column.name for column in ends)}

    def of_input(name: str) -> _Column:
        column = f"input_{name}" if name in taken else name
        return _Column(column, "string", lambda record: record.get("input", {}).get(name))

    sample = [_column("sample", "int64", "sample")] if shape.sampled else []
    return [_column("id", "string", "id"), *sample, *map(of_input, shape.columns), *ends]


class _Table:
    tail = ""

    def __init__(self, columns: "Sequence[_Column]", delimiter: str, *, bom: bool) -> None:
        self._columns = columns
        self._csv = Csv([column.name for column in self._columns], delimiter, "\n")
        self.head = "\ufeff" * bom + self._csv.head

    def lines(self, records: Records) -> str:
        rows = ({name: _cell(of(record)) for name, _, of in self._columns} for record in records)
        return "".join(map(self._csv.line, rows))


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | bool) else value


class OpenAiForm:
    """Lines of OpenAI's batch output: a chat.completion or a text_completion, or the error of a line."""

    head = tail = ""

    def __init__(self, model: Mapping[str, str], *, agree: bool = False) -> None:
        self._model, self._agree = model, agree

    def lines(self, records: Records) -> str:
        """The line of a row, with a choice per sample. An unsure answer has an error and its choice."""
        first = records[0]
        id = str(first["id"])
        number = f"{hash64(id):016x}"
        failed = [record["error"] for record in records if not record["ok"]]
        unanswered = [error for error in failed if error["class"] != UnsureError.__name__]
        if unanswered:
            status, body = _error_body(unanswered[0])
        else:
            status, body = 200, self._body(number, records)
        unsure = None if unanswered or not failed else {"code": "unsure", "message": failed[0]["message"]}
        line = {
            "id": f"batch_req_{number}",
            "custom_id": id,
            "response": {"status_code": status, "request_id": f"req_{number}", "body": body},
            "error": unsure,
        }
        return line_of(line)

    def _body(self, number: str, records: Records) -> dict[str, Any]:
        chat = records[0].get("endpoint", CHAT) != COMPLETIONS
        prompt = records[0]["usage"]["prompt_tokens"]
        made = sum(record["usage"]["completion_tokens"] for record in records)
        thought = sum(record["usage"].get("reasoning_tokens", 0) for record in records)
        choice = chat_choice if chat else text_choice
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{number}",
            "object": "chat.completion" if chat else "text_completion",
            "created": 0,
            "model": self._model["name"],
            "choices": [choice(index, record) for index, record in enumerate(records)],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": made,
                "total_tokens": prompt + made,
                **({"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {}),
            },
            "system_fingerprint": self._model["fingerprint"],
            **({"agreement": agreement_of_records(records)} if self._agree else {}),
        }


def openai_reason(record: Mapping[str, Any]) -> str:
    """OpenAI's finish_reason of a record."""
    return "stop" if record["finish_reason"] == "stop" else "length"


def _bytes_of(text: str) -> list[int] | None:
    """The bytes of a token's text; None if it is not whole characters."""
    return None if "\ufffd" in text else list(text.encode("utf-8"))


def chat_choice(index: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as a choice of a chat.completion."""
    tokens = record.get("logprobs")
    content = None if tokens is None else [chat_token(token) for token in tokens]
    return {
        "index": index,
        "message": {
            "role": "assistant",
            "content": record["text"],
            **({"reasoning_content": record["reasoning"]} if "reasoning" in record else {}),
            "refusal": None,
        },
        "logprobs": None if content is None else {"content": content, "refusal": None},
        "finish_reason": openai_reason(record),
        **own_fields(record),
    }


_OWN = (*("confidence", "allowed", "choices", "fields"), "unsure", "truncated", "seed")


def own_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a choice has beside OpenAI's fields: how sure an answer is, what was cut, the seed."""
    return {name: record[name] for name in _OWN if name in record}


def chat_token(token: Mapping[str, Any]) -> dict[str, Any]:
    """A token's logprobs, as a chat.completion has them."""
    top = [
        {"token": text, "logprob": logprob, "bytes": _bytes_of(text)}
        for _, logprob, text in token.get("top", [])
    ]
    return {**{name: token[name] for name in ("token", "logprob", "bytes")}, "top_logprobs": top}


def text_choice(index: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as a choice of a text_completion."""
    tokens = record.get("logprobs")
    logprobs = None if tokens is None else text_logprobs(tokens)
    return {
        "text": record["text"],
        "index": index,
        "logprobs": logprobs,
        "finish_reason": openai_reason(record),
        **own_fields(record),
    }


def text_logprobs(tokens: Sequence[Mapping[str, Any]], at: int = 0) -> dict[str, Any]:
    """The logprobs of tokens, as a text_completion has them. at: the offset of the first one."""
    offsets = []
    for token in tokens:
        offsets.append(at)
        at += len(token["token"])
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [
            None  # of the first token, which has no context
            if token["logprob"] is None
            else {text: logprob for _, logprob, text in reversed(token.get("top", []))}
            for token in tokens
        ],
        "text_offset": offsets,
    }


_OF_THE_SERVER = ("InternalError", "NonFiniteError", "MemoryLimitError", "RowTimeoutError")
"""Errors that are not of the request."""


def _error_body(error: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """(status code, body) of a failed row."""
    own = error["class"] in _OF_THE_SERVER
    full = error["class"] == "ContextFullError"
    body = {
        "message": error["message"],
        "type": "server_error" if own else "invalid_request_error",
        "param": None,
        "code": "context_length_exceeded" if full else None,
    }
    return 500 if own else 400, {"error": body}


def write_parquet(file: IO[bytes], rows: Iterator[Records], shape: Shape) -> None:
    """Write records to a Parquet file; kept fields that are not texts are written as JSON."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = _columns(shape)
    schema = pa.schema([(column.name, getattr(pa, column.kind)()) for column in found])
    with pq.ParquetWriter(file, schema) as writer:
        batch: list[dict[str, Any]] = []

        def put() -> None:
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            batch.clear()

        for records in rows:
            for record in agreed(records) if shape.agree else records:
                values = ((name, kind, of(record)) for name, kind, of in found)
                batch.append({name: _as_text(one) if kind == "string" else one for name, kind, one in values})
            if len(batch) >= _PARQUET_ROWS:
                put()
        put()


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def require_parquet() -> None:
    """Raise RequestError if pyarrow is not installed."""
    with contextlib.suppress(ImportError):
        import pyarrow.parquet  # noqa: F401

        return
    raise RequestError("Parquet needs pyarrow; install it with `pip install 'ropechat[parquet]'`")
