"""The goldens' models as llama.cpp's converter would store them in a GGUF file.

Facts: llama.cpp, convert_hf_to_gguf.py and gguf-py/gguf/tensor_mapping.py.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf_files import Tensors, write
from reference import read_safetensors

# Hugging Face's names below the layer, llama.cpp's below `blk.N.` (gguf-py, tensor_mapping.py).
_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.dense": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "self_attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
_ENDS = {
    "embed_tokens": "token_embd",
    "word_embeddings": "token_embd",
    "embed_in": "token_embd",
    "wte": "token_embd",
    "wpe": "position_embd",
    "norm": "output_norm",
    "ln_f": "output_norm",
    "final_layernorm": "output_norm",
    "final_layer_norm": "output_norm",
    "lm_head": "output",
    "embed_out": "output",
}
_EXPERT = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}

# The architecture of each family.
ARCHS = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi": "phi2",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "falcon": "falcon",
    "starcoder2": "starcoder2",
    "stablelm": "stablelm",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "granite": "granite",
    "nemotron": "nemotron",
    "glm": "chatglm",
    "glm4": "glm4",
    "smollm3": "smollm3",
    "gpt_oss": "gpt-oss",
    "exaone4": "exaone4",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
}
# Whose q and k rows the converter moves; whose norms it adds one to.
_MOVED = {"llama", "mistral", "mixtral", "olmo", "granite", "smollm3"}
_ONE_MORE = {"gemma", "gemma2", "gemma3_text", "nemotron"}
# Whose post_attention_layernorm is post_attention_norm.
_AFTER = {"gemma2", "gemma3_text", "olmo2", "gpt_oss", "exaone4"}


def moved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of two halves per head, as pairs of neighbours.  # [heads * head_dim, ...]"""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def divisors(rope: dict[str, Any], theta: float, head_dim: int, trained: float) -> np.ndarray:
    """Llama 3's scaling as divisors of the frequencies.  # [head_dim / 2]"""
    low, high, factor = (float(rope[key]) for key in ("low_freq_factor", "high_freq_factor", "factor"))
    turns = trained / (2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim))
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    freqs: np.ndarray = 1 / ((1 - smooth) / factor + smooth)
    return freqs


class Converter:
    """One golden model on its way into a file."""

    def __init__(self, folder: Path, *, apart: bool = False) -> None:
        """apart: keys and values of latent attention in tensors of their own."""
        self.apart = apart
        self.config = json.loads((folder / "config.json").read_text())
        self.family: str = self.config["model_type"]
        self.arch = ARCHS[self.family]
        self.tensors = read_safetensors(folder / "model.safetensors")
        c = self.config
        self.hidden = c.get("hidden_size", c.get("n_embd"))
        self.heads = c.get("num_attention_heads", c.get("n_head"))
        one = 1 if c.get("multi_query") else self.heads
        self.groups = c.get("num_key_value_heads") or one
        self.layers = c.get("num_hidden_layers", c.get("n_layer"))
        self.head_dim = c.get("head_dim") or self.hidden // self.heads
        rope = dict(c.get("rope_parameters") or c.get("rope_scaling") or {})
        self.local = rope.get("sliding_attention", {})
        self.rope = rope.get("full_attention", rope)

    def write(self, path: Path, **changes: Any) -> Path:
        """The file. changes: keys of the architecture, `__` for dots; None leaves one out."""
        changed = {f"{self.arch}.{key.replace('__', '.')}": value for key, value in changes.items()}
        metadata = {key: value for key, value in (self.metadata() | changed).items() if value is not None}
        return write(path, metadata, self.converted())

    def converted(self) -> Tensors:
        out: Tensors = {}
        stacks: dict[str, dict[int, np.ndarray]] = {}
        for name, values in self.tensors.items():
            path, _, end = name.rpartition(".")
            at = re.search(r"(?:layers|h)\.(\d+)\.(.+)", path if end in ("weight", "bias") else name)
            expert = re.fullmatch(r"\S*experts\.(\d+)\.(\w+)", at[2]) if at else None
            if at and expert:
                key = f"blk.{at[1]}.ffn_{_EXPERT[expert[2]]}_exps.weight"
                stacks.setdefault(key, {})[int(expert[1])] = values
            elif at and "mlp.experts." in at[2]:
                self._together(f"blk.{at[1]}.", name, values, out)
            elif at:
                self._layer(f"blk.{at[1]}.", at[2], end, values, out)
            else:
                out[f"{_ENDS[path.rpartition('.')[2]]}.{end}"] = self._norm(path, end, values)
        for key, experts in stacks.items():
            out[key] = np.stack([experts[number] for number in range(len(experts))])
        return (self._apart(out) if self.apart else out) | self._divisors()

    def _apart(self, tensors: Tensors) -> Tensors:
        """Latent attention as newer files have it: keys [head, in, out] and values [head, out, in]."""
        out: Tensors = {}
        nope = self.config["qk_nope_head_dim"]
        for name, values in tensors.items():
            if "attn_kv_b" not in name:
                out[name] = values
                continue
            heads = values.reshape(self.heads, -1, values.shape[1])
            out[name.replace("kv_b", "k_b")] = heads[:, :nope].swapaxes(1, 2)
            out[name.replace("kv_b", "v_b")] = heads[:, nope:]
        return out

    def _layer(self, prefix: str, path: str, end: str, values: np.ndarray, out: Tensors) -> None:
        if end == "bias" and path in ("attn", "attention", "attention.masked"):
            return  # masks of old files
        if path not in _LAYER:
            assert "inv_freq" in end or "masked" in end, f"{path}.{end}"
            return
        to = _LAYER[path]
        if path == "post_attention_layernorm" and self.family in _AFTER:
            to = "post_attention_norm"
        if self.family == "gpt2" and values.ndim == 2:
            values = values.T
        if self.family in _MOVED and to in ("attn_q", "attn_k"):
            values = moved(values, self.heads if to == "attn_q" else self.groups)
        if path.endswith("query_key_value"):
            values = self._stacked(values)
        out[prefix + (to if "." in to else f"{to}.{end}")] = self._norm(path, end, values).squeeze()

    def _norm(self, path: str, end: str, values: np.ndarray) -> np.ndarray:
        is_norm = path.endswith("norm") and end == "weight"
        return values + 1 if is_norm and self.family in _ONE_MORE else values

    def _stacked(self, values: np.ndarray) -> np.ndarray:
        """[group, queries and key and value of it] as all queries, all keys, all values."""
        queries = self.heads // self.groups
        grouped = values.reshape(self.groups, queries + 2, self.head_dim, *values.shape[1:])
        parts = (grouped[:, :queries], grouped[:, queries], grouped[:, queries + 1])
        return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])

    def _together(self, prefix: str, name: str, values: np.ndarray, out: Tensors) -> None:
        """gpt-oss: [expert, in, out] with gate and up in turn, as two tensors [expert, out, in]."""
        bias = name.endswith("_bias")
        end, rows = ("bias", values) if bias else ("weight", values.swapaxes(1, 2))
        if "gate_up" in name:
            out[f"{prefix}ffn_gate_exps.{end}"] = rows[:, 0::2]
            out[f"{prefix}ffn_up_exps.{end}"] = rows[:, 1::2]
        else:
            out[f"{prefix}ffn_down_exps.{end}"] = rows

    def _divisors(self) -> Tensors:
        kind = self.rope.get("rope_type", self.rope.get("type"))
        if kind == "longrope":
            return {f"rope_factors_{k}.weight": np.array(self.rope[f"{k}_factor"]) for k in ("long", "short")}
        if kind != "llama3":
            return {}
        theta = self.config.get("rope_theta") or self.rope["rope_theta"]
        return {"rope_freqs.weight": divisors(self.rope, theta, self.head_dim, self._original())}

    def _original(self) -> float:
        key = "original_max_position_embeddings"
        return self.rope.get(key) or self.config.get(key) or 8192

    # Metadata

    def metadata(self) -> dict[str, Any]:
        c = self.config
        length = c.get("max_position_embeddings", c.get("n_positions", 2048))
        keys = {
            "context_length": length,
            "embedding_length": self.hidden,
            "block_count": self.layers,
            "feed_forward_length": c.get("intermediate_size") or 4 * self.hidden,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.groups,
            **self._epsilon(),
            **self._rotary(),
            **self._own(),
        }
        if c.get("head_dim"):
            keys |= {"attention.key_length": self.head_dim, "attention.value_length": self.head_dim}
        ids = {f"tokenizer.ggml.{name}_token_id": c.get(f"{name}_token_id") for name in ("bos", "eos")}
        ids = {key: value for key, value in ids.items() if isinstance(value, int)}
        general = {"general.architecture": self.arch, "general.type": "model", "general.file_type": 0}
        return general | {f"{self.arch}.{key}": value for key, value in keys.items()} | ids

    def _epsilon(self) -> dict[str, Any]:
        c = self.config
        if "rms_norm_eps" in c:
            return {"attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"])}
        keys = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
        return {"attention.layer_norm_epsilon": float(next((c[k] for k in keys if k in c), 1e-5))}

    def _rotary(self) -> dict[str, Any]:
        c = self.config
        if self.family == "gpt2":
            return {}
        share = c.get("partial_rotary_factor", c.get("rotary_pct", self.rope.get("partial_rotary_factor", 1)))
        theta = c.get("rope_theta") or c.get("rotary_emb_base") or self.rope.get("rope_theta") or 10_000
        keys = {"rope.dimension_count": int(self.head_dim * share), "rope.freq_base": float(theta)}
        kind, factor = self.rope.get("rope_type", self.rope.get("type")), self.rope.get("factor")
        if kind in ("linear", "yarn"):
            keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(factor)}
        if kind in ("yarn", "longrope"):
            keys["rope.scaling.original_context_length"] = int(self._original())
        if kind == "longrope":
            trained = self._original()
            scale = math.log(c["max_position_embeddings"] / trained) / math.log(trained)
            keys["rope.scaling.attn_factor"] = math.sqrt(1 + scale)
        if "beta_fast" in self.rope:
            keys["rope.scaling.yarn_beta_fast"] = float(self.rope["beta_fast"])
            keys["rope.scaling.yarn_beta_slow"] = float(self.rope["beta_slow"])
        return keys

    def _own(self) -> dict[str, Any]:
        """Keys of single architectures."""
        named = {
            "attention.sliding_window": "sliding_window",
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
            "logit_scale": "logit_scale",
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
            "attention.clamp_kqv": "clip_qkv",
            "use_parallel_residual": "use_parallel_residual",
        }
        c = self.config
        if "num_experts" in c:
            named["expert_count"] = "num_experts"
        keys = {key: c[name] for key, name in named.items() if c.get(name) is not None}
        if self.family in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"):
            keys.pop("attention.sliding_window", None)  # the converter leaves it out
        if self.family == "gpt_oss":
            keys["expert_feed_forward_length"] = c["intermediate_size"]
        if "moe_intermediate_size" in c:
            keys["expert_feed_forward_length"] = c["moe_intermediate_size"]
        if self.family == "granite":
            scales = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
            to = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
            keys |= {key: float(c[name]) for key, name in zip(to, scales, strict=True)}
        if "query_pre_attn_scalar" in c:
            keys["attention.scale"] = c["query_pre_attn_scalar"] ** -0.5
        if self.arch == "deepseek2":
            keys |= self._latent()
        pattern = c.get("sliding_window_pattern") or c.get("_sliding_window_pattern")
        if "layer_types" in c and self.family in ("gemma3_text", "gpt_oss", "exaone4"):
            pattern = [kind == "sliding_attention" for kind in c["layer_types"]]
        if pattern and "attention.sliding_window" in keys:
            keys["attention.sliding_window_pattern"] = pattern
        if self.local:
            keys["rope.freq_base_swa"] = float(self.local["rope_theta"])
        return keys

    def _latent(self) -> dict[str, Any]:
        c = self.config
        nope, rope, values = (c[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        keys = {
            "attention.kv_lora_rank": c["kv_lora_rank"],
            "rope.dimension_count": rope,
            "expert_count": c["n_routed_experts"],
            "expert_shared_count": c["n_shared_experts"],
            "leading_dense_block_count": c["first_k_dense_replace"],
            "expert_weights_scale": float(c["routed_scaling_factor"]),
            "expert_weights_norm": c["norm_topk_prob"],
            "expert_gating_func": 2 if c["scoring_func"] == "sigmoid" else 1,
        }
        if c["q_lora_rank"] is not None:
            keys["attention.q_lora_rank"] = c["q_lora_rank"]
        if c["n_group"] > 1:
            keys |= {"expert_group_count": c["n_group"], "expert_group_used_count": c["topk_group"]}
        if self.apart:
            rank = c["kv_lora_rank"]
            keys |= {"attention.head_count_kv": 1, "attention.key_length_mla": nope + rope}
            keys |= {"attention.key_length": rank + rope, "attention.value_length": rank}
            keys["attention.value_length_mla"] = values
        else:
            keys |= {"attention.key_length": nope + rope, "attention.value_length": values}
        if "mscale_all_dim" in self.rope:
            keys["rope.scaling.yarn_log_multiplier"] = 0.1 * self.rope["mscale_all_dim"]
        return keys
