"""The model that comes with ropechat: loaded and asked, as the trained model that tests may use."""

import dataclasses
import json
import random
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ropechat import Engine, Sampling, builtin
from ropechat.conversation import Message, Role
from training import evaluate, questions
from training.corpus import SOURCES, dialogues
from training.curves import svg
from training.dataset import BUCKETS, Batch, batches, examples
from training.evaluate import ask, faults_of, loops
from training.patterns import draw, expand, normal, part_of, wordings

GREEDY = Sampling(temperature=0, max_tokens=300)
MAX_WHEEL_BYTES = 16_000_000
MAX_PARAMETERS = 12_000_000
NUMBERS = [
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
]


@pytest.fixture(scope="module", autouse=True)
def few_known_words() -> Iterator[None]:
    """The words of a part of the corpus are enough here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "KNOWN_FROM", 5000)
        yield


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(builtin.NAME)


def answer(engine: Engine, *texts: str) -> str:
    """The last answer of a chat; each must end by itself."""
    chat: list[Message] = []
    for text in texts:
        chat.append(Message(Role.USER, text))
        steps = list(engine.reply(chat, GREEDY))
        assert steps[-1].finish_reason == "stop"
        chat.append(Message(Role.ASSISTANT, "".join(step.text for step in steps)))
    return chat[-1].content


# ---- The model


@pytest.mark.parametrize(
    ("texts", "key"),
    [
        (["What is the capital of France?"], "Paris"),
        (["how do i stop an answer"], r"Esc|Ctrl\+C"),
        (["What is a token?"], "piece|part|word"),
        (["Who won the world cup in 1974?"], "not know|no idea|cannot"),
        (["What is the capital of Spain?", "And of Italy?"], "Rome"),
    ],
)
def test_it_answers(engine: Engine, texts: list[str], key: str) -> None:
    assert re.search(key, answer(engine, *texts)), answer(engine, *texts)


@pytest.mark.slow
def test_some_of_the_evaluation(engine: Engine) -> None:
    """The whole of it is `python -m training.evaluate`; the card has its figures."""
    asked = [one for one in questions.questions() if one["part"] == "test"]
    some = random.Random(0).sample(asked, 6)
    good = sum(not ask(engine, question).faults for question in some)
    assert good >= 3


def test_it_knows_its_size(engine: Engine) -> None:
    said = answer(engine, "How many parameters do you have?")
    found = re.search(r"([\w.]+) million", said)
    assert found, said
    millions = float(NUMBERS.index(found[1].lower()) if found[1].lower() in NUMBERS else found[1])
    assert millions == pytest.approx(engine.facts["num_parameters"] / 1e6, rel=0.15), said


@pytest.mark.slow
def test_it_is_small_and_complete(engine: Engine) -> None:
    """In the wheel, which is compressed."""
    names = ["config.json", "generation_config.json", "model.safetensors", "MODEL_CARD.md"]
    names += ["tokenizer.json", "tokenizer_config.json"]
    sizes = [len(zlib.compress((builtin.FOLDER / name).read_bytes())) for name in names]
    assert sum(sizes) <= MAX_WHEEL_BYTES
    assert engine.facts["num_parameters"] <= MAX_PARAMETERS
    config = json.loads((builtin.FOLDER / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_every_byte_has_a_token(engine: Engine) -> None:
    text = "naïve 漢字 🙂 \t\x07 ÿ" + "".join(map(chr, range(32, 300)))
    ids = engine.tokenizer.encode(text)
    assert b"".join(engine.tokenizer.token_bytes(id) for id in ids).decode() == text
    assert len(engine.tokenizer.encode("2026")) == 4


def test_no_candidates_have_no_mass(engine: Engine) -> None:
    """Not -0.0, which is what a sum of nothing is in Rust."""
    trace = engine.score("Hi there", top_k=0)
    rows = [trace.next, *(token.row for token in trace if token.row is not None)]
    assert [str(row.top_mass) for row in rows] == ["0.0"] * len(rows)


def test_varentropy_is_the_variance_of_the_log_probability(engine: Engine) -> None:
    """Over the whole vocabulary, in every row; and a row without candidates is otherwise the same."""
    ids = engine.tokenizer.encode("Once upon a time there was a little girl.")
    trace = engine.score(ids, top_k=5)
    rows = [token.row for token in trace if token.row is not None]
    for row, logits in zip([*rows, trace.next], engine.logits(ids).astype(np.float64), strict=True):
        weights = np.exp(logits - logits.max())
        variance = np.average((logits - np.average(logits, weights=weights)) ** 2, weights=weights)
        assert row.varentropy == pytest.approx(variance, rel=1e-9)
    few, none = engine.score(ids, top_k=1), engine.score(ids, top_k=0)
    assert [token.row.varentropy for token in few if token.row] == [row.varentropy for row in rows]
    assert {token.row.varentropy for token in none if token.row} == {None}
    assert [token.entropy for token in none] == [token.entropy for token in trace]
    step = next(iter(engine.generate(ids, Sampling(temperature=1.0, max_tokens=1), top_k=3)))
    assert step.row is not None
    assert step.row.varentropy == trace.next.varentropy


def test_no_model_named_is_the_builtin_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROPECHAT_MODEL", raising=False)
    code = "import sys; from ropechat.cli import main; sys.argv[0] = 'ropechat'; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        code,
        "run",
        "--temperature",
        "0",
        "--quiet",
        "What is the capital of Japan?",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Tokyo" in done.stdout) == (0, True), done.stderr


# ---- Patterns and the split


def test_patterns_are_expanded() -> None:
    pattern = r"(a|b(c|)) d\|(e|)"
    found = {expand(pattern, random.Random(seed)) for seed in range(60)}
    assert found == {"a d|", "a d|e", "b d|", "b d|e", "bc d|", "bc d|e"}
    assert wordings(pattern) == 6
    with pytest.raises(ValueError, match="closes"):
        expand("a)b", random.Random(0))


def test_parts_do_not_share_wordings() -> None:
    patterns = ["(what is|explain|define|describe|tell me about) (the|a|some|this|that) {x}( please|)"]
    rng = random.Random(1)
    drawn = {part: {draw(patterns, rng, part) for _ in range(400)} for part in ("train", "dev", "test")}
    assert all(part_of(wording) == part for part, found in drawn.items() for wording in found if wording)
    assert len(drawn["train"]) > 30
    assert drawn["test"]


@pytest.mark.slow
def test_no_question_of_the_evaluation_is_learned() -> None:
    banned = questions.banned()
    chats = dialogues(5, "train", banned)
    for chat in (next(chats) for _ in range(1500)):
        assert banned.isdisjoint(normal(turn.question) for turn in chat.turns)


def test_the_evaluation_is_as_big_as_it_says() -> None:
    asked = [one for one in questions.questions() if one["part"] == "test"]
    counts = {group: sum(one["group"] == group for one in asked) for group in questions.COUNTS}
    assert counts == questions.COUNTS


def test_the_same_seed_gives_the_same_corpus() -> None:
    first, second, other = dialogues(3, "train"), dialogues(3, "train"), dialogues(4, "train")
    made = [[next(source) for _ in range(50)] for source in (first, second, other)]
    assert made[0] == made[1] != made[2]


@pytest.mark.slow
def test_every_source_satisfies_its_own_keys() -> None:
    rng = random.Random(2)
    for name, (_, source) in SOURCES.items():
        made = [turns for turns in (source(rng, "train") for _ in range(60)) if turns]
        assert made, name
        for turn in (turn for turns in made for turn in turns):
            assert not faults_of(turn.answer, turn.answer, turn.keys, ended=True), turn


# ---- The evaluation's own checks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "ended", "fault"),
    [
        ("The capital of France is Paris.", True, ""),
        ("The capital of France is Rome.", True, "lacks"),
        ("The capital of France is Paris.", False, "did not end"),
        ("Paris. " + "The capital of France is a large city. " * 4, True, "loops"),
        ("Paris blorf grumpf zzyx wobbel", True, "no words"),
        ("", True, "empty"),
    ],
)
def test_what_is_acceptable(text: str, ended: bool, fault: str) -> None:
    found = "; ".join(faults_of("What is the capital of France?", text, ["Paris"] if text else [], ended))
    assert (fault in found) if fault else not found


def test_a_list_is_no_loop() -> None:
    assert not loops("\n".join(f"{at}. apple pie" for at in range(9)))


# ---- The training


def test_batches_hold_every_dialogue_padded(engine: Engine) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(builtin.FOLDER / "tokenizer.json"))
    made = examples(tokenizer, 1, "train", 200)
    source = batches(made, 1024, 1)
    for batch in (next(source) for _ in range(10)):
        assert isinstance(batch, Batch)
        assert batch.weights.shape == (batch.ids.shape[0], batch.ids.shape[1] - 1)
        assert batch.weights.shape[1] in BUCKETS
        assert batch.weights[batch.ids[:, 1:] == 0].sum() <= len(batch.ids)  # padding counts for nothing


def test_examples_are_what_the_chat_template_renders(engine: Engine) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(builtin.FOLDER / "tokenizer.json"))
    chats = dialogues(1, "train", questions.banned())
    learned = examples(tokenizer, 1, "train", 20, questions.banned())
    for example in learned:
        chat = next(chats)
        if chat.text:
            continue
        messages = [Message(Role.SYSTEM, chat.system)] if chat.system else []
        for turn in chat.turns[:-1]:
            messages += [Message(Role.USER, turn.question), Message(Role.ASSISTANT, turn.answer)]
        messages.append(Message(Role.USER, chat.turns[-1].question))
        head = engine.prompt_ids(messages)
        assert list(example.ids[: len(head)]) == head


def test_curves_are_drawn() -> None:
    picture = svg({"RoPE": [(0, 3.0), (100, 1.0)], "none": [(0, 3.0), (100, 2.0)]})
    assert picture.count("<polyline") == 4
    assert "RoPE" in picture


def test_an_interrupted_training_ends_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from training.train import Recipe, Run, prepared, train

    recipe = Recipe(steps=6, batch_tokens=512, dialogues=60, held_out=20, hidden=32, layers=1, heads=2)

    def weights(name: str, until: int) -> list[float]:
        work = tmp_path / name
        work.mkdir(exist_ok=True)
        tokenizer, learned, held = prepared(recipe, work)
        run = Run(recipe, work, tokenizer.get_vocab_size())
        train(run, learned, held, until)
        run.save()
        return [
            value for parameter in run.model.parameters() for value in parameter.detach().flatten().tolist()
        ]

    whole = weights("whole", 6)
    weights("cut", 3)
    assert weights("cut", 6) == whole


def test_only_the_number_of_steps_may_change_when_a_training_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from training.train import Recipe, Run, prepared, train

    shape = {"dialogues": 20, "held_out": 5, "batch_tokens": 256, "hidden": 64, "layers": 1, "heads": 2}
    short = Recipe(**shape, kv_heads=1, intermediate=96, steps=2)
    tokenizer, learned, held = prepared(short, tmp_path)
    size = tokenizer.get_vocab_size()
    train(Run(short, tmp_path, size), learned, held)
    longer = Run(dataclasses.replace(short, steps=4), tmp_path, size)
    assert longer.step == 2
    train(longer, learned, held)
    assert longer.step == 4
    assert Run(dataclasses.replace(short, steps=4), tmp_path, size).step == 4
    with pytest.raises(SystemExit, match="another recipe"):
        Run(dataclasses.replace(short, steps=4, seed=2), tmp_path, size)


def test_the_engine_computes_what_was_trained(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from training.export import export
    from training.train import Recipe, Run, prepared

    recipe = Recipe(dialogues=20, held_out=5, hidden=64, layers=2, heads=4, kv_heads=2, intermediate=96)
    tokenizer, _, _ = prepared(recipe, tmp_path)
    run = Run(recipe, tmp_path, tokenizer.get_vocab_size())
    run.save()
    export(tmp_path, tmp_path / "model")
    ids = tokenizer.encode("What is the capital of France? 3 + 4").ids
    got = torch.from_numpy(Engine.load(tmp_path / "model", dtype="f32").logits(ids))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = run.model(torch.tensor([ids]))[0].float()
        expected = hidden @ run.model.embed_tokens.weight.T
    assert (got - expected).abs().max() < 0.03 * expected.abs().max()
