"""Make the cases of options: a golden model's config with keys changed, random weights, transformers' logits.

    python tests/golden/make_options.py [NAME ...]    (transformers 5.24.0, torch; writes options/NAME)

Weights are stored in bf16 and computed in f32. They are drawn until the logits hardly move with the weights'
last bits and no choice of experts or positions is among equal numbers: then there is one right answer.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

GOLDEN = Path(__file__).parent
PROMPTS = {"p7": 7, "p33": 33}
NOT_OF_CLASS = {"model_type", "architectures", "dtype", "torch_dtype", "transformers_version", "auto_map"}

# name: (the golden case whose config it is, what is changed)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "aria_text_biases": (
        "aria_text",
        {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "deepseek_v2_biases": ("deepseek_v2_old", {"attention_bias": True, "mlp_bias": True}),
    "deepseek_v4_biases": ("deepseek_v4", {"attention_bias": True, "mlp_bias": True}),
    "ernie4_5_moe_biases": ("ernie4_5_moe", {"use_bias": True, "tie_word_embeddings": False}),
    "falcon_h1_gelu": ("falcon_h1", {"hidden_act": "gelu_pytorch_tanh", "mlp_bias": True}),
    "gemma3_text_cap": ("gemma3_text_new", {"attn_logit_softcapping": 3.0, "tie_word_embeddings": False}),
    "gemma4_own_head": ("gemma4", {"tie_word_embeddings": False}),
    "hy_v3_biases": ("hy_v3", {"attention_bias": True, "mlp_bias": True}),
    "jamba_gelu": ("jamba", {"hidden_act": "gelu"}),
    "kimi_linear_tied": ("kimi_linear", {"tie_word_embeddings": True, "attention_bias": True}),
    "modernbert_window": ("modernbert-decoder", {"sliding_window": 9}),
    "nemotron_h_biases": ("nemotron_h", {"mlp_bias": True, "use_bias": True, "mamba_hidden_act": "relu2"}),
    "olmoe_clip": ("olmoe", {"clip_qkv": 0.7}),
    "qwen3_next_relu2": ("qwen3_next", {"hidden_act": "relu2"}),
    "zaya_biases": ("zaya", {"attention_bias": True}),
}

ties = 0


def count_ties(x: torch.Tensor, k: int, dim: int = -1, **options: Any) -> Any:
    """torch.topk; counts choices whose last number has an equal that is not chosen."""
    global ties
    if 0 < k < x.shape[dim]:
        values = topk(x, k + 1, dim=dim).values
        last, best = values.select(dim, k), values.select(dim, k - 1)
        ties += int(((last == best) & torch.isfinite(last) & (last.abs() < 1e30)).sum())
    return topk(x, k, dim=dim, **options)


topk = torch.topk


def infinite(value: Any) -> Any:
    """A value of config.json, with infinity as transformers writes it."""
    if isinstance(value, list):
        return [infinite(part) for part in value]
    return float("inf") if value == {"__float__": "Infinity"} else value


def build(config: dict[str, Any], seed: int) -> Any:
    """A model with random weights, rounded to bf16."""
    keys = {key: infinite(value) for key, value in config.items() if key not in NOT_OF_CLASS}
    own = transformers.AutoConfig.for_model(config["model_type"], **keys)
    model = transformers.AutoModelForCausalLM.from_config(
        own, attn_implementation="eager", dtype=torch.float32
    )
    random = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=random)
        if weight.dim() <= 1:
            new = weight + 0.2 * noise
        elif "embed" in name or "wte" in name:
            new = 0.3 * noise
        else:
            new = 1.2 * noise / weight.shape[-1] ** 0.5
        weight.copy_(new.bfloat16())
    for name, buffer in model.named_buffers():
        if "correction_bias" in name:
            buffer.copy_((0.1 * torch.randn(buffer.shape, generator=random)).bfloat16())
    return model.eval()


def moved(model: Any, ids: dict[str, torch.Tensor], logits: dict[str, torch.Tensor]) -> float:
    """How far the logits move with the last bits of the weights, relative to the largest."""
    before = [weight.clone() for weight in model.parameters()]
    for weight in model.parameters():
        weight.add_(2e-6 * torch.randn(weight.shape) * weight.abs().mean())
    new = {key: model(value[None], use_cache=False).logits[0] for key, value in ids.items()}
    apart = max(float((new[key] - logits[key]).abs().max() / logits[key].abs().max()) for key in ids)
    for weight, old in zip(model.parameters(), before, strict=True):
        weight.copy_(old)
    return apart


def make(name: str) -> None:
    global ties
    base, changes = CASES[name]
    config = json.loads((GOLDEN / base / "config.json").read_text()) | changes
    for seed in range(200):
        model = build(config, seed)
        ties, random = 0, torch.Generator().manual_seed(seed)
        vocab = model.config.get_text_config().vocab_size
        ids = {key: torch.randint(0, vocab, (n,), generator=random) for key, n in PROMPTS.items()}
        logits = {key: model(value[None], use_cache=False).logits[0] for key, value in ids.items()}
        if ties == 0 and moved(model, ids, logits) < 1e-4:
            break
    else:
        raise SystemExit(f"{name}: no seed gives a stable model")
    folder = GOLDEN / "options" / name
    shutil.rmtree(folder, ignore_errors=True)
    model.bfloat16().save_pretrained(folder)
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    golden = {f"input_ids.{key}": value for key, value in ids.items()}
    golden |= {f"logits.{key}": value.clone() for key, value in logits.items()}
    save_file(golden, folder / "golden.safetensors", metadata={"case": name, "changed": json.dumps(changes)})
    print(name, seed, sum(path.stat().st_size for path in folder.iterdir()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.topk = count_ties
    torch.Tensor.topk = count_ties
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with torch.no_grad():
        for name in sys.argv[1:] or CASES:
            make(name)
