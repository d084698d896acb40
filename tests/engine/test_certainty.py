"""How sure an answer is, beside NumPy: every alternative alone, from the logits of its own text."""

import functools
import json
import math
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ropechat import Engine, Grammar, Job, Message, Role, Sampling
from ropechat.engine.alternatives import MAX_ALTERNATIVES, Weighing, Weights, overlapping
from ropechat.engine.certainty import Answer, Certainty
from ropechat.engine.json_fields import fields_of, name_of
from ropechat.engine.scheduler import Completion, Scheduler
from ropechat.errors import CancelledError, ContextFullError, NonFiniteError, RowTimeoutError

WORDS = [
    *("yes", "no", "maybe", "positive", "negative", "hot", "cold", "rope", "token"),
    *("low", "lower", "lowest", "A", "B", "1", "10", "é"),
]
CHOICES = ["no", "maybe so", "a tok", "a token", "a token of text", "é"]
ANY = Grammar.choices(CHOICES)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("builtin", threads=1) as loaded:  # on a busy machine, threads wait for each other
        yield loaded


def logprobs(engine: Engine, ids: Sequence[int], first: int) -> np.ndarray:
    """Of each next token, from place `first` on.  # float64 [len(ids) - first, vocab_size]"""
    logits = np.concatenate([*engine.logit_rows(ids, first=first)]).astype(np.float64)
    top = logits.max(axis=1, keepdims=True)
    found: np.ndarray = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return found


def alone(
    engine: Engine, before: Sequence[int], texts: Sequence[str], ends: Sequence[int] | None = None
) -> list[float]:
    """The probability of each text after `before`, one by one. ends: ids that end it; None: a reply's."""
    found, ends = [], sorted(engine.stop_ids) if ends is None else ends
    read = dict[tuple[int, ...], np.ndarray]()  # texts that differ in their last token only share their rows
    for text in texts:
        ids = tuple(engine.prompts.line_ids(text)) if text else ()
        is_ended = any(other != text and other.startswith(text) for other in texts)
        path = ids if is_ended else ids[:-1]
        if path not in read:
            read[path] = logprobs(engine, [*before, *path], len(before) - 1)
        value = math.fsum(read[path][place, id] for place, id in enumerate(ids))
        if is_ended:
            value += math.log(math.fsum(np.exp(read[path][-1, ends])))
        found.append(math.exp(value))
    return found


def check_rows(engine: Engine, count: int) -> None:
    """Random prompts and choices, many in a pass: each as if its choices were scored alone."""
    draw = random.Random(count)
    jobs, asked = [], []
    for _ in range(count):
        choices = draw.sample(WORDS, draw.randint(1, 6))
        if draw.random() < 0.5:
            choices.append(f"{draw.choice(WORDS)} {draw.choice(WORDS)}")
        messages = [Message(Role.USER, " ".join(draw.choices(WORDS, k=draw.randint(1, 40))))]
        grammar = Grammar.choices(dict.fromkeys(choices))
        asked.append((messages, list(grammar.source)))
        jobs.append(Job(messages, Sampling(max_tokens=20, seed=1, grammar=grammar), certainty=True))
    for index, completion in engine.generate_many(jobs, window=64):
        messages, choices = asked[index]
        assert completion.error is None
        found = completion.certainty
        expected = alone(engine, engine.prompt_ids(messages), choices)
        assert list(found["choices"]) == choices
        assert found["allowed"] == pytest.approx(math.fsum(expected), rel=1e-9, abs=0)
        for choice, value in zip(choices, expected, strict=True):
            assert found["choices"][choice] == pytest.approx(value / math.fsum(expected), abs=1e-9)
        assert math.fsum(found["choices"].values()) == pytest.approx(1, abs=1e-12)
        assert found["confidence"] == found["choices"][completion.text]


def test_choices_are_as_probable_as_each_alone(engine: Engine) -> None:
    check_rows(engine, 6)


@pytest.mark.trust
def test_choices_of_a_thousand_rows(engine: Engine) -> None:
    check_rows(engine, 1000)


def said(text: str) -> Answer:
    """An answer with one of some choices, of which only the text counts."""
    return Answer(text, (), (), ())


SHAPES: list[Any] = [
    {"enum": ["low", "lower", "lowest", ""]},
    {"enum": [1, 10, 100, None, "a"]},
    {"type": "boolean"},
    {"type": ["boolean", "null"]},
    {"$ref": "#/$defs/pet"},
    {"anyOf": [{"const": "é"}, {"$ref": "#/$defs/pet"}]},
]
DEFS = {"pet": {"enum": ["cat", "dog", 'a "dog"']}}


def check_fields(engine: Engine, count: int) -> None:
    """Random schemas of listed values: each as if its values were scored alone after the text before it."""
    draw, jobs = random.Random(count), []
    for number in range(count):
        shapes = {f"f{place}": draw.choice(SHAPES) for place in range(draw.randint(1, 4))}
        inner = {"type": "array", "items": draw.choice(SHAPES), "minItems": 1, "maxItems": 2}
        properties = {**shapes, "list": inner}
        schema = {"type": "object", "properties": properties, "required": [*properties], "$defs": DEFS}
        grammar = Grammar.json_schema({**schema, "additionalProperties": False}, flexible=draw.random() < 0.3)
        messages = [Message(Role.USER, " ".join(draw.choices(WORDS, k=draw.randint(1, 20))))]
        sampling = Sampling(max_tokens=200, seed=number, temperature=1.0, grammar=grammar)
        jobs.append(Job(messages, sampling, certainty=True))
    listed = 0
    for index, done in engine.generate_many(jobs, window=64):
        prompt = engine.prompt_ids(jobs[index].prompt)  # type: ignore[arg-type]
        assert done.error is None
        found = done.certainty["fields"]
        if done.finish_reason == "length":  # a flexible form may never end
            assert done.certainty == {"confidence": None, "fields": {}}
            continue
        for place in fields_of(done.text):
            field = found[name_of(place.path)]
            first, last = field["tokens"]
            if "values" not in field:
                raw = math.fsum(done.logprobs[first:last])
                assert math.log(field["confidence"] * field["allowed"]) == pytest.approx(raw, abs=1e-9)
                continue
            listed += 1
            said = sum(len(engine.token_bytes(id)) for id in done.ids[:first])
            lead = done.text[: place.start].encode()[said:].decode()
            is_text = done.text[place.start - 1] == '"'
            texts = [json.dumps(one, ensure_ascii=False)[1:-1] if is_text else one for one in field["values"]]
            ends = ids_from(engine, b'"' if is_text else b",}] \t\r\n")
            expected = alone(engine, [*prompt, *done.ids[:first]], [lead + text for text in texts], ends)
            shares = [one / math.fsum(expected) for one in expected]
            assert field["allowed"] == pytest.approx(math.fsum(expected), rel=1e-9)
            assert [*field["values"].values()] == pytest.approx(shares, abs=1e-9)
            own = texts.index(done.text[place.start : place.end])
            assert field["confidence"] == pytest.approx(shares[own], abs=1e-9)
        assert done.certainty["confidence"] == min(field["confidence"] for field in found.values())
    assert listed > count


@functools.cache
def ids_from(engine: Engine, characters: bytes) -> list[int]:
    """The ids whose text begins with one of these characters."""
    texts = ((id, engine.token_bytes(id)) for id in range(engine.facts["vocab_size"]))
    return [id for id, text in texts if text and text[0] in characters]


def test_listed_values_are_as_probable_as_each_alone(engine: Engine) -> None:
    check_fields(engine, 5)


@pytest.mark.trust
def test_listed_values_of_a_thousand_rows(engine: Engine) -> None:
    check_fields(engine, 1000)


def test_other_values_are_judged_by_their_tokens(engine: Engine) -> None:
    """The probability after the stage `grammar` of each token of a value, and of what ends it."""
    properties = {"name": {"type": "string", "maxLength": 6}, "n": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["name", "n"]}
    grammar = Grammar.json_schema({**schema, "additionalProperties": False})
    messages = [Message(Role.USER, "A pet")]
    sampling = Sampling(max_tokens=80, seed=2, temperature=1.0, grammar=grammar)
    steps = list(engine.reply(messages, sampling, top_k=3))
    answer = Answer.of_steps(steps)
    found = engine.certainty(engine.prompt_ids(messages), answer, grammar)
    [(_, done)] = engine.generate_many([Job(messages, sampling, certainty=True)])
    assert done.certainty == found
    for field in found["fields"].values():
        first, last = field["tokens"]
        drawn = [one for step in steps[first:last] for one in step.candidates if one.id == step.id]
        among = [one.by_stage[0] for one in drawn]
        assert field["confidence"] == pytest.approx(math.prod(among), rel=1e-9)
        raw = math.exp(math.fsum(step.logprob for step in steps[first:last]))
        assert field["confidence"] * field["allowed"] == pytest.approx(raw, rel=1e-9)
    ids = done.ids[slice(*found["fields"]["name"]["tokens"])]
    assert json.loads(done.text)["name"] in b"".join(map(engine.token_bytes, ids)).decode()
    cut = engine.certainty(engine.prompt_ids(messages), Answer.of_steps(steps[:3]), grammar)
    assert cut == {"confidence": None, "fields": {}}


def test_the_same_for_each_door_and_in_any_company(engine: Engine) -> None:
    jobs = [
        Job([Message(Role.USER, text)], Sampling(max_tokens=9, seed=3, grammar=ANY), certainty=True)
        for text in ("x", "rope " * 50, "Is it hot?", "x")
    ]
    runs = [
        [(done.text, done.certainty) for _, done in engine.generate_many(jobs, window=window)]
        for window in (1, 2, 16)
    ]
    assert runs[0] == runs[1] == runs[2]
    for job, (text, certainty) in zip(jobs, runs[0], strict=True):
        assert engine.certainty(engine.prompt_ids(job.prompt), said(text), ANY) == certainty  # type: ignore[arg-type]
        assert certainty["confidence"] == certainty["choices"][text]


def test_where_nothing_can_be_said(engine: Engine) -> None:
    ids = engine.prompt_ids([{"role": "user", "content": "x"}])
    many = Grammar.choices([f"n{number}" for number in range(MAX_ALTERNATIVES + 1)])
    assert engine.certainty(ids, said("n1"), many) == {}
    assert engine.certainty(ids, said("1"), Grammar.regex("[0-9]")) == {}
    cut = engine.certainty(ids, said("may"), ANY)  # by max_tokens
    assert (cut["confidence"], list(cut["choices"])) == (None, CHOICES)


def test_a_choice_that_the_context_has_no_room_for() -> None:
    with Engine.load("builtin", context=64) as small:
        sampling = Sampling(max_tokens=1, seed=1, grammar=Grammar.choices(["no", "word " * 70]))
        [(_, done)] = small.generate_many([Job("Once", sampling, certainty=True)])
        assert (done.error, done.certainty, done.completion_tokens) == (None, {}, 1)
        assert small.certainty([1], said("no"), Grammar.choices(["no", "word " * 70])) == {}


def test_texts_that_begin_others() -> None:
    texts = ["ab", "a", "b", "abc", "", "c"]
    assert {texts[index] for index in overlapping(texts)} == {"", "a", "ab"}


def test_weights_of_nothing_are_equal() -> None:
    never = Weights((-math.inf, -math.inf))
    assert (never.allowed, never.shares) == (0, [0.5, 0.5])
    tiny = Weights((-2000.0, -2000.0 + math.log(3)))
    assert (tiny.allowed, tiny.shares) == (0, pytest.approx([0.25, 0.75]))


# ---- The scheduler, with a backend whose passes are given


class Backend:
    """One token answers a prompt of ids; then its alternatives are read, a row in each pass."""

    seed = 0

    def __init__(self) -> None:
        self.alive: dict[int, Any] = {}
        self.fault: dict[int, Exception] = {}
        """What a pass over the window of a prompt's answer raises."""
        self.refusal: Exception | None = None
        self.steps: list[int] = []
        self._next = 0

    def encode(self, job: Job) -> list[int]:
        assert isinstance(job.prompt, list)
        return [part for part in job.prompt if isinstance(part, int)]

    def _add(self, what: Any) -> int:
        self._next += 1
        self.alive[self._next] = what
        return self._next

    def add(self, job: Job, ids: list[int], seed: int, stream: int) -> tuple[int, Any]:
        return self._add(None), None

    def step(self, sequences: Sequence[int]) -> list[Any]:
        self.steps.append(len(sequences))
        events = []
        for number in sequences:
            window = self.alive[number]
            if window is None:
                events.append(SimpleNamespace(sequence=number, kind="token", done=0))
                continue
            if window.ids[0] in self.fault:
                raise self.fault[window.ids[0]]
            for position in range(window.start, len(window.ids)):
                row = [(-1.0 - id, 1) for id in window.look_up]
                events.append(
                    SimpleNamespace(sequence=number, kind="score", position=position, looked_up=row)
                )
        return events

    def record(self, event: Any, reply: Any) -> Any:
        ended = {"finish_reason": "stop", "channel": "answer", "stages": ()}
        return SimpleNamespace(id=0, logprob=0.0, text="", top=(), **ended)

    def certainty(self, job: Job, ids: list[int], completion: Completion) -> Certainty:
        weighing = Weighing(ids, [(1, 2), (1, 3), (4,)], {2}, [5])
        return Certainty([weighing], lambda: {"logprobs": weighing.result().logprobs})

    def look(self, window: Any) -> int:
        if self.refusal is not None:
            raise self.refusal
        return self._add(window)

    def reused(self, sequence: int) -> int:
        return 0

    def free(self, sequence: int) -> None:
        del self.alive[sequence]


def run(backend: Backend, window: int, prompts: Sequence[list[int]], **options: Any) -> list[Completion]:
    jobs = [Job(prompt, certainty=True) for prompt in prompts]
    found = [done for _, done in Scheduler(backend, window, None, **options).run(iter(jobs))]
    assert backend.alive == {}
    return found


@pytest.mark.parametrize("window", [1, 2, 7])
def test_the_scheduler_reads_alternatives_beside_other_rows(window: int) -> None:
    backend = Backend()
    found = run(backend, window, [[7, 8], [9], [10]])
    assert [done.certainty for done in found] == [{"logprobs": (-5.0, -6.0, -5.0 - 6.0)}] * 3
    assert max(backend.steps) <= window


def test_a_fault_while_alternatives_are_read_is_that_row_s() -> None:
    backend = Backend()
    backend.fault[9] = NonFiniteError("NaN in the logits")
    found = run(backend, 4, [[7], [9], [10]])
    assert [type(done.error) for done in found] == [type(None), NonFiniteError, type(None)]
    assert (found[1].ids, found[1].certainty) == ((), {})
    backend = Backend()
    backend.refusal = NonFiniteError("no")
    assert run(backend, 4, [[7]])[0].error is backend.refusal
    backend.refusal = ContextFullError("too long")
    [done] = run(backend, 4, [[7]])
    assert (done.error, done.ids, done.certainty) == (None, (0,), {})


def test_a_cancel_and_a_timeout_while_alternatives_are_read() -> None:
    backend = Backend()
    backend.fault[9] = CancelledError("cancelled")
    found = run(backend, 2, [[9], [9], [7]])
    assert [done.finish_reason for done in found] == ["cancelled"] * 2
    backend = Backend()
    [done] = run(backend, 1, [[7]], timeout=1e-9)
    assert isinstance(done.error, RowTimeoutError)
