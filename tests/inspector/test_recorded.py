"""Records of other programs: real samples of each format, and files that strangers wrote."""

import json
import math
import random
import tracemalloc
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ropechat.errors import RequestError
from ropechat.inspector import open_trace
from ropechat.inspector.draws import RecordedDraws
from ropechat.inspector.others.read import read_records
from ropechat.inspector.records import json_lines
from ropechat.inspector.scored_text import ScoredText

SAMPLES = Path(__file__).with_name("recorded")
CANDIDATE = {"token": "a", "logprob": -1.0, "bytes": [97]}


def read(data: bytes | str) -> list[tuple[str, RecordedDraws]]:
    data = data.encode() if isinstance(data, str) else data
    return list(read_records(data.splitlines(keepends=True), "f", lambda text: None))


def sample(name: str) -> list[tuple[str, RecordedDraws]]:
    return read((SAMPLES / name).read_bytes())


def told(name: str) -> list[str]:
    notes: list[str] = []
    with (SAMPLES / name).open("rb") as lines:
        list(read_records(lines, name, notes.append))
    return notes


# (file, text, program, logprob and rank of each token, whether the format has ids)
REAL: list[tuple[str, str, str, list[tuple[float | None, int | None]], bool]] = [
    ("openai_chat.json", "Hello", "OpenAI", [(-0.31725305, 1)], False),
    ("openai_completions.json", "\n\n", "OpenAI", [(-0.028534053, 1), (-0.0013638621, 1)], False),
    ("groq_chunks.txt", "<think>", "OpenAI", [(0.0, 1)], False),
    (
        "llama_cpp_python_chat.json",
        "L'Étoile,",
        "OpenAI",
        [
            *((-1.883678674697876, 1), (-0.4182383716106415, 1), (-1.000085473060608, 1)),
            *((-0.1190938949584961, 1), (-0.2812268137931824, 1), (-1.4556872844696045, 1)),
        ],
        False,
    ),
    (
        "llama_cpp_chunks.txt",
        "овые щё",
        "llama.cpp",
        [(-5.9367986978031695e-05, 1), (-1.5497220147153712e-06, 1), (-0.014102671295404434, 1)],
        True,
    ),
    (
        "llama_cpp_chat_chunks.txt",
        "овые щё",
        "OpenAI",
        [(-1.78815535036847e-05, 1), (-6.9141628955549095e-06, 1), (-0.39498597383499146, 1)],
        True,
    ),
    (
        "llama_cpp_old_chunks.txt",
        "овые\ufffdё",
        "llama.cpp",
        [
            (math.log(0.9999388456344604), 1),
            (math.log(0.9999974966049194), 1),
            (math.log(0.9868274927139282), 1),
        ],
        False,
    ),
    ("llama_cpp.json", " Paris", "llama.cpp", [(-0.7168791890144348, 1)], True),
    (  # " step" and " boiling" come in addition to the best five: their ranks are not known
        "vllm_echo.json",
        "The step of boiling",
        "OpenAI",
        [(None, None), (-8.818763732910156, None), (-1.552642822265625, 1), (-13.55989933013916, None)],
        False,
    ),
    ("vllm_prompt.json", "The", "vLLM", [(None, None), (-3.679518699645996, 4)], True),
    ("ollama.json", "Paris", "Ollama", [(-0.0820460096001625, 1)], False),
    (
        "lm_eval_rolling.jsonl",
        "Once upon a time there was a little girl.",
        "lm-evaluation-harness",
        [(-36.920492770148954, None)],
        False,
    ),
]


@pytest.mark.parametrize(("name", "text", "program", "scores", "has_ids"), REAL, ids=[one[0] for one in REAL])
def test_a_real_sample(
    name: str, text: str, program: str, scores: list[tuple[float | None, int | None]], has_ids: bool
) -> None:
    ((_, found),) = sample(name)
    assert (found.meta["text"], found.meta["engine"]) == (text, program)
    assert [(token.logprob, token.rank) for token in found] == scores
    assert all((token.id >= 0) == has_ids for token in found)
    assert {token.entropy for token in found} == {None}
    assert "".join(text.encode()[slice(*token.span)].decode() for token in found) == text
    for token in found:
        best = [logprob for _, logprob in token.row.top] if token.row is not None else []
        assert best == sorted(best, reverse=True)


def test_choices_of_the_harness() -> None:
    found = sample("lm_eval_choices.jsonl")
    assert [label for label, _ in found[:4]] == [
        *("doc 0, choice 0", "doc 0, choice 1", "doc 0, choice 2"),
        "doc 1, choice 0",
    ]
    first = found[0][1]
    assert (first.meta["text"], first.meta["given"], first.tokens[0].rank) == (
        " Paris",
        "The capital of France is",
        1,
    )
    assert [draws.tokens[0].logprob for _, draws in found[:3]] == [
        *(-0.24948270081396018, -7.6924672818076125, -7.126029560555171),
    ]
    older = {"doc_id": 0, "arguments": [["Q", " A"], ["Q", " B"]], "resps": [[[-2.5, False]], [[-0.3, True]]]}
    assert [(draws.tokens[0].logprob, draws.tokens[0].rank) for _, draws in read(json.dumps(older))] == [
        *((-2.5, None), (-0.3, 1)),
    ]


def test_llama_cpp_says_more_bytes_than_the_token_has() -> None:
    """A token whose character was incomplete is reported with the next one, under the next one's id."""
    _, second, _ = sample("llama_cpp_chunks.txt")[0][1].tokens
    assert (second.id, second.bytes) == (231, " щ".encode())
    draws = sample("llama_cpp_chunks.txt")[0][1]
    assert (draws.bytes_of(231), draws.bytes_of(239)) == (b"\x89", b"\x91")


def test_what_a_reader_must_know() -> None:
    (note,) = told("llama_cpp_old_chunks.txt")
    assert "probabilities after the sampler, not the model's" in note
    assert sample("llama_cpp_old_chunks.txt")[0][1].meta["stage"] == "sampled"
    assert told("llama_cpp_chunks.txt") == told("vllm_echo.json") == []


def test_a_record_is_written_and_read_again() -> None:
    ((_, found),) = sample("llama_cpp_python_chat.json")
    lines = "".join(json_lines(ScoredText(found, "", found.bytes_of)))
    ((_, again),) = read(lines)
    assert "".join(json_lines(ScoredText(again, "", again.bytes_of))) == lines
    assert json.loads(lines.splitlines()[0])["stage"] == "raw"
    assert json.loads(lines.splitlines()[1])["id"] is None


def chunk(index: int, token: str, *, id: str = "c", finish: str | None = None, **more: Any) -> dict[str, Any]:
    content = [{"token": token, "logprob": -1.0, "bytes": None, "top_logprobs": []}]
    choice = {
        "index": index,
        "delta": {"content": token},
        "logprobs": {"content": content},
        "finish_reason": finish,
    }
    return {"id": id, "object": "chat.completion.chunk", "choices": [choice | more], "model": "m"}


def lines_of(*records: Any) -> str:
    return "".join(json.dumps(one) + "\n" for one in records)


def test_chunks_are_joined_by_answer() -> None:
    found = read(
        lines_of(
            *(chunk(0, "a"), chunk(1, "x"), chunk(0, "b", finish="stop"), chunk(1, "y", finish="stop")),
            {"id": "c", "object": "chat.completion.chunk", "choices": []},  # the usage
            *(chunk(0, "c"), chunk(0, "d", id="other")),
        )
    )
    assert [draws.meta["text"] for _, draws in found] == ["ab", "xy", "c", "d"]
    assert [label for label, _ in found] == ["line 1", "line 2, choice 1", "line 6", "line 7"]
    text = {"id": "t", "object": "text_completion", "choices": [{"index": 0, "finish_reason": None}]}
    text["choices"][0]["logprobs"] = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": None}
    assert [draws.meta["text"] for _, draws in read(lines_of(text, text))] == ["aa"]


def test_streams_without_ids_end_where_they_say() -> None:
    part = {"model": "m", "response": "a", "done": False, "logprobs": [CANDIDATE]}
    end = {"model": "m", "response": "", "done": True}
    assert [draws.meta["text"] for _, draws in read(lines_of(part, part, end, part, end))] == ["aa", "a"]
    part = {"content": "a", "stop": False, "completion_probabilities": [CANDIDATE]}
    end = {"content": "", "stop": True}
    assert [draws.meta["text"] for _, draws in read(lines_of(part, part, end, part, end))] == ["aa", "a"]


def test_other_shapes_of_a_file() -> None:
    whole = chunk(0, "é")
    whole["choices"][0] |= {"message": {}, "finish_reason": "stop"}
    in_batch = {"custom_id": "q1", "response": {"status_code": 200, "body": whole}}
    for text in (
        json.dumps(whole, indent=2),
        "\ufeff" + json.dumps(whole),
        json.dumps([whole]),
        json.dumps([whole], indent=1),
        json.dumps(in_batch),
        f"event: message\ndata: {json.dumps(whole)}\n\ndata: [DONE]\n",
    ):
        assert [draws.meta["text"] for _, draws in read(text)] == ["é"]
    response = {
        "object": "response",
        "model": "m",
        "output": [
            {"type": "reasoning"},
            {"type": "message", "content": [{"type": "output_text", "logprobs": [CANDIDATE]}]},
        ],
    }
    assert [draws.meta["text"] for _, draws in read(json.dumps(response))] == ["a"]
    ours = {"id": "q7", "index": 0, "sample": 0, "ok": True, "text": "a"}
    ours["logprobs"] = [{"id": 5, "token": "a", "bytes": [97], "logprob": -1.0, "top": [[5, -1.0, "a"]]}]
    ((label, draws),) = read(json.dumps(ours))
    assert (label, draws.tokens[0].id, draws.tokens[0].rank) == ("q7", 5, 1)


def test_a_prompt_of_vllm_before_an_answer() -> None:
    def place(*tokens: tuple[int, float, int]) -> dict[str, Any]:
        return {
            str(id): {"logprob": logprob, "rank": rank, "decoded_token": chr(id)}
            for id, logprob, rank in tokens
        }

    prompt = [
        None,
        place((98, -3.0, 7), (97, -0.1, 1)),
        place((97, -0.2, 1)),
        place((99, -2.0, 3), (97, -1.0, 1)),
    ]
    record = chunk(0, "!")
    record["choices"][0] |= {"message": {}, "prompt_logprobs": prompt}
    ((_, draws),) = read(json.dumps(record))
    assert [(token.bytes, token.rank, token.role) for token in draws] == [
        *((b"b", 7, "user"), (b"a", 1, "user"), (b"c", 3, "user"), (b"!", None, "text")),
    ]
    assert draws.meta["roles"] == ("text",)
    record["choices"][0]["logprobs"] = None
    ((_, draws),) = read(json.dumps(record))
    assert {token.role for token in draws} == {"text"}
    sorted_by_rank = [None, *[place((97, -0.1, 1), (98, -3.0, 7))] * 3]
    record["choices"][0]["prompt_logprobs"] = sorted_by_rank
    with pytest.raises(RequestError, match=r"prompt_logprobs: must be in vLLM's order.*return_token_ids"):
        read(json.dumps(record))
    record["prompt_token_ids"] = [1, 98, 97, 98]
    ((_, draws),) = read(json.dumps(record))
    assert [token.logprob for token in draws] == [None, -3.0, -0.1, -3.0]


def test_logprobs_that_are_not_known() -> None:
    content = [{"token": "a", "logprob": -9999.0}, {"token": "b", "logprob": -9999}, CANDIDATE]
    record = {"choices": [{"message": {}, "logprobs": {"content": content}}]}
    notes: list[str] = []
    ((_, draws),) = read_records([json.dumps(record).encode()], "f", notes.append)
    assert [token.logprob for token in draws] == [None, None, -1.0]
    assert notes == ["note: f: 1 token without a logprob: not scored, and not in the sums"]
    record["choices"][0]["logprobs"]["content"][2] = {"token": "a", "logprob": -math.inf}
    ((_, draws),) = read(json.dumps(record))
    assert draws.tokens[2].logprob == -math.inf


def test_answers_without_logprobs_are_left_out() -> None:
    notes: list[str] = []
    empty = {"id": "e", "choices": [{"message": {}, "logprobs": None}]}
    found = list(read_records(lines_of(empty, chunk(0, "a")).encode().splitlines(True), "f", notes.append))
    assert len(found) == 1
    assert notes == ["note: f: 1 answer without logprobs left out"]


def listed(**token: Any) -> str:
    return json.dumps({"choices": [{"message": {}, "logprobs": {"content": [CANDIDATE | token]}}]})


HOSTILE = [
    ("", "f: line 1: must be a trace of `inspect` or `run`, or a record with logprobs"),
    ("hello", "f: line 1: must be JSON (Expecting value at character 0); give a trace"),
    ('{"a":\n[1,]}', "f: line 2: must be JSON ("),
    ("[" * 100_000, "f: line 1: must be JSON ("),
    ("17", "f: line 1: must be a trace"),
    ("[]", "f: must be a trace"),
    ('{"a": 1, "b": 2}', "(got an object with a, b)"),
    (listed() + "\n{", "f: line 2: must be JSON ("),
    ('{"choices": [{"logprobs": NaN}]}', "f: line 1: must be JSON (NaN is not JSON)"),
    (
        '{"choices": [{"logprobs": null}]}',
        "f: line 1: logprobs: must be a list (got none); ask for them with logprobs: true",
    ),
    ('{"choices": [], "model": "m"}', "(got no answer)"),
    (
        listed(logprob=0.5),
        "choices[0].logprobs.content[0].logprob: must be the natural logarithm of a probability",
    ),
    (listed(logprob="x"), "content[0].logprob: must be a number (got 'x')"),
    (listed(logprob="nan"), "content[0].logprob: must be the natural logarithm"),
    (listed(logprob=[1]), "content[0].logprob: must be a number (got [1])"),
    (listed(logprob=True), "content[0].logprob: must be a number (got True)"),
    (listed(logprob=10**400), "content[0].logprob: must be a finite number"),
    (listed(bytes=[256]), "content[0].bytes[0]: must be"),
    (listed(bytes=[-1]), "content[0].bytes[0]: must be"),
    (listed(bytes="ab"), "content[0].bytes: must be a list (got 'ab')"),
    (listed(bytes=[1.5]), "content[0].bytes[0]: must be"),
    (listed(token=None, bytes=None), "content[0].token: must be a string (got None)"),
    (listed(id=2**60), "content[0].id: must be"),
    (listed(id="7"), "content[0].id: must be"),
    (listed(top_logprobs={"a": 1}), "content[0].top_logprobs: must be a list"),
    (listed(top_logprobs=[7]), "content[0].top_logprobs[0]: must be an object (got 7)"),
    (
        '{"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": []}}]}',
        "token_logprobs: must be a list of 1",
    ),
    (
        '{"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": [{}, {}]}}]}',
        "top_logprobs: must be a list of 1",
    ),
    (
        '{"choices": [{"prompt_logprobs": [{"x": {"logprob": -1}}]}]}',
        "must be an object with token ids as names",
    ),
    ('{"choices": [{"prompt_logprobs": [{}]}]}', "prompt_logprobs[0]: must be an object with a token"),
    (
        '{"choices": [{"prompt_logprobs": [null], "prompt_token_ids": [1, 2]}]}',
        "prompt_token_ids: must be a list of 1",
    ),
    (
        '{"choices": [{"prompt_logprobs": [{"5": {"logprob": -1}}], "prompt_token_ids": [4]}]}',
        "prompt_logprobs[0]: must be an object with the token itself, 4",
    ),
    (
        '{"completion_probabilities": [{"token": "a", "prob": 1.5, "top_probs": []}]}',
        "prob: must be a probability",
    ),
    (
        '{"completion_probabilities": [{"content": "a", "probs": [{"tok_str": "a", "prob": -1}]}]}',
        "a probability",
    ),
    (
        '{"arguments": {"a": {"b": "c"}}, "resps": []}',
        "arguments: must be as many requests as `resps` has, 0",
    ),
    ('{"arguments": [["Q", 7]], "resps": [[[-1, true]]]}', "arguments[0][1]: must be a string (got 7)"),
    (
        '{"arguments": [["Q", "A"]], "resps": [["a text"]]}',
        "a task of loglikelihoods, not of generated texts",
    ),
    (
        '{"ok": 1, "index": 0, "sample": 0, "logprobs": [{"token": "a", "top": [[1]]}]}',
        "top[0]: must be a list of an id",
    ),
]


@pytest.mark.parametrize(("data", "message"), HOSTILE, ids=[str(at) for at in range(len(HOSTILE))])
def test_a_bad_record_is_refused(data: str, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(data)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 400


def test_sizes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropechat.inspector.others.answer.MAX_TOKENS", 3)
    with pytest.raises(RequestError, match=r"f: line 4: must have at most 3 tokens in an answer"):
        read(lines_of(*[chunk(0, "a")] * 5))
    monkeypatch.setattr("ropechat.inspector.open_trace.MAX_LINE_BYTES", 50)
    monkeypatch.setattr("ropechat.inspector.others.read.MAX_LINE_BYTES", 50)
    for text in (listed(), json.dumps(json.loads(listed()), indent=1)):
        with pytest.raises(RequestError, match=r"f: .*must be at most 50 B"):
            read(text)


@pytest.mark.parametrize(
    "data",
    [
        "[" + "[]," * 300_000 + "0]",
        '{"a": [' + "{}," * 300_000 + "0]}",
        '{"choices": [\n' + "0.5," * 300_000 + "1]}",
    ],
)
def test_values_that_need_too_much_memory_are_refused_before_they_are_made(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropechat.inspector.open_trace.MAX_VALUE_BYTES", 8 << 20)
    lines = data.encode().splitlines(keepends=True)
    tracemalloc.start()
    with pytest.raises(RequestError, match=r"f: line 1: memory of its JSON values: must be at most 8.39 MB"):
        list(read_records(lines, "f"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * len(data), "of which the text itself is counted twice"


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir()))
def test_records_of_the_largest_size_are_not_refused_for_their_memory(name: str) -> None:
    data = max((SAMPLES / name).read_bytes().splitlines(), key=len)
    lines_of_it = open_trace.MAX_LINE_BYTES // len(data)
    values = sum(data.count(character) * size for character, size in open_trace._BYTES_OF)
    assert lines_of_it * values < open_trace.MAX_VALUE_BYTES


VALUES = (None, True, -1, 0.5, 2**70, -1e300, "x", "-1", "\ud800", [], [[]], {}, {"a": []})


def _changed(value: Any) -> Iterator[Any]:
    """Yield copies of a record, each with another value in one place."""

    def places(inner: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        yield path
        keys = inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        for key in keys:
            yield from places(inner[key], (*path, key))

    for path in places(value, ()):
        for other in VALUES:
            copy = made = deepcopy([value])
            for key in (0, *path)[:-1]:
                made = made[key]
            made[(0, *path)[-1]] = other
            yield copy[0]


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir()))
def test_a_changed_sample_is_read_or_refused(name: str) -> None:
    """And what is read can be written: every number is one, every text is Unicode."""
    text = (SAMPLES / name).read_text()
    lines = [text] if name.endswith(".json") else text.splitlines()
    record = json.loads(max(lines, key=len).removeprefix("data: "))
    changed, outcomes = list(_changed(record)), set()
    for one in random.Random(39).sample(changed, min(len(changed), 150)):
        try:
            found = read(lines_of(one))
        except RequestError:
            outcomes.add("refused")
            continue
        for _, draws in found:
            outcomes.add("read")
            "".join(json_lines(ScoredText(draws, "", draws.bytes_of))).encode()
    assert outcomes == {"read", "refused"}
