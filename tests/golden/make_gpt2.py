"""Make the cases of GPT-2's attention scales: random weights, and what transformers computes from them.

    python tests/golden/make_gpt2.py      (transformers 5.23.0, torch; writes the folders named in CASES)

Weights are drawn until the greedy path is safe: the best logit leads by 0.03 at each step, and 8 ids occur.
"""

import json
import platform
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

GOLDEN = Path(__file__).parent
PROMPTS = {"p1": 1, "p7": 7, "p33": 33, "long": 160}
STEPS = 24
LOGIT_STD = 3.0
SHARED = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_positions": 160,
    "n_ctx": 160,
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "resid_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "float32",
    "transformers_version": "4.20.0",
    "use_cache": True,
}
CASES: dict[str, dict[str, Any]] = {
    "gpt2_inverse_layers_old": {
        "n_embd": 24,
        "n_head": 3,
        "n_layer": 3,
        "vocab_size": 80,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": True,
        "reorder_and_upcast_attn": True,
    },
    "gpt2_unscaled_old": {
        "n_embd": 16,
        "n_head": 2,
        "n_layer": 2,
        "vocab_size": 64,
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "reorder_and_upcast_attn": False,
    },
}
FLAGS = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")

Tensors = dict[str, torch.Tensor]


def draw(config: dict[str, Any], seed: int) -> Tensors:
    """Random weights under the names of the Hub."""
    random = torch.Generator().manual_seed(seed)
    state = {}
    for name, like in GPT2LMHeadModel(GPT2Config(**config)).state_dict().items():
        if name == "lm_head.weight":  # the embedding once more
            continue
        noise = torch.randn(like.shape, generator=random)
        if name.endswith("bias"):
            state[name] = 0.3 * noise
        elif like.ndim == 1:
            state[name] = 1 + 0.2 * noise
        elif "wte" in name or "wpe" in name:
            state[name] = noise
        else:
            state[name] = 1.2 * noise / like.shape[0] ** 0.5  # Conv1D: [in, out]
    return state


def build(config: dict[str, Any], state: Tensors, **changes: Any) -> GPT2LMHeadModel:
    """The model in f32, with some keys changed."""
    model = GPT2LMHeadModel(GPT2Config(**(config | changes), attn_implementation="eager"))
    left = model.load_state_dict(state, strict=False)
    assert left.missing_keys in ([], ["lm_head.weight"]), left
    assert not left.unexpected_keys, left
    model.tie_weights()
    return model.eval()


def logits(model: GPT2LMHeadModel, ids: torch.Tensor) -> torch.Tensor:
    """[T, V]"""
    return model(ids[None], use_cache=False).logits[0]


def greedy(model: GPT2LMHeadModel, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best id at each step, the whole sequence computed again each time; ids, and their rows."""
    ids, rows = prompt, []
    for _ in range(STEPS):
        rows.append(logits(model, ids)[-1])
        ids = torch.cat([ids, rows[-1].argmax()[None]])
    return ids[len(prompt) :], torch.stack(rows)


def calibrated(config: dict[str, Any], seed: int) -> tuple[Tensors, Tensors]:
    """Weights whose logits spread as trained ones do, and the prompts."""
    random = np.random.default_rng(seed)
    ids = {name: torch.from_numpy(random.integers(0, config["vocab_size"], n)) for name, n in PROMPTS.items()}
    state = draw(config, seed)
    factor = LOGIT_STD / float(logits(build(config, state), ids["p33"]).std(dim=1).mean())
    for part in ("weight", "bias"):
        state[f"transformer.ln_f.{part}"] *= factor
    return state, ids


def make(name: str, own: dict[str, Any]) -> None:
    config = SHARED | own
    for seed in range(1000):
        state, ids = calibrated(config, seed)
        model = build(config, state)
        output, rows = greedy(model, ids["p33"])
        best = rows.topk(2, dim=1).values
        gap = float((best[:, 0] - best[:, 1]).min())
        if gap >= 0.03 and len(output.unique()) >= 8:
            break
    else:
        raise SystemExit(f"{name}: no seed gives a safe greedy path")

    golden: Tensors = {f"input_ids.{prompt}": values for prompt, values in ids.items()}
    golden |= {f"logits.{prompt}": logits(model, values) for prompt, values in ids.items()}
    golden["logprobs.p7"] = golden["logits.p7"].log_softmax(dim=1)
    hidden = model(ids["p7"][None], use_cache=False, output_hidden_states=True).hidden_states
    golden["debug.hidden.p7"] = torch.cat(hidden)
    golden |= {"greedy.prompt_ids": ids["p33"], "greedy.output_ids": output, "greedy.logits": rows}

    # In f64 the order of operations no longer matters; `reorder_and_upcast_attn` insists on f32.
    exact = build(config, state, reorder_and_upcast_attn=False).double()
    apart = {
        prompt: float((logits(exact, values) - golden[f"logits.{prompt}"]).abs().max())
        for prompt, values in ids.items()
    }
    moved = {key: value * (1 + 1e-6 * torch.randn(value.shape)) for key, value in state.items()}
    unstable = float((logits(build(config, moved), ids["long"]) - golden["logits.long"]).abs().max())
    assert max(8 * max(apart.values()), unstable) <= 1e-4, (apart, unstable)
    effect = {
        f"{flag} flipped": float(
            (logits(build(config, state, **{flag: not config[flag]}), ids["p33"]) - golden["logits.p33"])
            .abs()
            .max()
        )
        for flag in FLAGS
    }
    assert effect["reorder_and_upcast_attn flipped"] < 1e-4, effect
    assert min(effect[f"{flag} flipped"] for flag in FLAGS[:2]) > 0.1, effect

    folder = GOLDEN / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    generation = {"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 0, "do_sample": False}
    generation["transformers_version"] = "4.20.0"
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(
        {key: value.clone().contiguous() for key, value in golden.items()},
        folder / "golden.safetensors",
        metadata={"case": name},
    )
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": sha256(file.read_bytes()).hexdigest()}
        for file in sorted(folder.iterdir())
        if file.name != "golden.json"
    }
    about = {
        "case": name,
        "family": "gpt2",
        "class": "GPT2LMHeadModel",
        "weights_dtype": "float32",
        "note": "Scores of layer i are divided by i + 1; made by make_gpt2.py.",
        "seed": seed,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "safetensors": safetensors.__version__,
            "numpy": np.__version__,
        },
        "compute": "float32, eager attention, CPU, 1 thread, batch 1, full forward (use_cache=False)",
        "prompts": PROMPTS,
        "tensors": {key: list(value.shape) for key, value in sorted(golden.items())},
        "greedy": {
            "from": "p33",
            "steps": STEPS,
            "eos": "ignored",
            "min_top1_top2_gap": gap,
            "distinct_tokens": len(output.unique()),
        },
        "precision": {"f32_vs_f64_max_abs": apart, "weights_perturbed_1e-6_max_abs": unstable},
        "tolerance": {
            "atol": 1e-4,
            "rtol": 1e-5,
            "meaning": "max |engine - golden| <= atol + rtol*|golden| in f32; greedy ids must be equal",
        },
        "sensitivity_max_abs_logit_change": effect,
        "files": files,
    }
    (folder / "golden.json").write_text(json.dumps(about, indent=1))
    print(name, seed, gap, apart, unstable, effect, sum(file["bytes"] for file in files.values()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, own in CASES.items():
            make(name, own)
