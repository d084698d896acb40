"""Formats of rows, templates of prompts, and forms of results."""

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door
from model_folders import chat_folder

from ropechat.batch.forms import Shape, form_of, text_form
from ropechat.batch.line import COMPLETIONS, parse_request
from ropechat.batch.reader import AllAlikeError, BatchReader, BatchRow, RowOptions
from ropechat.batch.row_template import RowTemplate
from ropechat.batch.source import Source, format_of
from ropechat.conversation import Message, Role
from ropechat.errors import BatchInputError, RequestError

NASTY = [
    "",
    "a",
    'say "hi"',
    "two\nlines",
    "crlf\r\nline",
    "lone\rreturn",
    "a,b;c\td",
    "é\u2028😀",
    " lead",
    "=1+1",
]


def read(path: Path, **options: Any) -> list[BatchRow]:
    reader = BatchReader(path, form=options.pop("form", None), options=RowOptions(**options))
    total = reader.check()
    rows = list(reader)
    assert total == len(rows)
    return rows


def contents(rows: list[BatchRow]) -> list[Any]:
    return [None if row.request is None else row.request.content for row in rows]


def faults(rows: list[BatchRow]) -> list[str | None]:
    return [None if row.error is None else str(row.error).partition(": line ")[2] for row in rows]


def test_formats_go_by_the_suffix() -> None:
    names = ("a.jsonl", "a.ndjson", "a", "a.json", "a.csv.gz", "a.TSV", "a.txt", "a.parquet", "a.gz")
    forms = ["jsonl", "jsonl", "jsonl", "json", "csv", "tsv", "lines", "parquet", "jsonl"]
    assert [format_of(Path(name)) for name in names] == forms
    assert form_of(Path("a.txt")) == "jsonl"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_a_table_survives_reading_and_writing(end: str, bom: str, tmp_path: Path) -> None:
    """10,000 rows with quotes, newlines, BOM and CRLF, in and out."""
    draw = random.Random(3)
    rows = [[f"r{i}", "".join(draw.choices(NASTY, k=2)), draw.choice(NASTY)] for i in range(10_000)]
    text = io.StringIO()
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(
        [["id", "prompt", "more, or less"], *rows]
    )
    path = tmp_path / "in.csv"
    path.write_bytes((bom + text.getvalue()).encode())
    found = read(path, keep="all")
    assert [row.id for row in found] == [row[0] for row in rows]
    for row, (_, prompt, more) in zip(found, rows, strict=True):
        assert row.kept == {"prompt": prompt, "more, or less": more}
        assert (row.request is None) == (prompt == "")
    form = text_form("csv", Shape(["prompt", "more, or less"]), {})
    made = form.head + "".join(
        form.lines([{"id": row.id, "ok": True, "sample": 0, "input": row.kept, "text": "x"}]) for row in found
    )
    again = list(csv.DictReader(io.StringIO(made, newline="")))
    assert [[row["id"], row["prompt"], row["more, or less"]] for row in again] == rows


def test_rows_of_a_table_fail_alone(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'id,prompt\n1,a\n2\n3,b,c\n"4,"x\n\n5,"d\nd"\n6,\xff\n,e\n1,f\n7,"never closed')
    rows = read(path)
    assert contents(rows) == ["a", None, None, None, "d\nd", None, "e", None, None]
    assert faults(rows) == [
        None,
        "3: cells: must be 2, as in the first line (got 1)",
        "4: cells: must be 2, as in the first line (got 3)",
        "5: CSV: ',' expected after '\"'",
        None,
        "9: row: must be UTF-8",
        None,
        "11: id: must be unique (got '1' as on line 2)",
        "12: CSV: unexpected end of data",
    ]
    assert rows[6].id == "line-10"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a,a\n", "column names must be unique ('a' occurs twice)"),
        (b"a,,b\n", "column 2 has no name"),
        (b"\xff,a\n", "must be UTF-8"),
        (b"\xff\xfea\0,\0,\0b\0", "column 2 has no name"),
        (b"PAR1", "a Parquet file; add --input-format parquet"),
    ],
)
def test_a_table_needs_names(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(data)
    with pytest.raises(BatchInputError) as caught:
        Source(tmp_path / "in.csv").check()
    assert words in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_table_of_another_program(encoding: str, delimiter: str, tmp_path: Path) -> None:
    lines = [["id", 'a "quoted; name", x', "prompt"], ["1", "x", "Größe; 5 Äpfel, groß"]]
    lines.append(["2", "y", 'café\r\n"Crème"'])
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(lines)
    (tmp_path / "in.csv").write_bytes(text.getvalue().encode(encoding))
    source = Source(tmp_path / "in.csv")
    assert source.check() == 2
    assert [list(row.fields.values()) for row in source.rows()] == lines[1:]
    assert source.columns == lines[0]
    assert source.delimiter == delimiter
    told = "\n".join(source.notes)
    assert (f"separated by {delimiter!r}" in told) is (delimiter != ",")
    assert (f"read as {encoding}" in told) is (not encoding.startswith("utf-8"))
    named = Source(tmp_path / "in.csv", None, delimiter, encoding)
    assert [row.fields for row in named.rows()] == [row.fields for row in source.rows()]
    assert named.notes == []


def test_json_lines_of_a_program_that_writes_utf_16(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes('{"prompt": "é\u2028"}\r\n\r\n{"prompt": "b"}\r\n'.encode("utf-16"))
    source = Source(path)
    assert source.check() == 2
    rows = [(row.number, row.fields["prompt"]) for row in source.rows()]
    assert rows == [(1, "é\u2028"), (3, "b")]
    path.write_bytes('{"prompt": "é"}\n'.encode("cp1252"))  # JSON is never that
    assert "UTF-8" in str([row.fault for row in Source(path).rows()])


def test_a_stream_of_another_encoding_is_named() -> None:
    data = "id;prompt\n1;Größe\n".encode("utf-16")
    with pytest.raises(BatchInputError, match="UTF-16; save it as UTF-8, or add --encoding utf-16"):
        Source(io.BytesIO(data), "csv").check()
    [row] = Source(io.BytesIO(data), "csv", None, "utf-16").rows()
    assert row.fields["prompt"] == "Größe"


def test_results_for_excel(door: Door, tmp_path: Path) -> None:
    rows = tmp_path / "in.csv"
    rows.write_bytes("id;text;größe\n1;ab;ä\n2;cd;ö\n".encode("cp1252"))
    given = ["batch", rows, "-m", chat_folder(tmp_path / "chat"), "--keep", "all", "--seed", 1]
    out = tmp_path / "o.csv"
    code, _, err = door(*given, "-o", out, "--excel")
    assert code == 0, err
    assert "note: in.csv: read as cp1252; --encoding sets another" in err
    assert "note: in.csv: cells are separated by ';'; --delimiter sets another" in err
    text = out.read_bytes().decode("utf-8-sig")
    assert out.read_bytes().startswith(b"\xef\xbb\xbfid;")
    lines = csv.DictReader(text.splitlines(), delimiter=";")
    assert [line["größe"] for line in lines] == ["ä", "ö"]
    for number in (1, 2):
        door(*given, "-o", out, "--excel", "--shard", f"{number}/2")
    parts = [tmp_path / f"o.{number}of2.jsonl" for number in (1, 2)]
    code, _, err = door("merge", tmp_path / "all.csv", *parts, "--order-of", rows)
    assert code == 0, err
    assert (tmp_path / "all.csv").read_bytes() == out.read_bytes()
    for wrong, words in (
        (["--excel", "-o", "-"], "--excel: results must be csv (got jsonl)"),
        (["--delimiter", "ab", "-o", "-"], "must be one character"),
        (["--encoding", "rot13", "-o", "-"], "must be a text encoding"),
    ):
        code, _, err = door(*given, *wrong)
        assert (code, words in err) == (2, True), err


def test_texts_that_end_an_answer(door: Door, tmp_path: Path) -> None:
    rows = tmp_path / "in.jsonl"
    rows.write_text('{"prompt": "ab"}\n{"prompt": "ab", "stop": "g"}\n')
    given = ["batch", rows, "-m", chat_folder(tmp_path / "chat"), "--raw", "--temperature", 0]
    _, out, _ = door(*given, "-o", "-", "--stop", "f", "--stop", "e\\n")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["cde", "cdef"]
    journal = tmp_path / "o.jsonl"
    door(*given, "-o", journal, "--stop", "f", "--resume")
    code, _, err = door(*given, "-o", journal, "--resume")
    assert (code, 'stop: ["f"] there, null here' in err) == (2, True)
    code, _, err = door(*given, "-o", "-", "--stop", "")
    assert (code, "stop: must be strings of 1 to" in err) == (2, True)


def test_a_prompt_that_does_not_fit_is_cut_if_asked(door: Door, tmp_path: Path) -> None:
    rows = tmp_path / "in.jsonl"
    texts = ["ab", "abcdefgh" * 10, "x" * 70]
    rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    given = ["batch", rows, "-m", chat_folder(tmp_path / "chat"), "--raw", "--temperature", 0]
    given += ["--max-tokens", 4, "-o", "-"]
    code, out, _ = door(*given)
    assert (code, [json.loads(line)["ok"] for line in out.splitlines()]) == (3, [True, False, False])
    code, out, _ = door(*given, "--truncate-prompt", "end")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [record.get("truncated") for record in found] == [None, 20, 10]
    assert [record["usage"]["prompt_tokens"] for record in found] == [2, 60, 60]
    assert [record["text"] for record in found] == ["cdef", "efgh", "yz{|"]
    start = [json.loads(line) for line in door(*given, "--truncate-prompt", "start")[1].splitlines()]
    assert [record["text"] for record in start] == ["cdef", "ijkl", "yz{|"]


def test_cells_are_data_not_settings(tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("prompt\ttemperature\tseed\tmax_token\nHow warm?\t20\t5\tx\n")
    (row,) = read(tmp_path / "in.tsv")
    assert row.request is not None
    assert (row.request.content, dict(row.request.sampling)) == ("How warm?", {})
    assert row.request.unused == ("temperature", "seed", "max_token")


def test_lines_arrays_and_archives(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\n  two \nthr\xffee\n{4}")
    rows = read(tmp_path / "a.txt")
    assert (contents(rows), [row.line for row in rows]) == (["one", "  two ", None, "{4}"], [1, 3, 4, 5])
    (tmp_path / "a.json").write_text('[{"prompt": "a"}, 5, {"prompt": "b", "x": 1}]')
    rows = read(tmp_path / "a.json", keep=["x"])
    assert contents(rows) == ["a", None, "b"]
    assert rows[2].kept == {"x": 1}
    for bad in ('{"prompt": "a"}\n', "[", '[{"a": NaN}]', '[{"a": 1, "a": 2}]'):
        (tmp_path / "a.json").write_text(bad)
        with pytest.raises(BatchInputError, match=r"a\.json: .*--input-format jsonl"):
            Source(tmp_path / "a.json").check()
    data = gzip.compress(b'{"prompt": "a"}\n' * 3)
    (tmp_path / "a.jsonl.gz").write_bytes(data)
    assert contents(read(tmp_path / "a.jsonl.gz")) == ["a"] * 3
    for broken in (data[:-9], data[:12] + b"\xff" * 9 + data[21:], b"no archive"):
        (tmp_path / "a.jsonl.gz").write_bytes(broken)
        with pytest.raises(BatchInputError, match="damaged gzip file"):
            list(Source(tmp_path / "a.jsonl.gz").rows())
    lines = b"".join(b'{"prompt": "%d"}\n' % number for number in range(30_000))
    for form, text in (("jsonl", lines), ("csv", b"prompt\n" + lines), ("txt", lines)):
        file = tmp_path / f"cut.{form}.gz"
        file.write_bytes(gzip.compress(text)[:-9])
        with pytest.raises(BatchInputError, match=rf"cut\.{form}\.gz: damaged gzip file"):
            Source(file).check()


def test_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"id": f"r{i}", "prompt": f"p{i}", "at": i} for i in range(1000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    found = read(tmp_path / "in.parquet", keep=["at"])
    assert contents(found) == [row["prompt"] for row in rows]
    assert found[7].kept == {"at": 7}


def test_parquet_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    with pytest.raises(BatchInputError, match=r"pip install 'ropechat\[parquet\]'"):
        Source(tmp_path / "in.parquet").check()


def test_limit_and_keep(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"prompt":"a","x":"\\ud800"}\n{"prompt":"b","x":1e999}\n{"prompt":"c","y":2}\n{"prompt":"d"}\n'
    )
    rows = read(path, keep=["x"], limit=3)
    assert contents(rows) == [None, None, "c"]
    assert all("--keep: fields must have finite numbers" in str(row.error) for row in rows[:2])
    assert rows[2].kept == {}
    assert rows[2].request is not None
    assert rows[2].request.unused == ("y",)


def test_another_field_may_hold_the_id(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("question_id,prompt,lang\n81,a,en\n82,b,de\n81,c,en\n")
    rows = read(path, id_field="question_id", keep=["lang"])
    assert [row.id for row in rows] == ["81", "82", "81"]
    assert "id: must be unique" in str(rows[2].error)
    assert rows[0].request is not None
    assert rows[0].request.unused == ()
    (tmp_path / "in.jsonl").write_text('{"question_id":81,"turns":["a","b"]}\n{"turns":["a"]}\n')
    first, second = read(tmp_path / "in.jsonl", id_field="question_id")
    assert first.request is not None
    assert (first.id, first.request.content, first.request.turns) == (81, "a", ("b",))
    assert "question_id: missing, but given by --id-field" in str(second.error)


def test_a_request_has_a_hash_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"prompt":"a","seed":1}\n{"seed":1,"prompt":"a","note":5}\n{"prompt":"a","seed":2}\n{\n{\n'
    )
    a, same, other, bad, worse = read(path)
    assert a.request_hash == same.request_hash != other.request_hash
    assert bad.request_hash == worse.request_hash != a.request_hash


# ---- Templates of prompts


def test_a_template_over_fields(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"id":"q","word":"RoPE","max_tokens":"many"}\n{"id":"r","word":"{{ index }}"}\n{"id":"s"}\n'
    )
    template = RowTemplate.of_text(
        "{{ index }}: {{ word }}{% if row['items'] %} {{ row | tojson }}{% endif %}"
    )
    rows = read(path, template=RowTemplate.of_text("{{ index }}: {{ word }}"))
    assert contents(rows) == ["0: RoPE", "1: {{ index }}", None]
    assert faults(rows)[2] == "3: --prompt: 'word' is undefined (got the field id)"
    failing = read(path, template=RowTemplate.of_text("{{ 1 // 0 }}"))
    assert faults(failing)[0] == "1: --prompt: integer division or modulo by zero"
    first = template.content({"id": "q", "word": "RoPE", "items": [1, "é"]}, 0)
    assert first == '0: RoPE {"id": "q", "word": "RoPE", "items": [1, "é"]}'


def test_templates_in_files(tmp_path: Path) -> None:
    (tmp_path / "ask.j2").write_text("Translate:\n{{ text }}\n")
    assert RowTemplate.of_file(tmp_path / "ask.j2").content({"text": "x"}, 0) == "Translate:\nx"
    (tmp_path / "chat.json").write_text(
        '[{"role": "system", "content": "Speak {{ lang }}."}, {"role": "user", "content": "{{ text }}"}]'
    )
    made = RowTemplate.of_messages(tmp_path / "chat.json").content({"lang": "German", "text": "x"}, 0)
    assert made == [Message(Role.SYSTEM, "Speak German."), Message(Role.USER, "x")]
    with pytest.raises(RequestError, match=r"ask\.j2: JSON: "):
        RowTemplate.of_messages(tmp_path / "ask.j2")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ a ", "--prompt: "),
        ("x\n{% for %}", "--prompt line 2: "),
        ("x" * 300_000, "--prompt: must be at most 262144 bytes"),
    ],
)
def test_a_broken_template_is_said_at_once(source: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        RowTemplate.of_text(source).check()
    assert str(caught.value).startswith(words)


def test_a_template_cannot_run_code(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"id":"q"}\n')
    for source in ("{{ id.__class__.__mro__ }}", "{{ ''.__class__ }}", "{{ missing.x }}", "{{ '' }}"):
        (row,) = read(path, template=RowTemplate.of_text(source))
        assert row.request is None
        assert "--prompt: " in str(row.error)


# ---- What OpenAI's lines ask for


def ask(**body: Any) -> Any:
    return parse_request({"custom_id": "a", "url": body.pop("url", "/v1/chat/completions"), "body": body})


def test_parts_roles_and_bias() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": parts},
        {"role": "tool", "content": "t", "tool_call_id": "1"},
    ]
    request = ask(messages=messages, logit_bias={"5": -100, "7": 1.5}, n=3, logprobs=True, top_logprobs=2)
    assert request.content == [Message(Role.SYSTEM, "d"), Message(Role.USER, "ab"), Message(Role.TOOL, "t")]
    assert request.sampling == {"logit_bias": [[5, -100], [7, 1.5]]}
    assert (request.samples, request.logprobs) == (3, 2)
    for content in ([{"type": "image_url", "image_url": {}}], [], [5], [{"type": "text"}]):
        with pytest.raises(ValueError, match=r"messages\[0\]\.content"):
            ask(messages=[{"role": "user", "content": content}])
    with pytest.raises(ValueError, match=r"tool_calls: not supported"):
        ask(messages=[{"role": "assistant", "content": None, "tool_calls": [{}]}])


def test_completions() -> None:
    for prompt, content in (("a", "a"), ([1, 2], [1, 2]), (["a"], "a"), ([[1, 2]], [1, 2])):
        request = ask(
            url=COMPLETIONS, prompt=prompt, max_tokens=3, logprobs=2, echo=False, messages="kept out"
        )
        assert (request.content, request.logprobs, request.endpoint) == (content, 2, COMPLETIONS)
    for prompt in (["a", "b"], [], "", [[]], [-1], ["a", 1]):
        with pytest.raises(ValueError, match="prompt: "):
            ask(url=COMPLETIONS, prompt=prompt)
    assert ask(url=COMPLETIONS, prompt="a", echo=True).echo
    assert not ask(url=COMPLETIONS, prompt="a", echo=None).echo
    scored = ask(url=COMPLETIONS, prompt="a", echo=True, logprobs=2, max_tokens=0)
    assert (scored.logprobs, scored.answers) == (2, False)
    with pytest.raises(ValueError, match="echo: must be true or false"):
        ask(url=COMPLETIONS, prompt="a", echo="yes")
    with pytest.raises(ValueError, match="echo: not supported"):
        ask(messages=[{"role": "user", "content": "a"}], echo=True)


def test_only_openai_lines_are_taken_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt":"a"}\n')
    (row,) = read(path, form="openai")
    assert "custom_id: missing; lines of OpenAI's batch format have" in str(row.error)


# ---- The first rows


def test_the_first_rows_that_fail_alike_stop_a_run(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    bad = [json.dumps({"id": i, "question": f"q{i}"}) + "\n" for i in range(30)]
    path.write_text("".join(bad))
    with pytest.raises(
        AllAlikeError, match=r"first 20 rows all fail with the same error: in\.jsonl: line 1: prompt: missing"
    ):
        BatchReader(path).check_first_rows()
    for lines in (bad[:19], [*bad[:19], '{"prompt":"a"}\n', *bad[20:]], [*bad[:9], "{\n", *bad[10:]]):
        path.write_text("".join(lines))
        BatchReader(path).check_first_rows()
