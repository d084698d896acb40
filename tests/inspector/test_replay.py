"""A recorded draw is rebuilt from its record; a changed record is found."""

import dataclasses
import io
import json

import pytest
from models import write_llama

from ropechat.engine.engine import Engine
from ropechat.errors import RequestError
from ropechat.inspector.draws import RecordedDraws, recorded_draws
from ropechat.inspector.open_trace import read_trace
from ropechat.inspector.records import json_lines
from ropechat.inspector.replay import drawn_id, replay
from ropechat.inspector.scored_text import ScoredText
from ropechat.inspector.stages import Producible, sampler_record, stage_line
from ropechat.sampling import Sampling
from ropechat.trace import Scores

SETTINGS = [
    Sampling(temperature=1.0, top_k=0, top_p=1.0, max_tokens=200, seed=11),
    Sampling(temperature=0.7, top_k=40, top_p=0.95, max_tokens=200, seed=2**64 - 1),
    Sampling(temperature=1.2, min_p=0.05, repetition_penalty=1.2, max_tokens=200, seed=13),
    Sampling(temperature=0.9, logit_bias=((3, 4.0), (5, -100.0)), max_tokens=200, seed=14),
    Sampling(temperature=0, max_tokens=20, seed=15),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.load(write_llama(tmp_path_factory.mktemp("tiny")), dtype="f32", threads=1)


def drawn(engine: Engine, sampling: Sampling, listed: int = 20) -> RecordedDraws:
    steps = list(engine.generate([1, 2, 3], sampling, top_k=listed))
    return recorded_draws(steps, sampling, engine.trace_facts(listed))


def reread(scores: Scores) -> RecordedDraws:
    lines = json_lines(ScoredText(scores, "", lambda id: b"%d" % id))
    return read_trace(io.BytesIO("".join(lines).encode()), "t.jsonl")


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("listed", [1, 20])
def test_a_trace_from_a_file_is_the_trace_and_replays(
    engine: Engine, sampling: Sampling, listed: int
) -> None:
    """Whatever is listed: where the drawn token is not among the best, its own interval decides."""
    trace = drawn(engine, sampling, listed)
    opened = reread(trace)
    assert opened.sampling == sampling
    names = (
        "index",
        "id",
        "bytes",
        "span",
        "role",
        "logprob",
        "rank",
        "stages",
        "candidates",
        "interval",
        "u",
    )
    for token, other in zip(opened, trace, strict=True):
        assert [getattr(token, name) for name in names] == [getattr(other, name) for name in names]
    report = replay(opened, seed=sampling.seed)
    assert report == (len(trace), ())
    assert len(trace) in (20, 200)


def test_changes_are_found(engine: Engine) -> None:
    trace = drawn(engine, SETTINGS[1])
    wrong_u = dataclasses.replace(trace.tokens[5], u=(trace.tokens[5].u + 0.5) % 1.0)  # type: ignore[operator]
    other = next(one for one in trace.tokens[7].candidates if one.id != trace.tokens[7].id)
    wrong_id = dataclasses.replace(trace.tokens[7], id=other.id)
    tokens = [*trace.tokens[:5], wrong_u, trace.tokens[6], wrong_id, *trace.tokens[8:]]
    report = replay(tokens, seed=SETTINGS[1].seed)
    assert report.draws == len(trace)
    assert [one.position for one in report.mismatches] == [trace.tokens[5].index, trace.tokens[7].index]
    assert "selects" in report.mismatches[1].why
    another_seed = replay(trace, seed=12)
    assert len(another_seed.mismatches) == len(trace)
    assert "but seed 12 gives" in another_seed.mismatches[0].why
    assert replay(trace) == (len(trace), ())  # without a seed, u is taken as recorded


def test_a_given_text_has_no_draws_to_replay(engine: Engine) -> None:
    trace = engine.score([1, 2, 3, 4], sampling=Sampling())
    assert replay(trace) == (0, ())
    assert drawn_id(engine.score([1, 2])[1]) is None


def test_which_tokens_the_settings_can_produce(engine: Engine) -> None:
    trace = engine.score([1, 2, 3, 4, 5, 6], sampling=Sampling(temperature=0.7, top_k=5))
    count = Producible(roles={token.role for token in trace})
    for token in trace:
        count.add(token)
    cut = [token.outcome.cut for token in trace if token.outcome is not None]
    assert (count.scored, count.produced) == (5, cut.count(None))
    assert count.record()["producible"]["cut_by"] == {name: cut.count(name) for name in cut if name}
    assert f"can produce {cut.count(None)} of 5 tokens" in count.line(Sampling(temperature=0.7, top_k=5))
    for token in trace:
        assert ("cut by" in stage_line(token)) == (
            token.outcome is not None and token.outcome.cut is not None
        )
    assert sampler_record(trace[0]) == {}


META = '{"schema": "ropechat.trace/1"}'
TOKEN = {
    "i": 1,
    "id": 2,
    "token": "a",
    "bytes": [97],
    "span": [0, 1],
    "role": "text",
    "logprob": -1.0,
    "rank": 1,
}
SAMPLER = {"cut": None, "p": 1.0, "interval": None, "u": None, "stages": [], "candidates": []}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "t.jsonl: line 1: must describe a trace (got an empty file)"),
        (
            "{",
            "t.jsonl: line 1: must be JSON (Expecting property name enclosed in double quotes at char",
        ),
        ("[]", "t.jsonl: line 1: must be an object (got [])"),
        ("{}", 't.jsonl: line 1: schema: must be "ropechat.trace/1"'),
        ('{"schema": "ropechat.trace/2"}', "(got 'ropechat.trace/2')"),
        (f"{META}\n{META}", "t.jsonl: line 2: schema: must be in the first line only"),
        ('{"schema": "ropechat.trace/1", "sampling": {"top_p": 7}}', "line 1: sampling: top_p: must be"),
        ('{"schema": "ropechat.trace/1", "sampling": {"x": 7}}', "line 1: sampling: "),
        ('{"schema": "ropechat.trace/1", "text": 7}', "line 1: text: must be a string (got 7)"),
        ({"i": -1}, "line 2: i: must be an integer from 0 to 9223372036854775807 (got -1)"),
        ({"id": True}, "line 2: id: must be an integer from 0 to 9223372036854775807 (got True)"),
        ({"bytes": [256]}, "line 2: bytes[0]: must be an integer from 0 to 255 (got 256)"),
        ({"span": [1]}, "line 2: span: must be a list of 2 numbers"),
        ({"logprob": "x"}, "line 2: logprob: must be a number (got 'x')"),
        ({"logprob": 10**400}, "line 2: logprob: must be a finite number"),
        ({"top": [[1, 800.0]]}, "line 2: top: must be a list of [id, logprob]"),
        ({"top": [[1]]}, "line 2: top: must be a list of [id, logprob]"),
        ({"role": "\x1b[2J"}, "line 2: role: must be a name of lowercase letters (got '\\x1b[2J')"),
        (
            {"sampler": {**SAMPLER, "stages": [{"name": "\x1b"}]}},
            "line 2: sampler.stages[0].name: must be a name of lowercase letters",
        ),
        (
            {
                "sampler": {
                    **SAMPLER,
                    "candidates": [{"id": 1, "rank": 1, "cut": "A", "p": 1, "penalized": False}],
                }
            },
            "cut: must",
        ),
        ({"sampler": 5}, "line 2: sampler: must be an object (got 5)"),
        (
            {"sampler": {**SAMPLER, "stages": [{"name": 1}]}},
            "line 2: sampler.stages[0].name: must be a string",
        ),
        (
            {"sampler": {**SAMPLER, "candidates": [{"id": 1, "rank": 1}]}},
            "line 2: sampler.candidates[0].p: must be a number",
        ),
        ('{"schema": "ropechat.trace/1", "x": NaN}', "must be JSON (NaN is not JSON)"),
    ],
)
def test_a_bad_file_names_its_line_and_field(text: "str | dict[str, object]", words: str) -> None:
    if isinstance(text, dict):
        text = f"{META}\n{json.dumps({**TOKEN, **text})}\n"
    with pytest.raises(RequestError) as caught:
        read_trace(text.encode().splitlines(keepends=True), "t.jsonl")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_stages_opens_too(engine: Engine) -> None:
    trace = engine.score([1, 2, 3, 4])
    opened = reread(trace)
    assert [token.logprob for token in opened] == [token.logprob for token in trace]
    assert (opened.next and opened.next.top) == trace.next.top
    assert opened.sampling is None
    assert replay(opened) == (0, ())
