"""What engine.py adds to the compiled engine, on a bigram stand-in whose numbers can be recomputed."""

import math
import threading
from pathlib import Path
from typing import Any

import fake_core
import numpy as np
import pytest
from model_folders import (
    adds_bos,
    byte_folder,
    byte_tokenizer,
    chat_folder,
    core_of,
    golden_folder,
    load_fake,
    text_of,
    write_folder,
)

from ropechat.conversation import Message, Role
from ropechat.engine.engine import Engine
from ropechat.engine.reasoning import ReplyText
from ropechat.errors import (
    CancelledError,
    ChatTemplateError,
    ConfigError,
    ContextFullError,
    MemoryLimitError,
    ModelNotFoundError,
    RequestError,
    TokenizerError,
)
from ropechat.sampling import Sampling

GREEDY = Sampling(temperature=0, max_tokens=6, seed=5)


# ---- Loading


def test_facts_and_names(engine: Engine) -> None:
    assert engine.name == "bytes"
    assert (engine.context, engine.facts["vocab_size"]) == (64, 260)
    assert engine.stop_ids == {257}
    assert not engine.has_chat_template


def test_a_generic_folder_name_gets_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_fake(monkeypatch, byte_folder(tmp_path / "tiny" / "hf")).name == "tiny/hf"
    hub = byte_folder(tmp_path / "models--org--name" / "snapshots" / "0123")
    assert load_fake(monkeypatch, hub).name == "org/name"


def test_stop_ids_are_a_union(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = byte_folder(tmp_path, generation_config={"eos_token_id": [1, 2]}, eos_token_id=3)
    assert load_fake(monkeypatch, folder).stop_ids == {1, 2, 3, 257}
    assert load_fake(monkeypatch, chat_folder(tmp_path / "c")).stop_ids == {257, 259}
    bad = byte_folder(tmp_path / "bad", generation_config={"eos_token_id": "</s>"})
    with pytest.raises(ConfigError, match=r"generation_config\.json: eos_token_id"):
        load_fake(monkeypatch, bad)


def test_no_such_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFoundError, match="tried /"):
        load_fake(monkeypatch, tmp_path / "nowhere")
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(ModelNotFoundError, match="a folder with"):
        load_fake(monkeypatch, tmp_path / "model.bin")


def test_check_reads_no_weights(tmp_path: Path, engine: Engine) -> None:
    facts = Engine.check(byte_folder(tmp_path / "x"))
    assert (facts["vocab_size"], facts["tokenizer"], facts["stop_ids"]) == (260, 260, [257])
    with pytest.raises(TokenizerError):
        Engine.check(byte_folder(tmp_path / "y", vocab_size=259))


def test_a_folder_without_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_fake(monkeypatch, write_folder(tmp_path))
    steps = list(engine.generate([97], GREEDY))
    assert [step.id for step in steps] == [98, 99, 100, 101, 102, 103]
    assert [(step.text, step.bytes) for step in steps] == [("", b"")] * 6
    assert len(engine.score([97, 98])) == 2
    for call in (lambda: engine.generate("a"), lambda: engine.score("a")):
        with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
            call()


# ---- Whole arrays


def test_probabilities_are_softmax_rows(engine: Engine) -> None:
    ids = [*range(100)]
    table = fake_core.table(260)[ids].astype(np.float64)
    expected = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
    got = engine.probabilities(ids)
    assert got.dtype == np.float32
    assert got.shape == (100, 260)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert engine.logits(ids).argmax(axis=1).tolist() == [*range(1, 101)]


def test_arrays_above_the_limit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropechat.engine.validation.MAX_ARRAY_BYTES", 3 * 260 * 4)
    engine.logits([1, 2, 3])
    for call in (engine.logits, engine.probabilities):
        with pytest.raises(MemoryLimitError, match=r"got 4\.16 kB\), for 4 positions x 260 ids x 4 bytes"):
            call([1, 2, 3, 4])


@pytest.mark.parametrize("ids", [[], [-1], [2**32], [1.5], ["a"], 5, b"ab", bytearray(b"ab")])
def test_ids_that_are_none(engine: Engine, ids: Any) -> None:
    for call in (engine.logits, engine.generate, engine.score):
        with pytest.raises(RequestError):
            call(ids)


def test_ids_may_come_from_numpy(engine: Engine) -> None:
    assert text_of(engine.generate(np.array([97]), GREEDY)) == "bcdefg"


# ---- Generating


def test_steps_carry_the_record(engine: Engine) -> None:
    steps = list(engine.generate("ab", GREEDY, top_k=3))
    assert [step.text for step in steps] == [*"cdefgh"]
    assert [step.position for step in steps] == [2, 3, 4, 5, 6, 7]
    assert [step.finish_reason for step in steps] == [None] * 5 + ["length"]
    logits = fake_core.table(260)[98].astype(np.float64)
    first, lse = steps[0], math.log(np.exp(logits).sum())
    assert math.isclose(first.logprob, logits[99] - lse)
    assert (first.rank, first.bytes, first.u, first.stages) == (1, b"c", None, ())
    assert first.row is not None
    assert first.row.position == 1
    assert [id for id, _ in first.top] == np.argsort(-logits)[:3].tolist()
    assert core_of(engine).sequences == {}


def test_sampled_steps_say_how(engine: Engine) -> None:
    sampling = Sampling(max_tokens=5, seed=3)
    steps = list(engine.generate("a", sampling))
    assert [step.id for step in steps] == [step.id for step in engine.generate("a", sampling)]
    assert all(step.u is not None and step.stages[0].name == "temperature" for step in steps)
    fresh = {
        tuple(s.id for s in engine.generate("a", Sampling(max_tokens=5, temperature=9))) for _ in range(4)
    }
    assert len(fresh) > 1


def test_the_stop_id_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_fake(monkeypatch, byte_folder(tmp_path, eos_token_id=100))
    steps = list(engine.generate("a", GREEDY))
    assert [(s.id, s.text, s.finish_reason) for s in steps] == [
        (98, "b", None),
        (99, "c", None),
        (100, "", "stop"),
    ]


def test_the_context_ends_a_text(engine: Engine) -> None:
    steps = list(engine.generate([97] * 60, Sampling(temperature=0)))
    assert len(steps) == 4
    assert steps[-1].finish_reason == "context"
    with pytest.raises(ContextFullError):
        list(engine.generate([97] * 65))


@pytest.mark.parametrize("kind", ["bl", "sp"])
def test_text_of_steps_is_the_continuation(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load_fake(monkeypatch, golden_folder(tmp_path, kind, 700))
    prompt = engine.tokenizer.encode("Hello wor")
    for seed in range(40):
        sampling = Sampling(temperature=50, max_tokens=15, seed=seed)
        steps = list(engine.generate(prompt, sampling, top_k=1))
        new = [step.id for step in steps if step.finish_reason != "stop"]
        assert engine.tokenizer.decode(prompt) + "".join(
            step.text for step in steps
        ) == engine.tokenizer.decode(prompt + new)


# ---- Stop strings


def test_a_stop_string_ends_the_text_and_is_no_part_of_it(engine: Engine) -> None:
    steps = list(engine.generate("a", GREEDY, stop=["ef"]))
    assert [(s.id, s.text, s.finish_reason) for s in steps] == [
        (98, "b", None),
        (99, "c", None),
        (100, "d", None),
        (101, "", None),
        (102, "", "stop"),
    ]


def test_the_beginning_of_a_stop_string_comes_out_later(engine: Engine) -> None:
    steps = list(engine.generate("a", GREEDY, stop=["dex", "g!"]))
    assert [step.text for step in steps] == ["b", "c", "", "", "def", "g"]
    assert len({step.id for step in steps}) == 6


def test_the_first_of_several_stop_strings_wins(engine: Engine) -> None:
    assert text_of(engine.generate("a", GREEDY, stop=["e", "cde"])) == "b"


@pytest.mark.parametrize("stop", ["x", [""], [5], ["x"] * 17, ["x" * 1001]])
def test_stop_strings_that_are_none(engine: Engine, stop: Any) -> None:
    with pytest.raises(RequestError, match="stop: "):
        engine.generate("a", stop=stop)


def test_a_stop_string_in_a_pending_byte_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte tokens are held back until their run ends; a stop string in the run must not wait for that."""
    engine = load_fake(monkeypatch, golden_folder(tmp_path, "sp", 700))
    reply = ReplyText(engine.tokenizer.stream(engine.tokenizer.encode("a")), ["\n"])
    assert reply.push(3 + 0x21).text == ""
    assert (reply.push(3 + 0x0A).text, reply.stopped) == ("!", True)


def _cut(text: str, stops: list[str]) -> int | None:
    return min((at for at in map(text.find, stops) if at >= 0), default=None)


def test_random_stop_strings(engine: Engine) -> None:
    """Against the plain way: the first text that holds a stop string is cut there."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        whole = "".join(rng.choice([*"ab"], size=12))
        stops = ["".join(rng.choice([*"ab"], size=rng.integers(1, 5))) for _ in range(2)]
        reply, pieces = ReplyText(engine.tokenizer.stream(), stops), list[str]()
        for character in whole:
            pieces.append(reply.push(ord(character)).text)
            if reply.stopped:
                break
        else:
            pieces.append(reply.finish().text)
        begun = [at for at in (_cut(whole[:end], stops) for end in range(13)) if at is not None]
        assert "".join(pieces) == whole[: begun[0] if begun else 12]


# ---- Cancelling


def test_closing_the_iterator_frees_the_sequence(engine: Engine) -> None:
    steps = engine.generate("a", GREEDY)
    next(steps)
    assert core_of(engine).sequences
    steps.close()
    assert core_of(engine).sequences == {}
    assert text_of(engine.generate("a", GREEDY)) == "bcdefg"


def test_cancel_from_another_thread(engine: Engine) -> None:
    """The flag is set while the third pass runs: that pass still gives its token, no fourth begins."""
    core, count = core_of(engine), 0

    def on_third() -> None:
        nonlocal count
        count += 1
        if count == 4:
            thread = threading.Thread(target=engine.cancel)
            thread.start()
            thread.join()

    core.before_step = on_third
    assert text_of(engine.generate("a", GREEDY)) == "bcd"
    assert core.sequences == {}
    core.before_step = None
    assert text_of(engine.generate("a", GREEDY)) == "bcdefg"


def test_cancel_between_steps_and_before_the_first(engine: Engine) -> None:
    steps = engine.generate("a", GREEDY)
    engine.cancel()
    assert list(steps) == []
    steps = engine.generate("a", GREEDY)
    assert next(steps).text == "b"
    engine.cancel()
    assert list(steps) == []
    assert core_of(engine).sequences == {}


def test_a_token_made_while_cancelled_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_of(engine)
    advance = core._advance
    monkeypatch.setattr(core, "_advance", lambda number: (advance(number), engine.cancel())[0])
    steps = list(engine.generate("a", GREEDY))
    assert [(step.text, step.finish_reason) for step in steps] == [("b", "cancelled")]


def test_cancel_reaches_only_what_runs(engine: Engine) -> None:
    engine.cancel()
    assert text_of(engine.generate("a", GREEDY)) == "bcdefg"
    engine.generate("a", GREEDY)  # never started, thrown away
    assert len(engine._requests) == 0


def test_cancel_of_a_score_is_an_error(engine: Engine) -> None:
    core_of(engine).before_step = engine.cancel
    with pytest.raises(CancelledError):
        engine.score("abcdefgh")
    assert core_of(engine).sequences == {}


def test_an_engine_as_a_context_manager_is_closed_at_the_end(engine: Engine) -> None:
    with engine as same:
        assert same is engine
        assert text_of(engine.generate("a", GREEDY)) == "bcdefg"
    with pytest.raises(RequestError, match="closed"):
        engine.generate("a")


def test_close(engine: Engine) -> None:
    steps = engine.generate("a", GREEDY)
    next(steps)
    engine.close()
    assert list(steps) == []
    with pytest.raises(RequestError, match="closed"):
        engine.generate("a")


# ---- Prefill


def test_prefill_is_reported(engine: Engine) -> None:
    seen: list[tuple[int, int]] = []
    list(engine.generate("abcdefghij", GREEDY, on_prefill=lambda done, total: seen.append((done, total))))
    assert seen == [(0, 10), (4, 10), (8, 10), (10, 10)]


# ---- Going on from given ids


def test_a_prefix_is_spelled_and_continued(engine: Engine) -> None:
    messages = [Message(Role.USER, "xy")]
    snowman = [*"☃".encode()]
    assert [said.text for said in engine.spell(messages, [97, *snowman])] == ["a", "", "", "☃"]
    assert engine.reply_ids(messages, "a☃") == [97, *snowman]
    steps = list(engine.reply(messages, GREEDY, prefix=[*b"zab"]))
    assert "".join(step.text for step in steps) == "cdefgh"
    assert steps[0].position == len(b"xyzab")
    last = next(engine.reply(messages, GREEDY, prefix=snowman[:2]))
    assert last.text == bytes([*snowman[:2], last.id]).decode()  # two bytes of a character were pending
    with pytest.raises(RequestError, match="prompt: must be text or a list of token ids"):
        engine.reply(messages, GREEDY, prefix=["a"])  # type: ignore[list-item]


# ---- Chat


def test_completion_mode_concatenates(engine: Engine) -> None:
    messages = [Message(Role.SYSTEM, "x"), Message(Role.USER, "yza")]
    assert engine.prompt_ids(messages) == [*b"xyza"]
    assert text_of(engine.reply(messages, GREEDY)) == "bcdefg"


def test_messages_may_be_mappings(engine: Engine) -> None:
    dicts = [{"role": "system", "content": "x"}, {"role": "user", "content": "yza"}]
    messages = [Message(Role.SYSTEM, "x"), Message(Role.USER, "yza")]
    assert engine.prompt_ids(dicts) == engine.prompt_ids(messages)
    assert text_of(engine.reply(dicts, GREEDY)) == "bcdefg"
    assert [done.text for _, done in engine.generate_many([dicts], GREEDY)] == ["bcdefg"]
    assert engine.score(dicts).nll() == engine.score(messages).nll()
    assert [score.logprob for _, score in engine.score_many([(dicts, "b")])] == [
        score.logprob for _, score in engine.score_many([(messages, "b")])
    ]


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ("hi", r"messages\[0\]: must be a Message, or have role and content \(got 'h'\)"),
        ([{"role": "user"}], r"messages\[0\]\.content: must be a string \(got None\)"),
        ([Message(Role.USER, "a"), {"content": "a"}], r"messages\[1\]\.role: must be one of system, user, "),
        ([Message("bot", "a")], r"messages\[0\]\.role: must be one of .* \(got 'bot'\)"),  # type: ignore[arg-type]
        ([Message(Role.USER, None)], r"messages\[0\]\.content: must be"),  # type: ignore[arg-type]
    ],
)
def test_messages_that_are_none(engine: Engine, messages: Any, fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        engine.reply(messages)


@pytest.mark.parametrize("items", ["several", b"ab", 5])
def test_one_text_in_place_of_several_is_refused(engine: Engine, items: Any) -> None:
    with pytest.raises(RequestError, match="prompts: must be a list"):
        engine.generate_many(items)
    with pytest.raises(RequestError, match="items: must be a list"):
        engine.score_many(items)
    with pytest.raises(RequestError, match="choices: must be a list"):
        engine.rank("a", items)


def test_a_prompt_of_a_wrong_type_fails_alone(engine: Engine) -> None:
    prompts: Any = ["a", 5, b"ab"]
    done = [(made.text, type(made.error)) for _, made in engine.generate_many(prompts, GREEDY)]
    assert done == [("bcdefg", type(None)), ("", RequestError), ("", RequestError)]


@pytest.mark.parametrize(
    ("template", "bos", "expected"),
    [
        ("{{ messages[0].content }}", None, b"hi"),
        ("{{ messages[0].content }}", adds_bos(), [256, *b"hi"]),
        ("{{ bos_token }}{{ messages[0].content }}", adds_bos(), [256, *b"hi"]),
        ("{{ bos_token }}{{ messages[0].content }}", None, [256, *b"hi"]),
    ],
)
def test_exactly_one_bos(
    template: str, bos: Any, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    data = byte_tokenizer(post_processor=bos)
    engine = load_fake(monkeypatch, byte_folder(tmp_path, tokenizer=data, tokenizer_config=config))
    assert engine.has_chat_template
    assert engine.prompt_ids([Message(Role.USER, "hi")]) == [*expected]


def test_a_template_that_fails_leaves_generate_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"eos_token": "</s>", "chat_template": "{% if %}"}
    engine = load_fake(monkeypatch, byte_folder(tmp_path, tokenizer_config=config))
    with pytest.raises(ChatTemplateError):
        engine.reply([Message(Role.USER, "a")])
    assert text_of(engine.generate("a", GREEDY)) == "bcdefg"
