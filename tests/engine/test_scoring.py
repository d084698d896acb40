"""Windows over long texts, continuations, choices, conversations: on a stand-in and on small models."""

import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core import CancelToken
from core import load as load_core
from model_folders import (
    CHATML,
    adds_bos,
    byte_folder,
    byte_tokenizer,
    chat_folder,
    core_of,
    load_fake,
)
from models import write_llama
from reference import Model, forward

from ropechat.conversation import Message, Role
from ropechat.engine.engine import Engine
from ropechat.engine.score_input import TokenBuffer
from ropechat.engine.scoring import Window, _Alike, windows
from ropechat.errors import CancelledError, ContextFullError, NonFiniteError, RequestError, RopechatError
from ropechat.tokenizer import EncodedToken
from ropechat.trace import Pair, Score, Trace

CHAT = [Message(Role.SYSTEM, "s"), Message(Role.USER, "hi"), Message(Role.ASSISTANT, "yo")]


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    loaded: Engine = load_fake(monkeypatch, chat_folder(tmp_path / "chat"), context=400)
    return loaded


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=64)


def bits(trace: Trace) -> list[tuple[Any, ...]]:
    """All that a trace says about the model, to be compared bit for bit."""
    return [(t.id, t.logprob, t.rank, t.entropy, t.row and t.row.logsumexp) for t in trace]


# ---- Windows


def plan(count: int, size: int, stride: int, first: int = 0, *, bos: bool = False) -> list[Window]:
    roles = ["bos" if bos and i == 0 else "text" for i in range(count)]
    tokens = [EncodedToken(1000 + i, (i, i + 1), role) for i, role in enumerate(roles)]
    pieces = [tokens[at : at + 5] for at in range(0, count, 5)]
    return list(windows(TokenBuffer(pieces), first, size, stride))


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(("size", "stride"), [(8, 4), (8, 8), (8, 1), (2, 1), (7, 3), (64, 32)])
def test_every_token_is_scored_once_with_half_a_window_of_context(size: int, stride: int, bos: bool) -> None:
    for count in range(1, 40):
        for first in {0, 1, count // 2, count - 1}:
            scored: list[int] = []
            for window in plan(count, size, stride, first, bos=bos):
                rows = len(window.ids) - (not window.is_last)
                assert rows <= size
                assert [token.id for token in window.tokens] == window.ids[window.start :]
                for place, token in enumerate(window.tokens, window.start):
                    index = token.id - 1000
                    assert index == window.begin + place
                    assert place >= min(index, size - stride)
                    scored.append(index)
                if bos:
                    assert window.ids[0] == 1000
            assert scored == [*range(first, count)]


def test_a_text_that_fits_is_one_sequence() -> None:
    (window,) = plan(8, 8, 4)
    assert (window.ids, window.start, window.begin, window.is_last) == ([*range(1000, 1008)], 0, 0, True)


def rolling_windows(ids: list[int], size: int) -> Iterator[tuple[list[int], list[int]]]:
    """(input, predicted) of lm-evaluation-harness' rolling loglikelihood with one token of context.

    By its definition: the first window predicts the first tokens; each later one predicts the next `size`
    tokens from the `size` tokens before the last of them.
    """
    prefix, tokens = ids[0], ids[1:]
    yield [prefix, *tokens[: size - 1]], tokens[:size]
    done = min(size, len(tokens))
    while done < len(tokens):
        count = min(len(tokens) - done, size)
        end = done + count
        start = end - size - 1
        yield ids[start + 1 : end], tokens[end - count : end]
        done = end


def test_stride_equal_to_the_window_gives_the_rolling_windows_of_lm_eval() -> None:
    for size in (4, 7):
        for count in range(1 + size, 2 + 3 * size):
            expected = list(rolling_windows([*range(1000, 1000 + count)], size))
            found = [
                (window.ids[: len(window.ids) - (not window.is_last)], window.ids[window.start :])
                for window in plan(count, size, size, first=1)
                if window.tokens  # not the one that predicts what follows the text
            ]
            assert found == expected


def test_windows_equal_numpy(tiny: Path, rng: np.random.Generator) -> None:
    """Each window computed alone by the oracle; size, stride and context of the model agree."""
    ids = rng.integers(0, 105, 150).tolist()
    trace = Engine.load(tiny, dtype="f32", threads=2).score(ids, top_k=0)
    assert (trace.meta["window"], trace.meta["stride"], trace.meta["tokens"]) == (64, 32, 150)
    assert trace.beyond_trained_length == trace.meta["beyond_trained_length"] == 0
    model = Model.load(tiny)
    for token in [*trace][1:]:
        i = token.index
        context = i if i <= 64 else token.context
        logits = forward(ids[i - context : i], model).T[-1].astype(np.float64)
        assert token.logprob == pytest.approx(
            logits[ids[i]] - np.logaddexp.reduce(logits), rel=1e-4, abs=1e-5
        )
        assert 32 < token.context <= 64 or i <= 32
    assert (trace.next.position, len(trace)) == (149, 150)


def test_a_stated_context_is_the_window(tiny: Path, rng: np.random.Generator) -> None:
    ids = rng.integers(0, 105, 100).tolist()
    engine = Engine.load(tiny, dtype="f32", threads=1, context=80)
    assert engine.score(ids).meta["window"] == 80
    with pytest.raises(ContextFullError):
        engine.score(ids, one_sequence=True)
    long = Engine.load(tiny, dtype="f32", threads=1).score(ids, one_sequence=True, top_k=0)
    assert (long.meta["window"], long.beyond_trained_length) == (None, 36)


def test_windows_with_bos_begin_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = byte_folder(
        tmp_path, tokenizer=byte_tokenizer(post_processor=adds_bos()), max_position_embeddings=8
    )
    engine = load_fake(monkeypatch, folder)
    seen: list[list[int]] = []
    score = core_of(engine).score
    monkeypatch.setattr(core_of(engine), "score", lambda ids, **rest: seen.append(ids) or score(ids, **rest))
    trace = engine.score("abcdefghijklmnop")
    assert [ids[0] for ids in seen] == [256] * len(seen)
    assert len(seen) == 4
    assert [token.bytes for token in trace][1:] == [bytes([byte]) for byte in b"abcdefghijklmnop"]
    assert trace.meta["stride"] == 4


def test_scores_stream_before_the_text_is_encoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "abcdefgh\n" * 40_000
    encoded, scored = 0, threading.Event()
    encode = engine.tokenizer.encode_aligned

    def count(part: str, *rest: Any) -> list[EncodedToken]:
        nonlocal encoded
        assert encoded + len(part) < len(text) / 2 or scored.wait(60)
        encoded += len(part)
        return encode(part, *rest)

    monkeypatch.setattr(engine.tokenizer, "encode_aligned", count)
    stream = engine.score_stream(text, top_k=0)
    assert (stream.meta["tokens"], stream.meta["window"]) == (None, 64)
    first = [next(stream) for _ in range(1000)]
    assert encoded < len(text) / 2
    scored.set()
    assert [token.index for token in first] == [*range(1000)]
    assert b"".join(token.bytes for token in first) == text.encode()[:1000]
    stream.close()
    assert core_of(engine).sequences == {}
    with pytest.raises(StopIteration):
        next(stream)
    assert stream.next is None


def test_a_stream_is_the_trace(engine: Engine) -> None:
    text = "abcxyz" * 40
    stream, trace = engine.score_stream(text, top_k=3), engine.score(text, top_k=3)
    assert tuple(stream) == trace.tokens
    assert (stream.next, stream.meta) == (trace.next, trace.meta)
    assert engine.score_stream(text, top_k=3).trace() == trace


def test_a_stream_is_cancelled_from_outside(engine: Engine) -> None:
    stream = engine.score_stream("a" * 500)
    next(stream)
    engine.cancel()
    with pytest.raises(CancelledError):
        list(stream)
    assert core_of(engine).sequences == {}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"window": 1}, "window: "),
        ({"window": True}, "window: "),
        ({"window": 8, "stride": 9}, "stride: "),
        ({"stride": 0}, "stride: "),
    ],
)
def test_windows_have_a_range(engine: Engine, options: dict[str, Any], what: str) -> None:
    with pytest.raises(RequestError, match=what):
        engine.score_stream("a", **options)


# ---- Continuations


def test_a_continuation_is_scored_under_its_context(engine: Engine) -> None:
    whole = engine.score("ab cd", top_k=0)
    pairs = [Pair("ab", " cd"), Pair("ab ", "cd"), Pair([97, 98], [32, 99, 100])]
    for _, score in engine.score_many(pairs):
        assert bits(score.trace) == bits(whole)[2:]
        assert (score.tokens, score.bytes, score.joined, score.error) == (3, 3, False, None)
        assert score.logprob == math.fsum(token.logprob or 0 for token in whole.tokens[2:])
        assert score.trace[0].index == score.trace[0].context == 2
        assert score.trace.next == whole.next
    assert score.bits_per_byte == pytest.approx(-score.logprob / math.log(2) / 3)


def test_is_greedy_means_rank_1(engine: Engine) -> None:
    results = [score.is_greedy for _, score in engine.score_many([Pair("a", "bcd"), Pair("a", "bce")])]
    assert results == [True, False]


def test_a_token_across_the_join_is_said(tmp_path: Path) -> None:
    from ropechat import builtin

    engine = Engine.load(builtin.NAME, threads=1)
    pieces = (engine.token_bytes(id) for id in range(engine.facts["vocab_size"]))
    word = next(piece.decode() for piece in pieces if re.fullmatch(rb" [a-z]{6,}", piece))
    (split,) = (score for _, score in engine.score_many([Pair(f"The{word[:3]}", f"{word[3:]} is")]))
    assert split.joined
    assert split.trace[0].span[0] < len(f"The{word[:3]}") < split.trace[0].span[1]
    (clean,) = (score for _, score in engine.score_many([Pair("The question ", "is")]))
    assert not clean.joined
    assert clean.trace.meta["text"][slice(*clean.trace[0].span)] == " is"


@pytest.mark.parametrize(
    ("item", "what"),
    [
        (Pair("a", ""), "continuation: must have at least one token"),
        (Pair("", "a"), "context: must have at least one token"),
        (Pair([97], []), "continuation: must have at least one token"),
        (Pair("a", [97]), "continuation: must be text or ids"),
        ([999], "below 260"),
        ([], "prompt: must have at least one token"),
        ((CHAT, ""), "answer: must have at least one token"),
        ([97, "x"], "prompt: must be text or a list"),
    ],
)
def test_a_bad_item_stays_alone(engine: Engine, item: Any, what: str) -> None:
    given = RopechatError("from outside")
    before, bad, outside, after = (score for _, score in engine.score_many(["ab", item, given, "ab"]))
    assert isinstance(bad.error, RopechatError)
    assert what in str(bad.error)
    assert outside.error is given
    assert math.isnan(bad.logprob)
    assert len(bad.trace) == bad.tokens == 0
    assert before.logprob == after.logprob == -engine.score("ab").nll()


def test_an_item_that_fails_in_a_pass_stays_alone(engine: Engine) -> None:
    core_of(engine).poison = 80
    results = [score for _, score in engine.score_many(["ab", [97, 80], "ab"])]
    assert isinstance(results[1].error, NonFiniteError)
    assert results[0] == results[2]
    assert core_of(engine).sequences == {}


def test_items_are_read_as_they_are_worked_off(engine: Engine) -> None:
    read = 0

    def items() -> Iterator[Any]:
        nonlocal read
        for i in range(500):
            read += 1
            yield "ab" if i % 3 else RopechatError("x")

    results = engine.score_many(items(), window=2)
    for index in range(40):
        assert next(results)[0] == index
        assert read <= index + 1 + 4 * 2
    results.close()  # type: ignore[attr-defined]
    assert core_of(engine).sequences == {}


def test_rank_orders_choices(engine: Engine) -> None:
    scores = engine.rank("a", ["b", "c", "bc"])
    assert scores[0].is_greedy
    assert scores[0].logprob > scores[1].logprob
    assert [score.tokens for score in scores] == [1, 1, 2]
    with pytest.raises(RequestError, match="continuation"):
        engine.rank("a", ["b", ""])


# ---- Law 1


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [
        write_llama(tmp_path_factory.mktemp("a"), seed=3, max_position_embeddings=256),
        write_llama(
            tmp_path_factory.mktemp("b"),
            seed=4,
            hidden_size=40,
            head_dim=8,
            num_attention_heads=5,
            tie_word_embeddings=True,
            max_position_embeddings=256,
        ),
    ]


def test_scores_are_the_same_alone_together_and_from_the_cache(
    shapes: list[Path], rng: np.random.Generator
) -> None:
    for folder in shapes:
        context = rng.integers(0, 100, 90).tolist()
        tails = [rng.integers(0, 100, n).tolist() for n in (1, 2, 7, 40)]
        items = [Pair(context, tail) for tail in tails] + [context + tails[2], Pair(context[:33], tails[1])]
        expected: list[Score] = []
        for item in items:
            ((_, score),) = Engine.load(folder, dtype="f32", threads=1).score_many([item], top_k=5)
            expected.append(score)
        whole = Engine.load(folder, dtype="f32", threads=1).score(context + tails[2], top_k=5)
        assert bits(expected[2].trace) == bits(whole)[90:]
        for threads, window in ((1, 1), (2, 16), (3, 3)):
            engine = Engine.load(folder, dtype="f32", threads=threads)
            for _ in range(2):  # the second time from the cache
                assert [score for _, score in engine.score_many(items, top_k=5, window=window)] == expected
        assert [s.logprob for s in engine.rank(context, tails)] == [s.logprob for s in expected[:4]]


def test_choices_of_one_token_share_a_row(
    shapes: list[Path], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = rng.integers(0, 100, 40).tolist()
    rows: list[list[Any]] = [
        [Pair(context, [id]) for id in (5, 9, 7)],
        [Pair(context, [5]), Pair(context, [9, 7])],  # two tokens
        [Pair(context, [5]), Pair(context[1:], [5])],  # another context
        [Pair(context, [5])],
        [RequestError("bad")],
        [Pair(context * 7, [3]), Pair(context * 7, [4])],  # the last window of a long text
        [Pair(context[:7], [id]) for id in (1, 1)],
    ]
    shared: list[tuple[int, ...]] = []
    make = _Alike.window

    def window(alike: _Alike) -> Window:
        shared.append(make(alike).look_up)
        return make(alike)

    monkeypatch.setattr(_Alike, "window", window)

    def facts(score: Score) -> Any:
        tokens = [(token.index, token.id, token.logprob, token.rank) for token in score.trace.tokens]
        found = score.tokens, score.bytes, score.is_greedy, score.joined, str(score.error), tokens
        return found if score.error else (score.logprob, *found)

    engine = Engine.load(shapes[0], dtype="f32", threads=1)
    for size in (1, 16):
        shared.clear()
        found = dict(engine.score_rows(iter(rows), window=size))
        assert shared == [(5, 9, 7), (3, 4), (1, 1)]
        for index, row in enumerate(rows):
            alone = [score for _, score in engine.score_many(row)]
            assert [facts(score) for score in found[index]] == [facts(score) for score in alone]


def test_a_common_context_is_computed_once(shapes: list[Path], rng: np.random.Generator) -> None:
    engine = Engine.load(shapes[0], dtype="f32", threads=1)
    context = rng.integers(0, 100, 90).tolist()
    for cached in ((0, 89, 89), (89, 89, 89)):
        scores = engine.rank(context, [[1], [2, 3], [4]])
        assert tuple(score.cached_tokens for score in scores) == cached


def test_the_cache_serves_the_context(shapes: list[Path], rng: np.random.Generator) -> None:
    engine = load_core(shapes[0])
    ids = rng.integers(0, 100, 100).tolist()
    sequence = engine.score(ids, readout_top_k=0)
    while engine.step([sequence], CancelToken()):
        pass
    for start, reused in ((0, 0), (1, 0), (2, 1), (80, 79), (100, 99)):
        again = engine.score(ids, readout_top_k=0, start=start)
        assert engine.reused(again) == reused
        events = []
        while more := engine.step([again], CancelToken()):
            events += more
        assert [e.position for e in events if e.kind == "score"] == [*range(start, 100)]
        assert [e.kind for e in events][-1] == "next"
        engine.free(again)


def test_without_the_next_row_the_last_token_is_only_compared(shapes: list[Path]) -> None:
    engine, ids = load_core(shapes[0]), [5, 6, 7, 8]
    whole = engine.score(ids, readout_top_k=3)
    part = engine.score(ids, readout_top_k=3, start=2, read_next=False)
    events: dict[int, list[Any]] = {whole: [], part: []}
    while more := engine.step([whole, part], CancelToken()):
        for event in more:
            if event.kind != "prefill":
                events[event.sequence].append((event.kind, event.position, event.logprob, event.rank))
    assert events[part] == [event for event in events[whole] if event[0] == "score" and event[1] >= 2]
    for bad in ({"start": 5}, {"start": 4, "read_next": False}):
        with pytest.raises(RequestError, match="start"):
            engine.score(ids, readout_top_k=0, **bad)
    with pytest.raises(RequestError, match="start"):
        engine.score([5], readout_top_k=0, read_next=False)


def test_sums_equal_numpy(tiny: Path, rng: np.random.Generator) -> None:
    engine, model = Engine.load(tiny, dtype="f32", threads=2), Model.load(tiny)
    items = [Pair(rng.integers(0, 105, n).tolist(), rng.integers(0, 105, 9).tolist()) for n in range(1, 21)]
    for (_, score), pair in zip(engine.score_many(items), items, strict=True):
        ids = [*pair.context, *pair.continuation]
        rows = forward(ids, model).T.astype(np.float64)
        logprobs = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
        expected = sum(logprobs[i - 1, ids[i]] for i in range(len(pair.context), len(ids)))
        assert score.logprob == pytest.approx(expected, rel=1e-6)


# ---- Conversations


def test_texts_have_the_role_of_their_author(chat: Engine) -> None:
    trace = chat.score_stream(CHAT, by_author=True).trace()
    said = {role: bytes(t.id for t in trace if t.role == role) for role in ("system", "user", "assistant")}
    assert said == {"system": b"s", "user": b"hi", "assistant": b"yo"}
    assert {t.role for t in trace} == {"system", "user", "assistant", "template", "special"}
    text = trace.meta["text"]
    places = [(m["index"], m["role"], text[slice(*m["span"])]) for m in trace.meta["messages"]]
    assert places == [(0, "system", "s"), (1, "user", "hi"), (2, "assistant", "yo")]
    assert text.endswith("yo<|im_end|>\n")  # no prompt for another answer
    assert trace.nll() == trace.nll(("assistant",)) < trace.nll(("user", "assistant"))


def test_an_answer_is_scored_under_the_prompt(chat: Engine) -> None:
    messages = CHAT[:2]
    ((_, score),) = chat.score_many([(messages, "yo<|im_end|>")])
    prompt = chat.prompt_ids(messages)
    assert [t.id for t in score.trace] == [*b"yo<|im_end|>"]  # typed text stays text
    assert score.trace[0].index == len(prompt)
    assert (score.tokens, score.bytes) == (12, 12)
    everything = chat.score_stream((messages, "yo<|im_end|>"), by_author=True).trace()
    assert [t.id for t in everything][: len(prompt)] == prompt
    assert -everything.nll() == score.logprob
    assert everything.meta["messages"][-1]["role"] == "assistant"


def test_roles_need_messages(chat: Engine) -> None:
    prompts: list[Any] = ["a", [97], Pair("a", "b"), []]
    for prompt in prompts:
        with pytest.raises(RequestError, match="must be messages"):
            chat.score_stream(prompt, by_author=True)


# ---- Joining traces


def test_merged_traces_sum_up(engine: Engine, tmp_path: Path) -> None:
    one, two = engine.score("abc", top_k=2), engine.score("é!", top_k=2)
    both = Trace.merge([one, two])
    assert both.meta["text"] == "abcé!"
    assert [t.index for t in both] == [*range(6)]
    assert [t.span for t in both][3:] == [(3, 4), (4, 5), (5, 6)]
    assert both[4].row is not None
    assert both[4].row.position == 3
    assert both.nll() == pytest.approx(one.nll() + two.nll())
    assert both.next.position == 5
    with pytest.raises(RequestError, match="at least one"):
        Trace.merge([])
    with pytest.raises(RequestError, match="dtype"):
        Trace.merge([one, Trace(two.tokens, two.next, {**two.meta, "dtype": "q8_0"})])


def test_totals_are_those_of_fsum(rng: np.random.Generator, make: Callable[[float], Any]) -> None:
    from ropechat.trace import Totals

    values = (rng.normal(size=3000) * 10.0 ** rng.integers(-12, 12, 3000)).tolist()
    totals = Totals()
    for value in values:
        totals.add(make(value))
    assert totals.nll == -math.fsum(values)
    for bad in (-math.inf, math.nan):
        totals.add(make(bad))
    assert math.isnan(totals.nll)


@pytest.fixture
def make(engine: Engine) -> Callable[[float], Any]:
    import dataclasses

    token = engine.score("ab")[1]
    return lambda logprob: dataclasses.replace(token, logprob=logprob)


def test_contents_are_located_with_one_more_rendering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also trimmed ones; a template that changes them is asked for each."""
    trimming = CHATML.replace("m.content", "m.content | trim")
    upper = CHATML.replace("m.content", "(m.content | upper if m.role == 'user' else m.content)")
    for source, count, changes in ((CHATML, 2, False), (trimming, 2, False), (upper, 5, True)):
        config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": source}
        folder = byte_folder(tmp_path / str(len(source)), tokenizer_config=config)
        engine: Engine = load_fake(monkeypatch, folder, context=900)
        rendered = 0
        prompt = engine.prompts.template.prompt  # type: ignore[union-attr]

        def counted(*given: Any, prompt: Any = prompt, **rest: Any) -> str:
            nonlocal rendered
            rendered += 1
            return str(prompt(*given, **rest))

        monkeypatch.setattr(engine.prompts.template, "prompt", counted)
        contents = ["é ", " <|im_end|> é", " \n"]
        messages = [Message(role, text) for role, text in zip(Role, contents, strict=False)]
        text, _, places = engine.prompts.encode_by_author(messages)
        assert rendered == count
        found = [text.encode()[slice(*place)].decode() for _, place in places]
        expected = [text.strip() for text in contents] if source is trimming else contents
        # a control token's name in a message is a stand-in while the template runs
        assert found == (["é ", " <|im_end|> É", " \n"] if changes else expected)
