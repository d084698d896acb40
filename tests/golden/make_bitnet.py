"""Make the cases of BitNet: packed and floating ternary weights, and what the model computes of them.

    PYTHONPATH=tests/support python tests/golden/make_bitnet.py [--compare] [NAME ...]

Numbers are computed in float64 from the definition: transformers 5.23, `integrations/bitnet.py` and
`modeling_bitnet.py`. The model rounds the inputs of its matrices to bytes. Weights are drawn until no input
of the prompts is near the border of two bytes: then programs that differ in the last bits of an input
round it alike, and there is one right answer. --compare (transformers, torch, accelerate) holds cases that
are there against transformers, and writes its version and the difference into golden.json.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import reference
from quantized import Stored, write_stored
from reference import Array, Model

GOLDEN = Path(__file__).parent

PROMPTS = {"p1": 1, "p7": 7, "p33": 33}
GREEDY = 8  # tokens after p33
MARGIN = 2e-4  # of a step of a byte
GAP = 2e-3  # between the two largest logits of a greedy token
TOLERANCE = {"atol": 1e-3, "rtol": 1e-3}

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
}
BITNET = {"model_type": "bitnet", "architectures": ["BitNetForCausalLM"], "hidden_act": "relu2"}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}
AUTO = {"quant_method": "bitnet", "linear_class": "autobitlinear"}

CASES: dict[str, dict[str, Any]] = {
    "q_bitnet_offline": BITNET
    | {"tie_word_embeddings": True, "quantization_config": AUTO | {"quantization_mode": "offline"}},
    "q_bitnet_online": BITNET
    | {"tie_word_embeddings": True, "quantization_config": AUTO | {"quantization_mode": "online"}},
    "q_bitnet_bitlinear": LLAMA
    | {
        "tie_word_embeddings": False,
        "hidden_size": 48,
        "intermediate_size": 76,
        "quantization_config": {"quant_method": "bitnet", "modules_to_not_convert": None},
    },
}


class NearBorderError(Exception):
    """An input is near the border of two bytes."""


class BitNet(Model):
    """A Llama whose matrices read rounded inputs, with norms before two of them where the model has these."""

    def linear(self, name: str, X: Array) -> Array:
        module, _, matrix = name.rpartition(".")
        sub_norm = {"o_proj": "attn_sub_norm", "down_proj": "ffn_sub_norm"}.get(matrix)
        if f"{module}.{sub_norm}.weight" in self.theta:
            X = reference.rms_norm(X, f"{module}.{sub_norm}", self)
        if name != "lm_head":
            steps = X * (127 / np.maximum(np.abs(X).max(axis=0), 1e-5))
            if np.abs(steps - np.floor(steps) - 0.5).min() < MARGIN:
                raise NearBorderError
            X = np.rint(steps) * (X / np.where(steps == 0, 1, steps)).max(axis=0)
        return super().linear(name, X)


def mlp(Z: Array, name: str, model: Model) -> Array:
    gate, up = (model.linear(f"{name}.{part}_proj", Z) for part in ("gate", "up"))
    act = np.maximum(gate, 0) ** 2 if model.config["hidden_act"] == "relu2" else reference.silu(gate)
    return model.linear(f"{name}.down_proj", act * up)


def forward(ids: Array, model: Model) -> Array:
    """The logits.  # [T, V]"""
    X = model.theta["model.embed_tokens.weight"].T[:, ids]
    rotation = reference.rotary_table(model, len(ids))
    for i in range(model.config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        Z = reference.rms_norm(X, f"{layer}.input_layernorm", model)
        X = X + reference.attention(Z, f"{layer}.self_attn", model, rotation)
        X = X + mlp(reference.rms_norm(X, f"{layer}.post_attention_layernorm", model), f"{layer}.mlp", model)
    return model.linear("lm_head", reference.rms_norm(X, "model.norm", model)).T


def bf16(values: Array) -> tuple[Array, Stored]:
    """Values rounded to bf16: as f32, and as they are stored."""
    bits = values.astype("<f4").view("<u4")
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return (bits << 16).view("<f4"), ("BF16", list(values.shape), bits.astype("<u2").tobytes())


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, width, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    all_: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    for i in range(config["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (width, hidden),
            "mlp.up_proj": (width, hidden),
            "mlp.down_proj": (hidden, width),
        }.items():
            all_[f"model.layers.{i}.{name}.weight"] = shape
        if config["model_type"] == "bitnet":
            all_[f"model.layers.{i}.self_attn.attn_sub_norm.weight"] = (hidden,)
            all_[f"model.layers.{i}.mlp.ffn_sub_norm.weight"] = (width,)
    return all_ if config["tie_word_embeddings"] else all_ | {"lm_head.weight": (vocab, hidden)}


def draw(config: dict[str, Any], rng: np.random.Generator) -> tuple[dict[str, Stored], BitNet]:
    """The tensors of a file, and the model that they stand for."""
    quantization = config["quantization_config"]
    tensors, theta = {}, {}
    for name, shape in shapes(config).items():
        noise = rng.standard_normal(shape)
        if "_proj" not in name:
            values, tensors[name] = bf16(1 + 0.2 * noise if len(shape) == 1 else 0.5 * noise)
            theta[name] = values.astype("f8")
            continue
        values, stored = bf16(2 * noise / shape[1] ** 0.5)
        mean = np.abs(values.astype("f8")).mean()
        q = np.clip(np.rint(values / mean), -1, 1)
        if quantization.get("quantization_mode") == "online":
            tensors[name], theta[name] = stored, q * mean
            continue
        divides = "linear_class" not in quantization
        scale, tensors[f"{name}_scale"] = bf16(np.array([1 / mean if divides else mean]))
        codes = (q + 1).astype("u1").reshape(4, shape[0] // 4, shape[1])
        packed = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6
        tensors[name] = "U8", list(packed.shape), packed.tobytes()
        theta[name] = q / float(scale[0]) if divides else q * float(scale[0])
    theta.setdefault("lm_head.weight", theta["model.embed_tokens.weight"])
    return tensors, BitNet(config, theta)


def compute(model: BitNet, ids: Array) -> dict[str, Array]:
    """What a case holds."""
    text, rows = ids, []
    whole = forward(ids, model)
    for _ in range(GREEDY):
        row = forward(text, model)[-1]
        second, best = np.sort(row)[-2:]
        if best - second < GAP:
            raise NearBorderError
        rows.append(row)
        text = np.append(text, row.argmax())
    golden = {
        "greedy.prompt_ids": ids,
        "greedy.output_ids": text[len(ids) :],
        "greedy.logits": np.stack(rows),
    }
    for prompt, length in PROMPTS.items():
        golden |= {f"input_ids.{prompt}": ids[:length], f"logits.{prompt}": whole[:length]}
    return golden


def make(name: str) -> None:
    config = SMALL | CASES[name]
    for seed in range(100_000):
        rng = np.random.default_rng(seed)
        ids = rng.integers(3, config["vocab_size"], PROMPTS["p33"])
        tensors, model = draw(config, rng)
        try:
            golden = compute(model, ids)
            break
        except NearBorderError:
            continue
    else:
        raise SystemExit(f"{name}: no seed gives a model without inputs near a border")
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_stored(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    kinds = {"i": ("I64", "<i8"), "f": ("F32", "<f4")}
    stored = {
        key: (kinds[v.dtype.kind][0], list(v.shape), v.astype(kinds[v.dtype.kind][1]).tobytes())
        for key, v in golden.items()
    }
    write_stored(folder / "golden.safetensors", stored)
    story = {
        "case": name,
        "family": config["model_type"],
        "seed": seed,
        "compute": "NumPy, float64, from the definition (make_bitnet.py)",
        "margin": f"no input of a matrix is nearer than {MARGIN} of a step to the border of two bytes",
        "tolerance": TOLERANCE,
    }
    (folder / "golden.json").write_text(json.dumps(story, indent=1) + "\n")
    print(name, seed, sum(path.stat().st_size for path in folder.iterdir()))


def compare(name: str) -> None:
    """A case against transformers in f32, loaded with its quantizer."""
    import torch
    import transformers

    folder = GOLDEN / name
    golden = reference.read_safetensors(folder / "golden.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    # Unpacked matrices are in the config's bfloat16, which has -1, 0 and 1.
    torch.nn.Module.float(model).eval()
    kinds = [type(module).__name__ for module in model.modules()]
    assert any(kind in ("BitLinear", "AutoBitLinear") for kind in kinds)
    largest = 0.0
    for prompt in PROMPTS:
        ids = torch.tensor(golden[f"input_ids.{prompt}"])
        with torch.no_grad():
            found = model(ids[None], use_cache=False).logits[0].numpy()
        largest = max(largest, float(np.abs(found - golden[f"logits.{prompt}"]).max()))
    print(name, largest)
    assert largest < 1e-4, f"{name}: transformers computes other numbers"
    story = json.loads((folder / "golden.json").read_text())
    story["compared"] = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "largest difference": largest,
    }
    (folder / "golden.json").write_text(json.dumps(story, indent=1) + "\n")


if __name__ == "__main__":
    compares = "--compare" in sys.argv
    for case in [name for name in sys.argv[1:] if name != "--compare"] or CASES:
        (compare if compares else make)(case)
