"""Scores of given text, and many prompts at once, on a bigram stand-in whose numbers can be recomputed."""

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import Queue
from typing import Any

import fake_core
import numpy as np
import pytest
from model_folders import (
    CHATML,
    adds_bos,
    byte_folder,
    byte_tokenizer,
    chat_folder,
    core_of,
    load_fake,
    text_of,
)

from ropechat.conversation import Message, Role
from ropechat.engine.collector import Collector
from ropechat.engine.engine import Engine
from ropechat.engine.scheduler import LOOKAHEAD, Completion, Job
from ropechat.errors import (
    ContextFullError,
    NonFiniteError,
    RequestError,
    RopechatError,
)
from ropechat.sampling import Sampling

GREEDY = Sampling(temperature=0, max_tokens=6, seed=5)


# ---- Scoring


def test_score_is_aligned(engine: Engine) -> None:
    ids = [97, 98, 100, 101, 102, 10]
    trace, table = engine.score(ids, top_k=5), fake_core.table(260).astype(np.float64)
    logprobs = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    assert [token.index for token in trace] == [*range(6)]
    assert (trace[0].logprob, trace[0].rank, trace[0].entropy, trace[0].row) == (None, None, None, None)
    for i in range(1, 6):
        assert math.isclose(trace[i].logprob or 0, logprobs[ids[i - 1], ids[i]])
        row = trace[i].row
        assert row is not None
        assert row.position == i - 1
        assert row.top[0][0] == ids[i - 1] + 1
        assert len(row.top) == 5
    assert trace.next.position == 5
    assert trace.next.top[0][0] == 11
    expected = -sum(logprobs[a, b] for a, b in itertools.pairwise(ids))
    assert math.isclose(trace.nll(), expected)
    assert trace.meta["model"] == "bytes"


def test_score_of_a_greedy_text_ranks_1(engine: Engine) -> None:
    text = "a" + text_of(engine.generate("a", Sampling(temperature=0, max_tokens=9)))
    assert {token.rank for token in engine.score(text)} == {None, 1}


def test_score_of_text_has_bytes_spans_and_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = byte_folder(tmp_path, tokenizer=byte_tokenizer(post_processor=adds_bos()))
    trace = load_fake(monkeypatch, folder).score("aé", top_k=0)
    assert [(t.bytes, t.span, t.role) for t in trace] == [
        (b"<s>", (0, 0), "bos"),
        (b"a", (0, 1), "text"),
        (b"\xc3", (1, 2), "text"),
        (b"\xa9", (2, 3), "text"),
    ]
    assert trace[2].text == "\ufffd"
    assert trace[1].logprob is not None
    assert trace.next.top == ()


def test_score_takes_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ bos_token }}" + CHATML}
    engine = load_fake(monkeypatch, byte_folder(tmp_path, tokenizer_config=config))
    messages = [Message(Role.SYSTEM, "user"), Message(Role.USER, "a"), Message(Role.ASSISTANT, "</s>")]
    trace = engine.score(messages)
    assert [token.id for token in trace] == engine.prompt_ids(messages)
    text = trace.meta["text"].encode()
    said = [(t.id, text[slice(*t.span)]) for t in trace if t.role == "text"]
    assert said == [(byte, bytes([byte])) for byte in b"usera</s>"]
    assert trace[0].role == "bos"
    assert {t.role for t in trace} == {"bos", "special", "template", "text"}
    with pytest.raises(RequestError, match=r"must be messages or ids \(got both\)"):
        engine.score([messages[0], 97])  # type: ignore[list-item]


def test_what_a_text_is_read_as(engine: Engine) -> None:
    assert [token.id for token in engine.score("a</s>")] == [97, 257]
    assert [token.id for token in engine.score("a</s>", special="text")] == [97, *b"</s>"]
    trace = engine.score([97, 257, 98])
    assert (trace.meta["text"], [token.span for token in trace]) == ("ab", [(0, 1), (1, 1), (1, 2)])


def test_a_score_prints_its_sums_only(engine: Engine) -> None:
    trace = engine.score(list(range(1, 60)), top_k=20)
    assert repr(trace).startswith("Trace(tokens=59, scored=")
    (_, score) = next(iter(engine.score_many([list(range(1, 60))], top_k=20)))
    assert len(repr(score)) < 400


def test_score_reports_progress(engine: Engine) -> None:
    seen: list[tuple[int, int]] = []
    engine.score("abcdef", on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, 6), (6, 6)]


@pytest.mark.parametrize("exception", [ValueError("no"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("call", [1, 2])
def test_an_exception_of_a_progress_callback_is_raised_as_it_is(
    engine: Engine, exception: BaseException, call: int
) -> None:
    expected = engine.score("abcdef")
    calls: list[int] = []

    def fail(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == call:
            raise exception

    with pytest.raises(type(exception)) as raised:
        engine.score("abcdef", on_progress=fail)
    assert raised.value is exception
    assert len(calls) == call
    assert engine.score("abcdef") == expected


@pytest.mark.parametrize("top_k", [-1, 1001, 1.5, True])
def test_top_k_has_a_range(engine: Engine, top_k: Any) -> None:
    for call in (engine.score, engine.generate):
        with pytest.raises(RequestError, match="top_k"):
            call("a", top_k=top_k)


# ---- Many prompts


def test_many_equal_one_by_one_and_come_in_order(engine: Engine) -> None:
    prompts = ["a", "bcdefghijk", "m", "xy", "q" * 30, "é", "ab"]
    for sampling in (GREEDY, Sampling(max_tokens=7, seed=11)):
        alone = [list(engine.generate_many([p], sampling)) for p in prompts]
        if sampling is GREEDY:
            assert [text_of(engine.generate(p, sampling)) for p in prompts] == [a[0][1].text for a in alone]
        by_window = [list(engine.generate_many(prompts, sampling, window=w)) for w in (1, 2, 3, 7)]
        assert all(results == by_window[0] for results in by_window)
        assert [index for index, _ in by_window[0]] == [*range(7)]
    assert core_of(engine).sequences == {}


def test_many_may_come_as_they_finish(engine: Engine) -> None:
    long, short = Sampling(temperature=0, max_tokens=9), Sampling(temperature=0, max_tokens=1)
    jobs = [Job("a", long), Job("b", short), RequestError("no prompt"), Job("d", short)]
    in_order = list(engine.generate_many(jobs, window=4))
    as_finished = list(engine.generate_many(jobs, window=4, ordered=False))
    assert [index for index, _ in in_order] == [0, 1, 2, 3]
    assert [index for index, _ in as_finished] == [2, 1, 3, 0]
    texts = {index: result.text for index, result in in_order}
    assert {index: result.text for index, result in as_finished} == texts
    assert core_of(engine).sequences == {}


def test_many_record_candidates(engine: Engine) -> None:
    jobs = [Job("a"), Job("a", top_k=0), Job("a", top_k=1)]
    results = [result for _, result in engine.generate_many(jobs, GREEDY, top_k=3)]
    assert [{len(top) for top in result.top} for result in results] == [{3}, set(), {1}]
    assert len(results[0].top) == len(results[0].ids)
    for result in (results[0], results[2]):
        assert [top[0] for top in result.top] == list(zip(result.ids, result.logprobs, strict=True))
    with pytest.raises(RequestError, match="top_k"):
        engine.generate_many(["a"], top_k=-1)


def test_a_job_may_follow_another(engine: Engine) -> None:
    """In the same place of the order; also when the last prompt was read already."""
    three, two = Sampling(temperature=0, max_tokens=3), Sampling(temperature=0, max_tokens=2)
    first = Job("a", three, then=lambda result: Job(result.text[-1], two))  # bcd, then from d on
    (alone,) = [result.text for _, result in engine.generate_many(["m"], GREEDY)]
    for window in (1, 2):
        results = list(engine.generate_many([first, "m", first], GREEDY, window=window))
        assert [(index, result.text) for index, result in results] == [(0, "ef"), (1, alone), (2, "ef")]
    ((_, result),) = engine.generate_many([Job("a", GREEDY, then=lambda _: Job([10**6]))])
    assert result.error is not None
    assert core_of(engine).sequences == {}


def test_a_reply_may_have_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_fake(monkeypatch, chat_folder(tmp_path))
    messages = [Message(Role.USER, "a")]
    ((_, result),) = engine.generate_many([Job(messages, GREEDY, prefix="mno")])
    assert result.prompt_tokens == len(engine.prompt_ids(messages)) + 3
    assert result.text.startswith("pq")


def test_equal_prompts_draw_differently(engine: Engine) -> None:
    sampling = Sampling(temperature=5, max_tokens=8, seed=1)
    results = [result for _, result in engine.generate_many(["a"] * 4, sampling)]
    assert len({result.ids for result in results}) == 4
    assert results[0].ids == tuple(step.id for step in engine.generate("a", sampling))


def test_a_job_has_settings_of_its_own(engine: Engine) -> None:
    hot = Sampling(temperature=5, max_tokens=4, seed=1)
    prompts = ["a", Job("a"), Job("a", Sampling(temperature=0, max_tokens=2)), Job("a", GREEDY, ["de"])]
    results = [result for _, result in engine.generate_many(prompts, hot, stop=["zz"])]
    assert results[:2] == [result for _, result in engine.generate_many(["a", "a"], hot)]
    assert [(r.text, r.finish_reason) for r in results[2:]] == [("bc", "length"), ("bc", "stop")]


def test_a_jobs_seed_gives_what_the_prompt_alone_gives(engine: Engine) -> None:
    own, other = Sampling(temperature=5, max_tokens=8, seed=3), Sampling(temperature=5, max_tokens=8)
    prompts = ["a", Job("a", own), Job("a", other), Job("a", own), RopechatError("x"), Job([999], own)]
    results = [r for _, r in engine.generate_many(prompts, Sampling(temperature=5, max_tokens=8, seed=1))]
    alone = tuple(step.id for step in engine.generate("a", own))
    assert results[1].ids == results[3].ids == alone
    assert len({result.ids for result in results[:3]}) == 3  # without its own seed: the call's, by index
    assert [result.seed for result in results] == [1, 3, 1, 3, 1, 3]


def test_a_seed_that_is_drawn_is_one_that_other_programs_read_exactly(engine: Engine) -> None:
    """jq, JavaScript and R hold numbers in an f64: exact below 2^53."""
    seeds = [next(engine.generate_many(["a"], Sampling(max_tokens=1)))[1].seed for _ in range(50)]
    assert max(seeds) < 2**53
    assert len(set(seeds)) == 50


@pytest.mark.parametrize("stop", ["de", [""], [5], ["x"] * 17])
def test_a_jobs_bad_stop_is_its_own_error(engine: Engine, stop: Any) -> None:
    results = [result for _, result in engine.generate_many(["a", Job("a", stop=stop)], GREEDY)]
    assert results[0].text == "bcdefg"
    assert isinstance(results[1].error, RequestError)
    assert str(results[1].error).startswith("stop: ")


def test_many_share_passes(engine: Engine) -> None:
    list(engine.generate_many(["a", "b", "c"], GREEDY, window=3))
    assert max(len(live) for live in core_of(engine).log) == 3
    assert len(core_of(engine).log) == 6


def test_a_result_is_complete(engine: Engine) -> None:
    ((index, result),) = engine.generate_many(["ab"], Sampling(temperature=0, max_tokens=2, seed=5))
    steps = list(engine.generate("ab", Sampling(temperature=0, max_tokens=2)))
    assert index == 0
    assert (result.text, result.ids, result.finish_reason) == ("cd", (99, 100), "length")
    assert (result.prompt_tokens, result.completion_tokens, result.seed) == (2, 2, 5)
    assert result.logprobs == tuple(step.logprob for step in steps)


def test_prompts_of_every_kind(engine: Engine) -> None:
    prompts: list[Any] = ["a", [97], [Message(Role.USER, "a")]]
    results = [result for _, result in engine.generate_many(prompts, GREEDY)]
    assert [result.text for result in results] == ["bcdefg"] * 3


def test_a_bad_prompt_stays_alone(engine: Engine) -> None:
    core_of(engine).poison = 80
    given = RopechatError("from outside")
    prompts: list[Any] = [
        "a",
        [97] * 99,
        "",
        [999],
        given,
        [97, 80],
        "b",
        [97, Message(Role.USER, "")],
    ]
    results = [result for _, result in engine.generate_many(prompts, GREEDY)]
    assert [type(result.error) for result in results] == [
        type(None),
        ContextFullError,
        RequestError,
        RequestError,
        RopechatError,
        NonFiniteError,
        type(None),
        RequestError,
    ]
    assert results[4].error is given
    assert (results[0].text, results[6].text) == ("bcdefg", "cdefgh")
    assert core_of(engine).sequences == {}


def test_prompts_are_read_as_they_are_worked_off(engine: Engine) -> None:
    read = 0

    def prompts() -> Iterator[str]:
        nonlocal read
        for _ in range(1000):
            read += 1
            yield "a"

    results = engine.generate_many(prompts(), GREEDY, window=2)
    for count in range(1, 50):
        next(results)
        assert read <= count + 2 * (LOOKAHEAD + 1)
    results.close()  # type: ignore[attr-defined]
    assert core_of(engine).sequences == {}


def test_a_slow_prompt_holds_up_a_bounded_number(engine: Engine) -> None:
    read = 0

    def prompts() -> Iterator[Any]:
        nonlocal read
        for i in range(100):
            read += 1
            yield [97] * 20 if i == 0 else RopechatError("fast")

    index, _ = next(engine.generate_many(prompts(), Sampling(temperature=0, max_tokens=30), window=2))
    assert index == 0
    assert read <= 2 * LOOKAHEAD + 1


def test_cancel_of_many(engine: Engine) -> None:
    results = engine.generate_many((chr(97 + i) for i in range(20)), Sampling(temperature=0), window=2)
    core, count = core_of(engine), 0

    def on_step() -> None:
        nonlocal count
        count += 1
        if count == 5:
            engine.cancel()

    core.before_step = on_step
    got = list(results)
    assert [(i, r.finish_reason, r.text) for i, r in got] == [
        (0, "cancelled", "bcde"),
        (1, "cancelled", "cdef"),
    ]
    assert core.sequences == {}


def test_tokens_are_counted_as_they_are_made(engine: Engine) -> None:
    made: list[int] = []
    list(engine.generate_many(["a", "b"], GREEDY, window=2, on_tokens=made.append))
    assert made == [2] * 6


# ---- Calls that arrive


def test_calls_of_a_closed_engine_raise(engine: Engine) -> None:
    collector = Collector(engine)
    assert collector.submit(Job("ab", GREEDY)).result(60).text
    assert collector.is_idle
    engine.close()
    with pytest.raises(RequestError, match="closed"):
        collector.submit(Job("ab", GREEDY)).result(60)
    collector.close()
    assert collector.submit(Job("ab", GREEDY)).cancelled()


def test_a_call_behind_the_close_hears_of_it(engine: Engine) -> None:
    """Also where it comes before the call in progress, which the close cancels, has ended."""
    collector, later = Collector(engine), Queue[Future[Completion]]()

    def close(_: Future[Completion]) -> None:  # in the thread that computes
        engine.close()
        later.put(collector.submit(Job("ab", GREEDY)))

    first = collector.submit(Job("ab", GREEDY))
    first.add_done_callback(close)
    assert first.result(60).text
    with pytest.raises(RequestError, match="closed"):
        later.get(timeout=60).result(60)
    collector.close()
