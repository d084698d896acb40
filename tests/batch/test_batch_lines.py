"""Lines of a batch file: what each asks for, and what is wrong with the others."""

import io
import json
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ropechat.batch import source as rows
from ropechat.batch.line import LineRequest
from ropechat.batch.reader import BatchReader, BatchRow
from ropechat.conversation import Message, Role
from ropechat.errors import BatchInputError


def rows_of(tmp_path: Path, data: bytes, **options: Any) -> list[BatchRow]:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    reader = BatchReader(path, **options)
    rows = list(reader)
    assert reader.check() == len(rows)
    return rows


def content_of(row: BatchRow) -> Any:
    assert row.request is not None, row.error
    return row.request.content


def request_of(tmp_path: Path, line: dict[str, Any], **options: Any) -> LineRequest:
    (row,) = rows_of(tmp_path, json.dumps(line).encode() + b"\n", **options)
    assert row.request is not None, row.error
    return row.request


def fault_of(tmp_path: Path, line: dict[str, Any], **options: Any) -> str:
    (row,) = rows_of(tmp_path, json.dumps(line).encode() + b"\n", **options)
    assert row.request is None
    return str(row.error).removeprefix("in.jsonl: line 1: ")


def test_rows_of_both_forms(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        b'\xef\xbb\xbf{"id": "a", "prompt": "x"}\r\n'
        b"\n   \t\n"
        b'{"custom_id": "b", "messages": [{"role": "system", "content": ""}, '
        b'{"role": "user", "content": "y"}]}\n'
        b'{"id": 7, "prompt": "\xe2\x80\xa8 \xc2\x85 \\u2028\\u0000"}\n'
        b'{"prompt": "z"}',
    )
    assert [(row.index, row.line, row.id, row.error) for row in rows] == [
        (0, 1, "a", None),
        (1, 4, "b", None),
        (2, 5, 7, None),
        (3, 6, "line-6", None),
    ]
    assert content_of(rows[0]) == "x"
    assert content_of(rows[1]) == [Message(Role.SYSTEM, ""), Message(Role.USER, "y")]
    assert content_of(rows[2]) == "\u2028 \x85 \u2028\0"


BAD_LINES: list[tuple[bytes, str]] = [
    (b"{", "JSON: "),
    (b"[1]", "JSON: must be an object (got [1])"),
    (b"null", "JSON: must be an object (got null)"),
    (b'{"prompt":"a"}{"prompt":"b"}', "JSON: Extra data"),
    (b'{"id":"b"}', "prompt: missing (got no other fields)"),
    (b"{}", "prompt: missing (got no other fields)"),
    (b'{"id":"b","prompt":"a","messages":[]}', "messages: must not be given together with prompt"),
    (b'{"id":"b","prompt":5}', "prompt: must be a string (got 5)"),
    (b'{"id":"b","prompt":null}', "prompt: must be a string (got None)"),
    (b'{"id":"b","prompt":""}', "prompt: must have at least one character (got none)"),
    (b'{"id":"b","messages":[]}', "messages: must be a non-empty list (got [])"),
    (b'{"id":"b","messages":"x"}', "messages: must be a non-empty list (got 'x')"),
    (b'{"id":"b","messages":["x"]}', "messages[0]: must be an object with role and content (got 'x')"),
    (
        b'{"id":"b","messages":[{"content":"x"}]}',
        "messages[0].role: must be one of system, user, assistant, tool, developer (got None)",
    ),
    (
        b'{"id":"b","messages":[{"role":"x","content":"x"}]}',
        "messages[0].role: must be one of system, user, assistant, tool, developer (got 'x')",
    ),
    (b'{"id":"b","messages":[{"role":"user"}]}', "messages[0].content: must be a string (missing)"),
    (
        b'{"id":"b","messages":[{"role":"user","content":[]}]}',
        "messages[0].content: must be a string (got [])",
    ),
    (b'{"id":"b","prompt":"a","tempreature":0}', "tempreature: unknown field; did you mean temperature?"),
    (b'{"id":"b","prompt":"a","prompt":"c"}', "prompt: keys must be unique"),
    (b'{"id":"b","prompt":"a","x":NaN}', "JSON: numbers must be finite (got NaN)"),
    (b'{"id":"b","prompt":"a","x":-Infinity}', "JSON: numbers must be finite (got -Infinity)"),
    (b'{"id":"b","prompt":"\\ud800"}', "prompt: must be valid Unicode (got a lone surrogate"),
    (b'{"id":"\\ud800","prompt":"a"}', "id: must be valid Unicode (got a lone surrogate"),
    (b'{"id":"b","prompt":"\xff"}', "line: must be UTF-8 (byte 20 is not)"),
    (b'{"id":"b","prompt":"a\x00"}', "JSON: Invalid control character"),
    (b"[" * 100_000, "JSON: nested too deeply"),
    (b'{"id":' + b"9" * 5000 + b"}", "JSON: Exceeds the limit"),
    (b'{"id":true,"prompt":"a"}', "id: must be a string of 1 to 512 characters (got True)"),
    (b'{"id":null,"prompt":"a"}', "id: must be a string of 1 to 512 characters (got None)"),
    (b'{"id":"","prompt":"a"}', "id: must be a string of 1 to 512 characters (got '')"),
    (b'{"id":18446744073709551616,"prompt":"a"}', "id: must be a string or a 64-bit number"),
    (b'{"id":1e999,"prompt":"a"}', "id: must be a string or a 64-bit number"),
    (b'{"custom_id":7,"prompt":"a"}', "custom_id: must be a string of 1 to 512 characters (got 7)"),
    (b'{"custom_id":"' + b"x" * 600 + b'","prompt":"a"}', "custom_id: "),
    (b'{"id":"b","custom_id":"c","prompt":"a"}', "custom_id: must not be given together with id"),
    (b'{"id":"first","prompt":"a"}', "id: must be unique (got 'first' as on line 1)"),
]


@pytest.mark.parametrize(("line", "words"), BAD_LINES, ids=[str(i) for i in range(len(BAD_LINES))])
def test_bad_lines(line: bytes, words: str, tmp_path: Path) -> None:
    first, bad, last = rows_of(
        tmp_path, b'{"id":"first","prompt":"a"}\n' + line + b'\n{"id":"last","prompt":"c"}\n'
    )
    assert first.error is last.error is None
    assert bad.request is None
    assert str(bad.error).startswith(f"in.jsonl: line 2: {words}")
    assert len(str(bad.error)) < 400


def test_a_name_that_no_file_can_hold(tmp_path: Path) -> None:
    for line in (b'{"\\ud800":1}', b'{"\\ud800":1,"\\ud800":2}', b'{"temperatur\\ud800":1,"prompt":"a"}'):
        (row,) = rows_of(tmp_path, line)
        assert "\\ud800" in str(row.error)
        str(row.error).encode()


def test_a_line_above_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropechat.batch.source.MAX_LINE_BYTES", 40)
    rows = rows_of(tmp_path, b'{"prompt":"a"}\n' + b'{"prompt":"' + b"x" * 300 + b'"}\n{"prompt":"b"}\n')
    assert [row.error is None for row in rows] == [True, False, True]
    assert [row.line for row in rows] == [1, 2, 3]
    assert "at most 40 B" in str(rows[1].error)


def test_another_field_may_hold_the_prompt(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'{"id":1,"prefix":"a","gold":"x"}\n{"id":2}\n', prompt_field="prefix")
    assert content_of(rows[0]) == "a"
    assert "prefix: missing" in str(rows[1].error)


@pytest.mark.parametrize(
    "data",
    [
        b'{"prompt":"a"}\r{"prompt":"b"}\r',
        "id,prompt\n".encode("utf-16"),
        b"\x1f\x8b\x08\x00",
        b'[\n {"prompt": "a"}\n]\n',
        b'[{"prompt": "a"}]\n',
        b"id,prompt\n1,hi\n",
    ],
)
def test_files_that_are_no_json_lines(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    with pytest.raises(BatchInputError, match=r"in\.jsonl"):
        BatchReader(path).check()


def test_paths_that_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "WRITER_SECONDS", 0.05)  # nobody writes to the pipe
    os.mkfifo(tmp_path / "fifo")
    for name in ("missing", "fifo", "."):
        with pytest.raises(BatchInputError):
            BatchReader(tmp_path / name).check()


def test_a_pipe_is_read_as_rows_are_asked_for(tmp_path: Path) -> None:
    """And of a named one the writer may come late."""
    os.mkfifo(tmp_path / "fifo")
    go_on = threading.Event()

    def write() -> None:
        with (tmp_path / "fifo").open("wb", buffering=0) as pipe:
            pipe.write(b'\n{}\n{"prompt": "a"}\n')
            go_on.wait(60)
            pipe.write(b'{"prompt": "b"}')

    writer = threading.Thread(target=write)
    writer.start()
    reader = BatchReader(tmp_path / "fifo")
    assert reader.check() is None
    read = iter(reader)
    assert [next(read).id for _ in range(2)] == ["line-2", "line-3"]
    go_on.set()
    assert [content_of(row) for row in read] == ["b"]
    writer.join()


@pytest.mark.parametrize(
    ("data", "count"), [(b"", 0), (b"\n \r\n", 0), (b'\xef\xbb\xbf\n{"prompt": "a"}', None)]
)
def test_a_stream_is_looked_at_too(data: bytes, count: int | None) -> None:
    assert BatchReader(io.BytesIO(data)).check() == count
    with pytest.raises(BatchInputError, match="stdin: compressed with gzip"):
        BatchReader(io.BytesIO(b"\x1f\x8b\x08\x00")).check()
    (bad,) = BatchReader(io.BytesIO(b"{}"))
    assert str(bad.error).startswith("stdin: line 1: prompt: missing")


@pytest.mark.slow
def test_a_line_beyond_the_limit_is_never_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = b'{"prompt":"' + b"x" * (40 << 20) + b'"}\n'
    path = tmp_path / "in.jsonl"
    path.write_bytes(long + b'{"prompt":"a"}\n')
    del long
    tracemalloc.start()
    reader = BatchReader(path)
    count, (bad, good) = reader.check(), reader
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (count, content_of(good)) == (2, "a")
    assert str(bad.error) == "in.jsonl: line 1: line: must be at most 16.8 MB"
    assert most < 2.5 * (16 << 20)


def test_an_empty_file(tmp_path: Path) -> None:
    assert rows_of(tmp_path, b"") == rows_of(tmp_path, b"\n\n") == []


def test_fields_that_are_not_known_are_named_in_the_order_of_the_line(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a", "name": "x"}, {"content": "b", "role": "user", "name": "y"}]
    request = request_of(tmp_path, {"z": 1, "messages": messages, "model_id": "m", "text": "t", "seed": 1})
    assert request.unused == ("messages[].name", "z", "model_id", "text")
    assert request.content == [Message(Role.USER, "a"), Message(Role.USER, "b")]
    assert request_of(tmp_path, {"id": 1, "prompt": "a", "stop": [], "seed": 1, "n": 1}).unused == ()


def test_where_the_prompt_stands(tmp_path: Path) -> None:
    for name in ("prompt", "text", "prefix"):
        assert request_of(tmp_path, {name: "a", "gold": "b"}).content == "a"
    assert request_of(tmp_path, {"text": "no", "prefix": "no", "prompt": "a"}).content == "a"
    hello = [{"role": "user", "content": "a"}]
    assert request_of(tmp_path, {"text": 7, "messages": hello}).content == [Message(Role.USER, "a")]
    assert fault_of(tmp_path, {"text": "a", "prefix": "b"}).startswith(
        "prefix: must not be given together with text"
    )
    assert fault_of(tmp_path, {"prompt": None, "text": "a"}).startswith("prompt: must be a string (got None)")
    assert fault_of(tmp_path, {"text": 7}).startswith("text: must be a string (got 7)")
    assert fault_of(tmp_path, {"gold": "b", "note": 1}).startswith(
        "prompt: missing (got the fields gold, note)"
    )


def test_the_field_that_is_named_holds_the_prompt(tmp_path: Path) -> None:
    line = {"prompt": 7, "messages": 7, "stop": "a", "q": "b"}
    assert request_of(tmp_path, {**line, "stop": "x"}, prompt_field="q").content == "b"
    given = request_of(tmp_path, line, prompt_field="stop")
    assert (given.content, given.stop, given.unused) == ("a", None, ("prompt", "messages", "q"))
    messages = {"messages": [{"role": "user", "content": "a"}], "prompt": "b"}
    assert request_of(tmp_path, messages, prompt_field="messages").content == [Message(Role.USER, "a")]
    assert fault_of(tmp_path, {"text": "a"}, prompt_field="prompt").startswith("prompt: missing")


def test_ids_are_kept_as_given(tmp_path: Path) -> None:
    ids = ["a", 7, -7, 1.5, "7", 2**63 - 1]
    data = "".join(json.dumps({"id": id, "prompt": "a"}) + "\n" for id in ids)
    found = [row.id for row in rows_of(tmp_path, data.encode())]
    assert found == ids
    assert [type(id) for id in found] == [type(id) for id in ids]


def test_settings_of_a_line(tmp_path: Path) -> None:
    sampling = {
        "max_tokens": 5,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 0,
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "seed": 2**64 - 1,
    }
    request = request_of(tmp_path, {"prompt": "a", **sampling, "stop": "x"})
    assert (dict(request.sampling), request.stop, request.unused) == (sampling, ("x",), ())
    nothing = request_of(tmp_path, {"prompt": "a", **dict.fromkeys([*sampling, "stop", "n"])})
    assert (dict(nothing.sampling), nothing.stop, nothing.unused) == ({}, None, ())
    assert dict(request_of(tmp_path, {"prompt": "a", "repeat_penalty": 1.5}).sampling) == {
        "repetition_penalty": 1.5
    }
    for name in ("max_completion_tokens", "max_new_tokens", "num_predict"):
        assert dict(request_of(tmp_path, {"prompt": "a", name: 3}).sampling) == {"max_tokens": 3}
    assert request_of(tmp_path, {"prompt": "a", "stop": ["x", "y"]}).stop == ("x", "y")


BAD_SETTINGS: list[tuple[str, Any]] = [
    ("max_tokens", 0),
    ("max_tokens", "5"),
    ("max_tokens", True),
    ("max_completion_tokens", 0),
    ("temperature", -1),
    ("temperature", "9" * 10_000),
    ("temperature", 10**400),
    ("top_p", 0),
    ("top_k", 1.5),
    ("min_p", 2),
    ("repetition_penalty", 0),
    ("seed", -1),
    ("stop", 5),
    ("stop", ""),
    ("stop", [5]),
    ("stop", ["x"] * 17),
    ("stop", {"x": 1}),
    ("stop", "\ud800"),
    ("n", 0),
    ("n", 129),
    ("n", True),
    ("logprobs", "yes"),
    ("logprobs", 21),
    ("top_logprobs", 3),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"5": 101}),
    ("continue_final_message", 1),
    ("response_format", "json"),
    ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": True}}}),
    ("structured_outputs", {}),
    ("structured_outputs", {"json": {}, "regex": "a"}),
    ("structured_outputs", {"regex": "("}),
    ("structured_outputs", {"choice": []}),
    ("structured_outputs", {"grammar": "nothing"}),
    ("structured_outputs", {"ebnf": "x"}),
    ("guided_json", {}),
    ("min_tokens", 5),
    ("ignore_eos", True),
    ("stop_token_ids", [2]),
    ("stop_sequences", ["x"]),
    ("bad_words", ["x"]),
    ("typical_p", 0.9),
    ("presence_penalty", 2.5),
    ("frequency_penalty", "much"),
    ("dry_allowed_length", 0),
    ("dry_sequence_breakers", "x"),
    ("dry_sequence_breakers", [""]),
    ("xtc_threshold", 2),
    ("top_n_sigma", -1),
    ("num_predict", -1),
    ("do_sample", False),
    ("reasoning_effort", "lots"),
    ("system", 5),
    ("Temperature", 0),
    ("max_token", 0),
    ("repitition_penalty", 2),
]


@pytest.mark.parametrize(("field", "value"), BAD_SETTINGS, ids=[str(i) for i in range(len(BAD_SETTINGS))])
def test_bad_settings_are_named(field: str, value: Any, tmp_path: Path) -> None:
    fault = fault_of(tmp_path, {"prompt": "a", field: value})
    assert fault.startswith((f"{field}: ", f"{field}."))
    assert len(fault) < 200


def test_bodies_of_other_servers_set_every_stage(tmp_path: Path) -> None:
    """The names of OpenAI and llama.cpp."""
    asked = {"presence_penalty": 0.5, "frequency_penalty": -1, "dry_multiplier": 0.8, "dry_base": 2.0}
    asked |= {"dry_allowed_length": 3, "dry_penalty_last_n": -1, "xtc_probability": 0.5, "xtc_threshold": 0.2}
    given = {**asked, "top_n_sigma": 1.5, "dry_sequence_breakers": ["\n"]}
    request = request_of(tmp_path, {"prompt": "a", **given})
    assert (dict(request.sampling), request.unused) == (given, ())


def test_settings_that_ask_for_nothing_are_not_errors(tmp_path: Path) -> None:
    asked = {"min_tokens": 0, "ignore_eos": False, "stop_token_ids": [], "bad_words": [], "typical_p": 1.0}
    asked |= {"truncate_prompt_tokens": None, "do_sample": True, "system": None}
    request = request_of(tmp_path, {"prompt": "a", **asked})
    assert (dict(request.sampling), request.content, request.unused) == ({}, "a", ())


def test_a_later_line_of_an_openai_file_is_checked_too(tmp_path: Path) -> None:
    bodies = [{"messages": [{"role": "user", "content": "a"}], **more} for more in ({}, {"min_tokens": 3})]
    url = "/v1/chat/completions"
    lines = [{"custom_id": str(i), "url": url, "body": body} for i, body in enumerate(bodies)]
    first, second = rows_of(tmp_path, "\n".join(map(json.dumps, lines)).encode(), form="openai")
    assert first.error is None
    assert "line 2: min_tokens: not supported: must be 0 or absent (got 3)" in str(second.error)


def test_the_system_message_of_a_row(tmp_path: Path) -> None:
    system, user = Message(Role.SYSTEM, "s"), Message(Role.USER, "a")
    for prompt in ({"prompt": "a"}, {"text": "a"}, {"messages": [{"role": "user", "content": "a"}]}):
        assert request_of(tmp_path, {**prompt, "system": "s"}).content == [system, user]
    assert request_of(tmp_path, {"turns": ["a", "b"], "system": "s"}).content == [system, user]
    messages = [{"role": "system", "content": "t"}, {"role": "user", "content": "a"}]
    fault = fault_of(tmp_path, {"messages": messages, "system": "s"})
    assert fault == "system: must not be given together with a system message (got 's')"
    body = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "a", "system": "s"}}
    assert fault_of(tmp_path, body).startswith("system: not possible with /v1/completions")


def test_two_names_for_one_setting(tmp_path: Path) -> None:
    fault = fault_of(tmp_path, {"prompt": "a", "max_tokens": 3, "max_new_tokens": 4})
    assert fault.startswith("max_new_tokens: must not be given together with max_tokens")


def test_another_model_is_not_to_be_had(tmp_path: Path) -> None:
    fault = fault_of(tmp_path, {"prompt": "a", "model": "../../etc/passwd"})
    assert fault.startswith(
        "model: must not be given (got '../../etc/passwd'); the model of -m answers all lines"
    )
    assert request_of(tmp_path, {"prompt": "a", "model": None}).unused == ("model",)


OPENAI = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions"}


def test_openai_lines(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "n": 1}
    (row,) = rows_of(tmp_path, json.dumps({**OPENAI, "more": 1, "body": body}).encode())
    assert row.id == "r1"
    assert row.request == LineRequest(
        [Message(Role.USER, "a")], {"max_tokens": 4}, None, ("more", "model"), samples=1
    )
    assert fault_of(tmp_path, {**OPENAI, "body": {**body, "tools": [{}]}}).startswith(
        "tools: not supported: must be [] or absent (got [{}])"
    )
    assert fault_of(tmp_path, {**OPENAI, "body": {}}).startswith("prompt: missing")
    assert fault_of(tmp_path, {**OPENAI, "url": "/v1/embeddings", "body": body}).startswith(
        "url: must be '/v1/chat/completions' or '/v1/completions' (got '/v1/embed"
    )
    assert fault_of(tmp_path, {**OPENAI, "method": "GET", "body": body}).startswith(
        "method: must be 'POST' (got 'GET')"
    )
    page = {"url": "http://localhost/", "body": "text of a page", "prompt": "a"}
    assert request_of(tmp_path, page).unused == ("url", "body")


def test_what_a_row_asks_for_is_in_its_hash(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    thought = [talk[0], {**talk[1], "reasoning_content": "c"}]
    common = {"messages": talk}
    lines = [common, {"messages": thought}, {**common, "fail_below": 0.5}, {**common, "fail_below": 0.6}]
    lines += [{**common, "truncate_prompt_tokens": 5}, {**common, "truncate_prompt_tokens": -1}]
    rows = rows_of(tmp_path, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert len({row.request_hash for row in rows}) == len(lines)
