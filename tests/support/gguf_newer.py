"""The goldens of newer families as llama.cpp's converter stores them in a GGUF file.

Source: llama.cpp, conversion/*.py and gguf-py/gguf/tensor_mapping.py.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from gguf_converter import divisors, moved
from gguf_facts import FACTS, Config, of_full
from gguf_files import Tensors, write
from reference import read_safetensors

_PARTS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}

# Hugging Face's names below the layer, llama.cpp's below `blk.N.`; those with a dot are whole.
_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.attention_sink_bias": "attn_sinks.weight",
    "self_attn.gate_proj": "attn_gate",
    "self_attn.g_proj": "attn_gate",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.indexer.wq_b": "indexer.attn_q_b.weight",
    "self_attn.indexer.wk": "indexer.attn_k.weight",
    "self_attn.indexer.weights_proj": "indexer.proj.weight",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "attention_layernorm": "attn_norm",
    "feedforward_layernorm": "ffn_norm",
    "pre_mlp_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.wg": "ffn_gate_inp",
    "mlp.router.gate": "ffn_gate_inp",
    "router.proj": "ffn_gate_inp",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "feed_forward.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.router": "ffn_gate_inp",
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.expert_bias": "exp_probs_b.bias",
    "shared_mlp.output_linear": "ffn_down_shexp",
    "layer_scalar": "layer_output_scale.weight",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "altup.router_norm": "altup_router_norm",
    "altup.modality_router": "altup_router",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.correction_coefs": "altup_correct_coef",
    "altup.correct_output_scale": "altup_correct_scale.weight",
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
}
_ENDS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}


class NewerConverter:
    """One golden model on its way into a file."""

    def __init__(self, folder: Path) -> None:
        self.config: Config = json.loads((folder / "config.json").read_text())
        self.facts = FACTS[self.config["model_type"]]
        self.tensors = read_safetensors(folder / "model.safetensors")
        for key, value in self.facts.granted.items():
            inner = self.config.get(key)
            self.config[key] = inner | value if isinstance(value, dict) and inner else value
        c = self.config
        self.head_dim: int = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        rope = c["rope_parameters"]
        self.rope: Config = rope.get("full_attention", rope)
        self.local: Config = rope.get("sliding_attention", {})

    def write(self, path: Path, tensors: Tensors | None = None, **changes: Any) -> Path:
        """The file. tensors: further ones. changes: as those of `gguf_converter.Converter`."""
        changed = {f"{self.facts.arch}.{key.replace('__', '.')}": value for key, value in changes.items()}
        metadata = {key: value for key, value in (self.metadata() | changed).items() if value is not None}
        return write(path, metadata, self.converted() | self._divisors() | (tensors or {}))

    def as_granted(self, folder: Path, into: Path) -> Path:
        """The model folder again, with what llama.cpp takes for granted in its config.json."""
        into.mkdir()
        (into / "config.json").write_text(json.dumps(self.config))
        shutil.copyfile(folder / "model.safetensors", into / "model.safetensors")
        return into

    def converted(self) -> Tensors:
        out: Tensors = {}
        lists: dict[str, dict[int, np.ndarray]] = {}
        for name, values in self.tensors.items():
            path, _, end = name.rpartition(".")
            if end not in ("weight", "bias"):
                path, end = name, ""
            layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", path)
            stream = re.fullmatch(r"model\.altup_(projections|unembed_projections)\.(\d+)", path)
            if stream:
                to = "altup_proj.weight" if stream[1] == "projections" else "altup_unembd_proj.weight"
                lists.setdefault(to, {})[int(stream[2])] = values
            elif layer is None:
                out[f"{_ENDS[path]}.{end}"] = values
            elif expert := re.fullmatch(r"\S*experts\.(\d+)\.(\w+)", layer[2]):
                to = f"blk.{layer[1]}.ffn_{_PARTS[expert[2]]}_exps.weight"
                lists.setdefault(to, {})[int(expert[1])] = values
            else:
                self._layer(f"blk.{layer[1]}.", layer[2], end, values, out)
        for to, each in lists.items():
            out[to] = np.stack([each[number] for number in range(len(each))])
        return out

    def _layer(self, prefix: str, path: str, end: str, values: np.ndarray, out: Tensors) -> None:
        c, facts = self.config, self.facts
        names = _NAMES | dict(facts.names)
        shared = re.fullmatch(r"\S*shared_(?:experts?|mlp)\.(gate|up|down)_proj", path)
        both = re.fullmatch(r"\S*(?:experts\.gate_up_proj|(?:moe|mlp)\.input_linear)", path)
        if path.startswith("mlp.act_fn."):
            return  # in the metadata
        if shared:
            out[f"{prefix}ffn_{shared[1]}_shexp.weight"] = values
        elif both and path not in names:
            self._both(prefix, "shexp" if "shared_mlp" in path else "exps", values, out)
        elif path.endswith(("experts.down_proj", "moe.output_linear")):
            out[f"{prefix}ffn_down_exps.weight"] = self._turned(values)
        elif names[path] == "attn_kv_b" and facts.arch != "minicpm3":
            heads = values.reshape(c["num_attention_heads"], -1, values.shape[1])
            nope = c["qk_nope_head_dim"]
            out[f"{prefix}attn_k_b.weight"] = heads[:, :nope].swapaxes(1, 2)
            out[f"{prefix}attn_v_b.weight"] = heads[:, nope:]
        else:
            to = names[path]
            if facts.moved and to in ("attn_q", "attn_k"):
                values = moved(values, c["num_attention_heads" if to == "attn_q" else "num_key_value_heads"])
            is_whole = to.endswith((".weight", ".bias", ".scale", "."))
            out[prefix + (to.rstrip(".") if is_whole else f"{to}.{end}")] = values

    def _both(self, prefix: str, kind: str, values: np.ndarray, out: Tensors) -> None:
        """Rows of gate, then those of up."""
        values = self._turned(values)
        if self.facts.stacked:
            out[f"{prefix}ffn_gate_up_{kind}.weight"] = values
            return
        gate, up = np.split(values, 2, axis=-2)
        out[f"{prefix}ffn_gate_{kind}.weight"], out[f"{prefix}ffn_up_{kind}.weight"] = gate, up

    def _turned(self, values: np.ndarray) -> np.ndarray:
        """Llama 4's experts are [in, out]."""
        return values.swapaxes(-1, -2) if self.facts.arch == "llama4" else values

    def _divisors(self) -> Tensors:
        kind = self.rope["rope_type"]
        if kind == "longrope":
            return {f"rope_factors_{k}.weight": np.array(self.rope[f"{k}_factor"]) for k in ("long", "short")}
        if kind == "proportional":
            pairs = of_full(self.config, "head_dim") // 2
            rotated = int(pairs * self.rope["partial_rotary_factor"])
            return {"rope_freqs.weight": np.array([1.0] * rotated + [1e30] * (pairs - rotated))}
        if kind != "llama3":
            return {}
        trained = float(self.rope["original_max_position_embeddings"])
        return {"rope_freqs.weight": divisors(self.rope, self.rope["rope_theta"], self.head_dim, trained)}

    def metadata(self) -> dict[str, Any]:
        c = self.config
        keys: dict[str, Any] = {
            "context_length": c["max_position_embeddings"],
            "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"],
            "feed_forward_length": c.get("intermediate_size"),
            "attention.head_count": c["num_attention_heads"],
            "attention.head_count_kv": c["num_key_value_heads"],
            "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps"),
            "attention.layer_norm_epsilon": c.get("layer_norm_eps"),
        }
        if c.get("head_dim"):
            keys |= {"attention.key_length": self.head_dim, "attention.value_length": self.head_dim}
        keys |= self._rotary()
        for key, source in self.facts.keys.items():
            keys[key] = c.get(source) if isinstance(source, str) else source(c)
        architecture = {f"{self.facts.arch}.{key}": _number(key, value) for key, value in keys.items()}
        general = {"general.architecture": self.facts.arch, "general.type": "model"}
        general |= {f"tokenizer.ggml.{name}_token_id": c[f"{name}_token_id"] for name in ("bos", "eos")}
        return (
            general | self._xielu() | {key: value for key, value in architecture.items() if value is not None}
        )

    def _xielu(self) -> dict[str, list[float]]:
        learned: dict[str, list[float]] = {}
        for name, values in sorted(self.tensors.items()):
            if "act_fn." in name:
                learned.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(
                    float(values.reshape(-1)[0])
                )
        return learned

    def _rotary(self) -> dict[str, Any]:
        rope, c = self.rope, self.config
        theta = float(rope["rope_theta"])
        if c["model_type"].startswith("hunyuan") and "alpha" in rope:  # a base of its own, once and for all
            theta *= rope["alpha"] ** (self.head_dim / (self.head_dim - 2))
        share: float = rope.get("partial_rotary_factor") or c.get("partial_rotary_factor") or 1.0
        keys: dict[str, Any] = {
            "rope.freq_base": theta,
            "rope.dimension_count": int(self.head_dim * share),
            "rope.freq_base_swa": self.local.get("rope_theta"),
        }
        if self.facts.arch == "laguna":
            keys["rope.dimension_count_swa"] = int(self.head_dim * self.local["partial_rotary_factor"])
        if rope["rope_type"] == "yarn":
            keys |= {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": rope["factor"],
                "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
                "rope.scaling.yarn_beta_fast": rope["beta_fast"],
                "rope.scaling.yarn_beta_slow": rope["beta_slow"],
                "rope.scaling.yarn_attn_factor": rope.get("attention_factor"),
            }
        return keys


def _number(key: str, value: Any) -> Any:
    """Bases, scales and caps are f32 in files, also whole ones."""
    is_float = isinstance(value, int) and re.search(r"freq_base|scale$|capping|factor$", key)
    return float(value) if is_float else value
