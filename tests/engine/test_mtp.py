"""Multi-token prediction: a model's own layer drafts, and changes nothing but the speed.

The layer reads the embedding of the next token and the model's hidden state at this one. Here are models in
which either of them, or the text before, says what comes next, so that its drafts are right if it is given
the right one.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core import add, drain, generate, generate_with_cancels, load
from gguf_hybrids import HybridConverter
from golden_cases import GOLDEN
from models import write_safetensors
from reference import read_safetensors

from ropechat import Engine, Job, Sampling
from ropechat.errors import TensorError

SOURCE = GOLDEN / "qwen3_5_text"  # two layers of Gated DeltaNet, one of attention
OTHERS = [
    GOLDEN / name
    for name in ("qwen3_next", "qwen3_5_moe_text", "glm4_moe", "glm4_moe_lite", "deepseek_v3_old")
]
HIDDEN, USED = 32, 24
PROMPT = [3, 8, 1, 20, 11, 6, 2, 9, 15, 4]
Tensors = dict[str, np.ndarray]


def write(folder: Path, tensors: Tensors, source: Path = SOURCE, **config: Any) -> Path:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("golden*", "*.safetensors"))
    values = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(values))
    listed = [(name, value.shape, value.astype("<f4").tobytes()) for name, value in tensors.items()]
    write_safetensors(folder / "model.safetensors", listed, "f32")
    return folder


def with_mtp(tensors: Tensors, fc: np.ndarray, last: int = 2) -> Tensors:
    """The same with a layer for multi-token prediction that is a copy of the last one."""
    is_qwen = any(".linear_attn." in name for name in tensors) or last == 0
    if is_qwen:  # one is added to the norms
        layer, own, norm = "mtp.layers.0.", "mtp.", np.zeros(HIDDEN)
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")
    else:
        layer = own = f"model.layers.{last + 1}."
        names, norm = ("enorm", "hnorm", "shared_head.norm", "eh_proj"), np.ones(HIDDEN)
    values = (norm, norm, norm, fc)
    before = f"model.layers.{last}."
    return (
        tensors
        | {name.replace(before, layer): values for name, values in tensors.items() if before in name}
        | {f"{own}{name}.weight": value for name, value in zip(names, values, strict=True)}
    )


def without_branches(tensors: Tensors) -> Tensors:
    """The same, where no layer adds anything."""
    ends = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
    return {name: value * (not name.endswith(ends)) for name, value in tensors.items()}


def cycle(tensors: Tensors, fc: str) -> Tensors:
    """A model in which token t is followed by token t + 1, and a layer that has it from one of its inputs."""
    rows = np.linalg.qr(np.random.default_rng(1).normal(size=(HIDDEN, USED)))[0].T * HIDDEN**0.5
    embedding, head = np.zeros((2, 128, HIDDEN))
    embedding[:USED] = rows
    head[:USED] = np.roll(rows, 1, axis=0)
    identity, nothing = np.eye(HIDDEN), np.zeros((HIDDEN, HIDDEN))
    following = np.roll(rows, -1, axis=0).T @ rows / HIDDEN  # from the row of a token to that of the next
    both = {"embedding": [identity, nothing], "hidden": [nothing, following], "nothing": [nothing, nothing]}
    changed = without_branches(tensors) | {
        "model.embed_tokens.weight": embedding.astype(np.float32),
        "lm_head.weight": head.astype(np.float32),
        "model.norm.weight": np.full(HIDDEN, 0.0 if any("linear_attn" in name for name in tensors) else 1.0),
    }
    last = max(int(name.split(".")[2]) for name in tensors if ".layers." in name)
    return with_mtp(changed, np.concatenate(both[fc], axis=1), last)


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return read_safetensors(SOURCE / "model.safetensors")


def drafted(folder: Path, prompt: list[int], count: int, **sampling: Any) -> tuple[list[int], int]:
    """(new tokens, how many of them were drafted), with as many drafts as there can be."""
    engine = load(folder, speculative="always")
    assert engine.facts["mtp"]
    sequence = add(engine, prompt, count, **sampling)
    tokens = [event for event in drain(engine, [sequence]) if event.kind == "token"]
    engine.free(sequence)
    plain = generate(load(folder, speculative="off"), prompt, count, **sampling)[0]
    assert [event.id for event in tokens] == plain
    return plain, sum(event.drafted for event in tokens)


@pytest.mark.parametrize("source", ["embedding", "hidden", "nothing"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_reads_the_next_token_and_the_hidden_state(
    source: str, temperature: float, tensors: Tensors, tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", cycle(tensors, source))
    tokens, right = drafted(folder, [3], USED - 4, temperature=temperature)
    assert tokens == list(range(4, USED))  # no token twice, so that none is drafted from the text
    # The first token of a step is not drafted, and a step has 16 at most.
    assert right == (0 if source == "nothing" else len(tokens) - 3), right


@pytest.mark.parametrize("source", OTHERS, ids=lambda path: path.name)
@pytest.mark.parametrize("dtype", ["auto", "q8_0"])
def test_of_other_families(source: Path, dtype: str, tmp_path: Path) -> None:
    tensors = cycle(read_safetensors(source / "model.safetensors"), "hidden")
    engine = load(write(tmp_path / "model", tensors, source), speculative="always", dtype=dtype)
    sequence = add(engine, [3], USED - 4)
    events = [event for event in drain(engine, [sequence]) if event.kind == "token"]
    assert [event.id for event in events] == list(range(4, USED))
    assert sum(event.drafted for event in events) == len(events) - 3


@pytest.mark.parametrize("source", [SOURCE, GOLDEN / "qwen3_next"], ids=lambda path: path.name)
def test_of_a_gguf_file(source: Path, tmp_path: Path) -> None:
    """It is the block behind the others; one is added to the norms."""
    tensors = cycle(read_safetensors(source / "model.safetensors"), "hidden")
    own = {name: tensors.pop(name) for name in list(tensors) if name.startswith("mtp.")}
    converter = HybridConverter(write(tmp_path / "folder", tensors, source))
    converted = converter.converted()
    converted |= {
        name.replace("blk.2.", "blk.3."): value for name, value in converted.items() if "blk.2." in name
    }
    converted["blk.3.nextn.eh_proj.weight"] = own["mtp.fc.weight"]
    for name in ("enorm", "hnorm", "shared_head_norm"):
        converted[f"blk.3.nextn.{name}.weight"] = np.ones(HIDDEN)
    converter.converted = lambda: converted  # type: ignore[method-assign]
    file = converter.write(tmp_path / "model.gguf", block_count=4, nextn_predict_layers=1)
    engine = load(file, speculative="always")
    sequence = add(engine, [3], USED - 4)
    events = [event for event in drain(engine, [sequence]) if event.kind == "token"]
    assert [event.id for event in events] == list(range(4, USED))
    assert sum(event.drafted for event in events) == len(events) - 3


def test_it_attends_to_the_text_before(tensors: Tensors, tmp_path: Path) -> None:
    """The layer is the model's only one; both read the same, but for the first token."""
    embedding = tensors["model.embed_tokens.weight"]
    alone = {name: value for name, value in tensors.items() if "layers" not in name} | {
        name.replace("layers.2", "layers.0"): value for name, value in tensors.items() if "layers.2" in name
    }
    alone["model.embed_tokens.weight"] = embedding / np.sqrt((embedding**2).mean(axis=1, keepdims=True))
    fc = np.concatenate([np.eye(HIDDEN), np.zeros((HIDDEN, HIDDEN))], axis=1)
    both = with_mtp(alone, fc, 0)
    both["mtp.norm.weight"] = both["model.norm.weight"]
    for path in ("model", "mtp"):
        both[f"{path}.layers.0.self_attn.o_proj.weight"] = 6 * alone["model.layers.0.self_attn.o_proj.weight"]
    source = np.random.default_rng(2)
    prompt = source.integers(0, 128, 200).tolist()
    shares = []
    for name in ("whole", "blind"):
        if name == "blind":
            both["mtp.layers.0.self_attn.o_proj.weight"] *= 0
        folder = write(tmp_path / name, both, num_hidden_layers=1, layer_types=["full_attention"])
        shares.append(drafted(folder, prompt, 128, temperature=1.0, seed=3)[1] / 128)
    assert shares[0] > 0.6 > 0.3 > shares[1], shares


@pytest.fixture(scope="module")
def random_layer(tensors: Tensors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drafts that are right now and then."""
    source = np.random.default_rng(4)
    fc = np.concatenate([np.eye(HIDDEN), source.normal(size=(HIDDEN, HIDDEN)) / 20], axis=1)
    return write(tmp_path_factory.mktemp("mtp") / "model", with_mtp(tensors, fc))


@pytest.mark.slow
def test_answers_are_the_same_with_it(random_layer: Path) -> None:
    plain, drafting, timed = (
        Engine.load(random_layer, threads=2, speculative=mode, dtype="f32")
        for mode in ("off", "always", "auto")
    )
    source = np.random.default_rng(5)
    jobs = []
    for seed in range(40):
        ids = source.integers(0, 128, source.integers(1, 90)).tolist()
        temperature = float(source.choice((0.0, 0.4, 1.0)))
        sampling = Sampling(temperature=temperature, seed=seed, max_tokens=int(source.integers(1, 70)))
        jobs += [Job(ids, sampling)] * int(source.choice((1, 3)))
        alone = list(drafting.generate(ids, sampling, top_k=3))
        assert alone == list(plain.generate(ids, sampling, top_k=3))
    for window in (3, 30):
        expected = list(plain.generate_many(jobs, window=window))
        assert list(drafting.generate_many(jobs, window=window)) == expected
        assert list(timed.generate_many(jobs, window=window)) == expected


def test_a_cancelled_step_leaves_no_draft(tensors: Tensors, tmp_path: Path) -> None:
    drafting = load(write(tmp_path / "model", cycle(tensors, "hidden")), speculative="always")
    sequence = add(drafting, [3], USED - 4)
    found, count = generate_with_cancels(drafting, sequence, USED - 4)
    assert found == list(range(4, USED))
    assert count == len(found) - 3


def test_a_long_text_is_read_from_where_hidden_states_are_known(tensors: Tensors, tmp_path: Path) -> None:
    """A prompt that is longer than what is kept; then the same, most of which is not computed."""
    folder = write(tmp_path / "model", cycle(tensors, "hidden"), max_position_embeddings=2048)
    engine, plain = (load(folder, context=2048, speculative=mode) for mode in ("always", "off"))
    prompt = [(7 * i) % USED for i in range(1100)]
    for _ in range(2):
        sequence = add(engine, prompt, 300)
        events = [event for event in drain(engine, [sequence]) if event.kind == "token"]
        assert sum(event.drafted for event in events) > 250
        engine.free(sequence)
        generate(plain, prompt, 300)
    assert engine.kv_bytes == plain.kv_bytes  # nothing is kept of the layer


@pytest.mark.parametrize("name", ["mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight"])
def test_a_wrong_shape_is_named(name: str, tensors: Tensors, tmp_path: Path) -> None:
    wrong = cycle(tensors, "hidden")
    wrong[name] = wrong[name][:-1]
    with pytest.raises(TensorError, match=name):
        load(write(tmp_path / "model", wrong))


def test_a_file_without_it_loads(tensors: Tensors, tmp_path: Path) -> None:
    some = {name: value for name, value in cycle(tensors, "hidden").items() if name != "mtp.norm.weight"}
    for number, kept in enumerate((tensors, some)):
        engine = load(write(tmp_path / str(number), kept), speculative="always")
        assert not engine.facts["mtp"]
        assert generate(engine, PROMPT, 5)[0]
