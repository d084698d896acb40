"""The goldens' models with recurrent layers as llama.cpp's converter would store them in a GGUF file.

Facts: llama.cpp, conversion/{qwen,lfm2,granite,falcon_h1,nemotron,jamba,kimi_linear,
bailingmoe3}.py and gguf-py/gguf/tensor_mapping.py.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf_converter import moved
from gguf_files import Tensors, write
from reference import read_safetensors

# The architecture of each family.
ARCHS = {
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "granitemoehybrid": "granitehybrid",
    "bamba": "granitehybrid",
    "falcon_h1": "falcon-h1",
    "nemotron_h": "nemotron_h_moe",
    "jamba": "jamba",
    "kimi_linear": "kimi-linear",
    "bailing_hybrid": "bailingmoe3",
}
_QWEN = {"qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"}
_MAMBA2 = {"granitemoehybrid", "bamba", "falcon_h1", "nemotron_h"}
_KIMI = {"kimi_linear", "bailing_hybrid"}
# Whose q and k rows the converter moves.
_MOVED = {"granitemoehybrid", "bamba", "nemotron_h"}

_ENDS = {
    "embed_tokens": "token_embd",
    "embeddings": "token_embd",
    "word_embeddings": "token_embd",
    "norm": "output_norm",
    "norm_f": "output_norm",
    "final_layernorm": "output_norm",
    "embedding_norm": "token_embd_norm",
    "lm_head": "output",
}
# The last part of Hugging Face's names below the layer, llama.cpp's below `blk.N.`.
_LAYER = {
    "input_layernorm": "attn_norm",
    "operator_norm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_ff_layernorm": "ffn_norm",
    "ffn_norm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "q_layernorm": "attn_q_norm",
    "k_layernorm": "attn_k_norm",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "kv_a_layernorm": "attn_kv_a_norm",
    "in_proj_qkv": "attn_qkv",
    "in_proj_qkvz": "ssm_in",
    "in_proj_z": "attn_gate",
    "in_proj_b": "ssm_beta",
    "in_proj_a": "ssm_alpha",
    "in_proj_ba": "ssm_ba",
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "q_conv1d": "ssm_conv1d_q",
    "k_conv1d": "ssm_conv1d_k",
    "v_conv1d": "ssm_conv1d_v",
    "x_proj": "ssm_x",
    "dt_proj": "ssm_dt",
    "dt_layernorm": "ssm_dt_norm",
    "b_layernorm": "ssm_b_norm",
    "c_layernorm": "ssm_c_norm",
    "g_a_proj": "ssm_g_a",
    "g_b_proj": "ssm_g_b",
    "f_a_proj": "ssm_f_a",
    "f_b_proj": "ssm_f_b",
    "b_proj": "ssm_beta",
    "f_proj": "ssm_f_a",
    "g_proj": "ssm_g_a",
    "dense": "attn_output",
    "o_norm": "ssm_norm",
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
    "gate": "ffn_gate_inp",
    "router": "ffn_gate_inp",
    "shared_expert_gate": "ffn_gate_inp_shexp",
    "expert_bias": "exp_probs_b.bias",
    "e_score_correction_bias": "exp_probs_b.bias",
    "A_log": "ssm_a",
    "D": "ssm_d",
    "dt_bias": "ssm_dt.bias",
}


class HybridConverter:
    """One golden model on its way into a file."""

    def __init__(self, folder: Path, *, first_files: bool = False) -> None:
        """first_files: qwen3next with q, k, v and z in one tensor, as its first files have them."""
        self.first_files = first_files
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.family: str = self.config["model_type"]
        self.arch = ARCHS[self.family]
        self.tensors = read_safetensors(folder / "model.safetensors")

    def write(self, path: Path, **changes: Any) -> Path:
        """The file. changes: keys of the architecture, `__` for dots; None leaves one out."""
        changed = {f"{self.arch}.{key.replace('__', '.')}": value for key, value in changes.items()}
        metadata = {key: value for key, value in (self.metadata() | changed).items() if value is not None}
        return write(path, metadata, self.converted())

    # Tensors

    def converted(self) -> Tensors:
        out: Tensors = {}
        stacks: dict[str, list[np.ndarray]] = {}
        for name, values in sorted(self.tensors.items()):
            at = re.search(r"layers\.(\d+)\.(.+)", name)
            if at is None:
                path, _, end = name.rpartition(".")
                out[f"{_ENDS[path.rpartition('.')[2]]}.{end}"] = self._changed(name, values)
            elif expert := re.fullmatch(r"\S+\.experts\.\d+\.(\w+)\.weight", at[2]):
                stacks.setdefault(f"blk.{at[1]}.{_LAYER[expert[1]]}_exps.weight", []).append(values)
            else:
                for to, converted in self._layer(int(at[1]), at[2], self._changed(name, values)).items():
                    out[f"blk.{at[1]}.{to}"] = converted
        return out | {name: np.stack(experts) for name, experts in stacks.items()}

    def _layer(self, layer: int, path: str, values: np.ndarray) -> Tensors:
        """The tensors of a layer that one of Hugging Face's becomes."""
        if "block_sparse_moe." in path and "linear" in path:
            place = "exps"
        else:
            place = "shexp" if "shared_expert." in path or "shared_experts." in path else ""
        if path.endswith("input_linear.weight"):
            gate, up = np.split(values, 2, axis=-2)
            place = place or "shexp"
            return {f"ffn_gate_{place}.weight": gate, f"ffn_up_{place}.weight": up}
        if path.endswith("output_linear.weight"):
            return {f"ffn_down_{place or 'shexp'}.weight": values}
        if path.endswith("in_proj_qkvz.weight") and not self.first_files:
            return self._apart(values)
        if path.endswith("kv_b_proj.weight"):
            heads = values.reshape(self.config["num_attention_heads"], -1, values.shape[1])
            keys, values = np.split(heads, [self.config["qk_nope_head_dim"]], axis=1)
            return {"attn_k_b.weight": keys.swapaxes(1, 2), "attn_v_b.weight": values}
        stem = re.sub(r"(\.layer)?\.(weight|bias)$", "", path)
        own = stem.rpartition(".")[2]
        end = "" if own in ("A_log", "D") or "." in _LAYER.get(own, "") else path.rpartition(".")[2]
        to = self._name(layer, stem, own)
        return {".".join(filter(None, (f"{to}_{place}" if place else to, end))): values}

    def _name(self, layer: int, stem: str, own: str) -> str:
        if stem.startswith("conv."):
            return f"shortconv.{own}"  # lfm2
        if stem == "norm":
            return "attn_norm"  # nemotron_h
        if stem == "self_attn.out_proj":
            return "attn_output"  # lfm2
        if own == "g_proj" and "full" in self._kinds()[layer]:
            return "attn_gate"  # bailing_hybrid
        if own == "post_attention_layernorm" and self.family in _QWEN:
            return "post_attention_norm"
        return _LAYER[own]

    def _apart(self, values: np.ndarray) -> Tensors:
        """qwen3next: q, k, v and z of each key head, as all q, k and v, and all z."""
        c = self.config
        dim, groups = c["linear_key_head_dim"], c["linear_num_key_heads"]
        by_group = values.reshape(groups, -1, values.shape[1])
        of_group = (by_group.shape[1] - 2 * dim) // 2
        parts = np.split(by_group, [dim, 2 * dim, 2 * dim + of_group], axis=1)
        q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
        return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}

    def _changed(self, name: str, values: np.ndarray) -> np.ndarray:
        """Numbers and rows as the file has them."""
        c = self.config
        own = name.removesuffix(".weight").rpartition(".")[2]
        if self.family in _QWEN and name.endswith("norm.weight") and "linear_attn" not in name:
            return values + 1
        if self.family in ("qwen3_5_text", "qwen3_5_moe_text") and "linear_attn" in name:
            values = self._tiled(own, values)
        if self.family == "falcon_h1":
            values = self._multiplied(name, own, values)
        if self.family in _MOVED and own in ("q_proj", "k_proj"):
            heads = c["num_attention_heads" if own == "q_proj" else "num_key_value_heads"]
            values = moved(values, heads)
        if own == "A_log":
            values = np.exp(values) if self.family == "bailing_hybrid" else -np.exp(values)
        if own in ("A_log", "D") and self.family in (_MAMBA2 | {"bailing_hybrid"}):
            return values.reshape(-1, 1)
        if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            return values.reshape(c.get("mamba_n_groups") or c["n_groups"], -1)
        if self.family in _KIMI and "conv1d" in own:
            return values.reshape(1, *values.shape)
        return values.squeeze() if "conv" in own and values.ndim == 3 else values

    def _tiled(self, own: str, values: np.ndarray) -> np.ndarray:
        """qwen35: value heads in the order of a broadcast over key heads, not by key head."""
        c = self.config
        groups, heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
        width = c["linear_value_head_dim"]
        if own == "norm":
            return values

        def order(rows: np.ndarray, each: int) -> np.ndarray:
            split = rows.reshape(groups, heads // groups, each, *rows.shape[1:])
            return split.swapaxes(0, 1).reshape(rows.shape)

        keys = 2 * groups * c["linear_key_head_dim"]
        if own in ("in_proj_qkv", "conv1d"):
            return np.concatenate([values[:keys], order(values[keys:], width)])
        if own == "out_proj":
            return order(values.T, width).T
        return order(values, width if own == "in_proj_z" else 1)

    def _multiplied(self, name: str, own: str, values: np.ndarray) -> np.ndarray:
        """falcon-h1: the multipliers are in the weights."""
        c = self.config
        into, (gate, down) = c["attention_in_multiplier"], c["mlp_multipliers"]
        factors = {
            "embed_tokens": c["embedding_multiplier"],
            "lm_head": c["lm_head_multiplier"],
            "q_proj": into,
            "k_proj": into * c["key_multiplier"],
            "v_proj": into,
            "o_proj": c["attention_out_multiplier"],
            "out_proj": c["ssm_out_multiplier"],
            "gate_proj": gate,
            "down_proj": down,
        }
        if own == "in_proj":
            width, state = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
            rows = [width, width, state, state, c["mamba_n_heads"]]
            by_row = np.repeat(np.array(c["ssm_multipliers"]), rows)[:, None]
            return values * (by_row * float(c["ssm_in_multiplier"]))
        return values * float(factors.get(own, 1))

    # Metadata

    def metadata(self) -> dict[str, Any]:
        c = self.config
        rope = c.get("rope_parameters") or {}
        keys = {
            "context_length": c.get("max_position_embeddings") or c["model_max_length"],
            "embedding_length": c["hidden_size"],
            "block_count": len(self._kinds()),
            "attention.head_count": c["num_attention_heads"],
            "vocab_size": c["vocab_size"],
            **({"feed_forward_length": c["intermediate_size"]} if "intermediate_size" in c else {}),
            **self._epsilon(),
            **self._own(),
        }
        if "rope_theta" in rope and self.family != "nemotron_h":
            keys["rope.freq_base"] = float(rope["rope_theta"])
        if "head_dim" in c and self.family not in _KIMI:
            keys |= {"attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"]}
        if "head_count_kv" not in str(list(keys)):
            kv = c["num_key_value_heads"]
            by_layer = [kv if "attention" in kind and "linear" not in kind else 0 for kind in self._kinds()]
            keys["attention.head_count_kv"] = kv if self.family in {*_QWEN, "falcon_h1"} else by_layer
        general = {"general.architecture": self.arch, "general.type": "model", "general.file_type": 0}
        ids = {f"tokenizer.ggml.{name}_token_id": c[f"{name}_token_id"] for name in ("bos", "eos")}
        return general | {f"{self.arch}.{key}": value for key, value in keys.items()} | ids

    def _kinds(self) -> list[str]:
        c = self.config
        if "layer_types" in c or "layers_block_type" in c:
            kinds: list[str] = c.get("layer_types") or c["layers_block_type"]
            return kinds
        layers = range(c["num_hidden_layers"])
        if "attn_layer_indices" in c:
            return ["attention" if layer in c["attn_layer_indices"] else "mamba" for layer in layers]
        period, offset = c.get("attn_layer_period", 1), c.get("attn_layer_offset", 0)
        return ["attention" if layer % period == offset else "mamba" for layer in layers]

    def _epsilon(self) -> dict[str, Any]:
        c = self.config
        if "layer_norm_epsilon" in c:
            return {"attention.layer_norm_epsilon": float(c["layer_norm_epsilon"])}
        epsilon = c["norm_eps" if "norm_eps" in c else "rms_norm_eps"]
        return {"attention.layer_norm_rms_epsilon": float(epsilon)}

    def _own(self) -> dict[str, Any]:
        c = self.config
        named = {
            "expert_count": ("num_experts", "num_local_experts", "n_routed_experts"),
            "expert_used_count": ("num_experts_per_tok", "num_experts_per_token"),
            "expert_feed_forward_length": ("moe_intermediate_size",),
            "expert_shared_feed_forward_length": (
                "shared_expert_intermediate_size",
                "shared_intermediate_size",
                "moe_shared_expert_intermediate_size",
            ),
            "expert_weights_scale": ("routed_scaling_factor",),
            "leading_dense_block_count": ("num_dense_layers",),
            "shortconv.l_cache": ("conv_L_cache",),
            "ssm.conv_kernel": ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"),
            "ssm.state_size": ("linear_key_head_dim", "mamba_d_state", "ssm_state_size"),
            "ssm.group_count": ("linear_num_key_heads", "mamba_n_groups", "n_groups"),
            "ssm.time_step_rank": (
                "linear_num_value_heads",
                "mamba_n_heads",
                "mamba_num_heads",
                "mamba_dt_rank",
            ),
            "attention.scale": ("attention_multiplier",),
            "embedding_scale": ("embedding_multiplier",),
            "residual_scale": ("residual_multiplier",),
            "logit_scale": ("logits_scaling",),
        }
        if self.family == "falcon_h1":
            del named["embedding_scale"]  # in the weights
        keys = {key: c[name] for key, names in named.items() for name in names if name in c}
        if "ssm.time_step_rank" in keys:
            heads = {"linear_value_head_dim": "linear_num_value_heads", "mamba_head_dim": "mamba_num_heads"}
            width = [c[dim] * c[number] for dim, number in heads.items() if dim in c]
            expanded = c.get("mamba_d_ssm") or c.get("mamba_expand", 0) * c["hidden_size"]
            keys["ssm.inner_size"] = width[0] if width else expanded
        if self.family in _QWEN:
            keys |= self._of_qwen()
        if self.family in ("granitemoehybrid", "bamba"):
            share = c["rope_parameters"].get("partial_rotary_factor", 1)
            keys["rope.dimension_count"] = int(c["hidden_size"] / c["num_attention_heads"] * share)
            keys["rope.scaling.finetuned"] = self.family == "bamba"
        if self.family == "nemotron_h":
            widths = {"mlp": c["intermediate_size"], "moe": c["moe_intermediate_size"]}
            keys["feed_forward_length"] = [widths.get(kind, 0) for kind in self._kinds()]
            keys |= {"rope.dimension_count": 8, "rope.scaling.finetuned": False}
            keys |= {"expert_shared_count": 1, "expert_weights_norm": True}
            keys |= {"expert_group_count": 1, "expert_group_used_count": 1}
        if self.family in _KIMI:
            keys |= self._of_kimi()
        if self.family in (_KIMI | {"lfm2_moe"}):
            keys["expert_gating_func"] = 2
        return keys

    def _of_qwen(self) -> dict[str, Any]:
        rope = self.config["rope_parameters"]
        keys: dict[str, Any] = {
            "rope.dimension_count": int(self.config["head_dim"] * rope["partial_rotary_factor"]),
            "attention.recurrent_layers": [kind == "linear_attention" for kind in self._kinds()],
            "full_attention_interval": 4,
        }
        if "mrope_section" in rope:
            keys["rope.dimension_sections"] = [*rope["mrope_section"], 0]
        return keys

    def _of_kimi(self) -> dict[str, Any]:
        c = self.config
        rank, rope = c["kv_lora_rank"], c["qk_rope_head_dim"]
        keys: dict[str, Any] = {}
        if self.family == "bailing_hybrid":
            keys = {"kda.safe_gate": True, "kda.gate_lower_bound": c["kda_lower_bound"]}
            keys |= {"expert_group_count": 3, "expert_group_used_count": 2, "expert_weights_norm": True}
            keys["expert_shared_feed_forward_length"] = c["moe_intermediate_size"]
        return keys | {
            "kda.head_dim": c["linear_head_dim"],
            "attention.kv_lora_rank": rank,
            "attention.key_length": rank + rope,
            "attention.value_length": c["head_dim"],
            "attention.key_length_mla": c["qk_nope_head_dim"] + rope,
            "attention.value_length_mla": c["v_head_dim"],
            "attention.head_count_kv": [int(kind == "full_attention") for kind in self._kinds()],
            "rope.dimension_count": rope,
            "leading_dense_block_count": c["mlp_layer_types"].count("dense"),
            "expert_shared_count": c["num_shared_experts"],
        }
