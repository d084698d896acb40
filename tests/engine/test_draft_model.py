"""A draft model changes nothing but the speed; `test_speculative.py` compares random answers.

Here: which models may draft, that drafts are accepted, on every instruction set, and what a cancelled, forked
or freed sequence leaves behind.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from core import Core, add, generate, generate_with_cancels, load
from golden_cases import GOLDEN
from model_folders import byte_tokenizer

from ropechat import Engine, Job, Message, Role, Sampling
from ropechat.builtin import FOLDER
from ropechat.errors import RequestError

ASKED = [Message(Role.USER, "Tell a story about a fox.")]


def fewer_layers(folder: Path, layers: int) -> Path:
    """The built-in model without its last layers: its tokens are right now and then."""
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    return folder


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fewer_layers(tmp_path_factory.mktemp("draft") / "shallow", 2)


@pytest.fixture(scope="module")
def plain() -> Engine:
    return Engine.load("builtin", threads=2, speculative="off")


def with_draft(draft: Path | str, mode: str = "always", **options: Any) -> Engine:
    return Engine.load("builtin", threads=2, speculative=mode, draft=draft, **options)


# ---- which models may draft


def write_tokenizer(folder: Path, **changes: Any) -> Path:
    """A golden model of 288 ids with a byte-level tokenizer of 260."""
    shutil.copytree(GOLDEN / "gpt2_old", folder)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer(**changes)))
    return folder


def test_the_first_id_with_another_token_is_named(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "target")
    other = byte_tokenizer()["model"]
    vocab = other["vocab"] | {"b": 97, "a": 98}
    draft = write_tokenizer(tmp_path / "draft", model=other | {"vocab": vocab})
    what = r"draft: draft: .* vocabulary of .*target: id 97 is b'b' \(must be b'a'\)"
    with pytest.raises(RequestError, match=what):
        Engine.load(model, draft=draft)


def test_ids_that_only_one_of_them_has_are_no_difference(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "target")
    added = byte_tokenizer()["added_tokens"]
    draft = write_tokenizer(tmp_path / "draft", added_tokens=added[:2])
    engine = Engine.load(model, draft=draft, speculative="always")
    steps = list(engine.generate("ab", Sampling(temperature=0, max_tokens=20)))
    assert steps == list(Engine.load(model).generate("ab", Sampling(temperature=0, max_tokens=20)))


def test_a_model_without_a_tokenizer_to_compare_is_refused(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "target")
    with pytest.raises(RequestError, match="draft: gpt2_old: gpt2_old has no tokenizer to compare"):
        Engine.load(model, draft=GOLDEN / "gpt2_old")


# ---- what is accepted


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_copy_of_the_model_is_nearly_always_right(plain: Engine, temperature: float) -> None:
    engine = with_draft("builtin")
    drafted = drawn = 0
    for seed in range(3):
        sampling = Sampling(temperature=temperature, seed=seed, max_tokens=64)
        expected = list(plain.reply(ASKED, sampling, top_k=2))
        steps = list(engine.reply(ASKED, sampling, top_k=2))
        assert steps == expected
        drafted, drawn = drafted + sum(step.drafted for step in steps), drawn + len(steps)
    # Of 16 tokens that a step makes at most, the last one is not drafted; nor is the first of an answer.
    assert drafted / drawn > 0.85, f"{drafted} of {drawn}"


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["", "scalar", "avx2", "avx512"])
def test_another_model_is_right_now_and_then(
    shallow: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPECHAT_ISA", isa)
    try:
        plain = Engine.load("builtin", threads=2, speculative="off")
    except RequestError as error:
        pytest.skip(f"this CPU: {error}")
    engine = with_draft(shallow)
    drafted = drawn = 0
    for temperature, penalty in ((0.0, 1.3), (0.8, 1.0)):
        sampling = Sampling(
            temperature=temperature,
            repetition_penalty=penalty,
            seed=1,
            max_tokens=48,
            logit_bias=((3, 2.0),),
        )
        steps = list(engine.reply(ASKED, sampling, top_k=2))
        assert steps == list(plain.reply(ASKED, sampling, top_k=2))
        drafted, drawn = drafted + sum(step.drafted for step in steps), drawn + len(steps)
    assert 0 < drafted < drawn


@pytest.mark.slow
def test_what_the_clock_decides_is_the_same(plain: Engine, shallow: Path) -> None:
    for draft in ("builtin", shallow):
        engine = with_draft(draft, "auto")
        for temperature in (0.0, 0.8):
            jobs = [Job(f"Once upon a time there was a {word}") for word in ("fox", "cat", "house")]
            sampling = Sampling(temperature=temperature, max_tokens=60, seed=2)
            found = list(engine.generate_many(jobs, sampling, window=3))
            assert found == list(plain.generate_many(jobs, sampling, window=3))


# ---- what is left behind


@pytest.mark.slow
def test_forks_and_stopped_answers_go_on_as_without(plain: Engine, shallow: Path) -> None:
    """An answer is stopped midway, forked at each of several tokens, and asked for again."""
    engine = with_draft(shallow)
    sampling = Sampling(temperature=0.8, seed=4, max_tokens=60)
    expected = list(plain.reply(ASKED, sampling))
    source = random.Random(5)
    for _ in range(4):
        stopped = engine.reply(ASKED, sampling)
        for _ in range(source.randrange(1, 30)):
            next(stopped)
        at = source.randrange(1, len(expected))
        prefix = [step.id for step in expected[:at]]
        forked = list(engine.reply(ASKED, sampling, prefix=prefix))  # while the other one is open
        assert forked == list(plain.reply(ASKED, sampling, prefix=prefix))
        other = sampling.__class__(temperature=0.8, seed=source.randrange(99), max_tokens=20)
        assert list(engine.reply(ASKED, other, prefix=prefix)) == list(
            plain.reply(ASKED, other, prefix=prefix)
        )
        stopped.close()
    assert list(engine.reply(ASKED, sampling)) == expected


def test_a_cancelled_step_leaves_no_draft() -> None:
    model = GOLDEN / "llama3_new"
    ids = [5, 6, 7, 8, 9, 3, 2]
    expected, _, _ = generate(load(model, speculative="off"), ids, 40)
    drafting = Core.load(
        str(model), dtype="f32", threads=1, context=512, speculative="always", draft=str(model)
    )
    sequence = add(drafting, ids, 40)
    found, drafted = generate_with_cancels(drafting, sequence, 40)
    assert found == expected
    assert drafted > 20


@pytest.mark.slow
def test_the_draft_models_cache_is_counted_and_freed() -> None:
    plain, engine = Engine.load("builtin", threads=2, speculative="off"), with_draft("builtin")
    answer = engine.generate("Once upon a time", Sampling(max_tokens=40, temperature=0))
    alone = plain.generate("Once upon a time", Sampling(max_tokens=40, temperature=0))
    for _ in range(20):
        next(answer)
        next(alone)
    assert engine.kv_bytes >= 2 * plain.kv_bytes > 0
    answer.close()
    alone.close()
    kept = engine.kv_bytes
    for _ in range(20):
        list(engine.generate("Once upon a time", Sampling(max_tokens=40, temperature=0)))
    assert engine.kv_bytes <= 2 * kept


# ---- the command line


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    from ropechat.cli import main

    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
def test_run_and_batch_write_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shallow: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(f'{{"prompt": "Tell of a {word}."}}\n' for word in ("fox", "crow", "boat", "mill"))
    )
    grammar = ("--regex", "([a-z]+ ){8}")
    for temperature, variants in ((0, [("--repetition-penalty", 1.2)]), (0.8, [(), grammar])):
        options = ("--temperature", temperature, "--seed", 3, "--max-tokens", 60)
        for more in variants:
            written = []
            for draft in ((), ("--draft", shallow)):
                trace = tmp_path / "trace.jsonl"
                code, out, err = run(
                    capsys, "run", "Tell of a river.", *options, *more, *draft, "--trace", trace
                )
                assert code == 0
                assert ("draft model: dtype: " in err) == bool(draft)
                lines = [json.loads(line) for line in trace.read_text().splitlines()]
                for line in lines:
                    line.pop("drafted", None)
                written.append((out, lines))
            assert written[0] == written[1]
        outputs = []
        for draft in ((), ("--draft", shallow)):
            out_file = tmp_path / f"{len(draft)}-{temperature}.jsonl"
            assert run(capsys, "batch", rows, "-o", out_file, *options, *draft)[0] == 0
            outputs.append(out_file.read_bytes())
        assert outputs[0] == outputs[1]


def test_a_draft_model_that_is_refused_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tokenizer(tmp_path / "other")
    code, out, err = run(capsys, "run", "--draft", other, "x")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "other: must have the vocabulary of builtin: id 0 is" in err
    assert run(capsys, "run", "--draft", other, "--no-speculative", "--max-tokens", 1, "x")[0] == 0
    code, _, err = run(capsys, "run", "--draft", tmp_path / "missing", "x")
    assert code in (2, 4)
    assert err.startswith(f"error: {tmp_path / 'missing'}: ")
    settings = tmp_path / "config.toml"
    settings.write_text(f'draft = "{other}"\n')
    monkeypatch.setenv("ROPECHAT_CONFIG", str(settings))
    assert "other: must have the vocabulary" in run(capsys, "run", "x")[2]
