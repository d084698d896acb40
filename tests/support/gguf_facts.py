"""The goldens of newer families as llama.cpp's converter stores them in a GGUF file: some facts per family.

Source: llama.cpp, conversion/*.py and gguf-py/gguf/tensor_mapping.py. `gguf_newer.py` makes the files.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]
# Between two additions the norm after attention is before the MLP.
_AFTER = {"post_attention_layernorm": "post_attention_norm"}


def slides(c: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in c["layer_types"]]


def dense(c: Config) -> int:
    """Layers before the first mixture."""
    types = c.get("mlp_layer_types")
    first: int = [*types, "sparse"].index("sparse") if types else c.get("first_k_dense_replace", 0)
    return first


def of_full(c: Config, key: str) -> Any:
    """What layers without a window have (gemma4)."""
    own = c["per_layer_config"][str(slides(c).index(False))]
    return own.get(key, c[key])


Key = str | Callable[[Config], Any]
WINDOW: dict[str, Key] = {"attention.sliding_window": "sliding_window"}
WINDOWS = WINDOW | {"attention.sliding_window_pattern": slides}
EXPERTS: dict[str, Key] = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
ROUTED = EXPERTS | {
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": dense,
    "expert_gating_func": lambda _: 2,
}
DEEPSEEK = ROUTED | {
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
LATENT: dict[str, Key] = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "attention.head_count_kv": lambda _: 1,
    "attention.key_length": lambda c: c["kv_lora_rank"] + c["qk_rope_head_dim"],
    "attention.value_length": "kv_lora_rank",
    "attention.key_length_mla": lambda c: c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
    "attention.value_length_mla": "v_head_dim",
    "rope.scaling.yarn_log_multiplier": lambda c: _scaled(0.1, c["rope_parameters"].get("mscale_all_dim")),
}
INDEXER: dict[str, Key] = {
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
}
GRANITE: dict[str, Key] = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_feed_forward_length": "shared_intermediate_size",
}
GEMMA = WINDOWS | {
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": lambda c: c.get("hidden_size_per_layer_input") or 0,
}


def _scaled(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


@dataclass(frozen=True)
class Facts:
    """What the files of one family have beside the common keys and names."""

    arch: str
    # (key of the file): a key of config.json, or what makes the value; None leaves it out.
    keys: Mapping[str, Key] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    # Whether the converter moves the rows of q and k.
    moved: bool = False
    # Whether gate and up of experts that share a tensor stay in one.
    stacked: bool = False
    # What no file says, and llama.cpp takes for granted: changes of config.json.
    granted: Mapping[str, Any] = field(default_factory=dict)


_YARN_IN_MISTRAL: dict[str, Key] = {
    "rope.scaling.yarn_log_multiplier": lambda c: c["rope_parameters"].get("mscale_all_dim"),
    "attention.temperature_scale": lambda c: c["rope_parameters"]["llama_4_scaling_beta"],
}
_GEMMA4 = GEMMA | {
    "attention.key_length": lambda c: of_full(c, "head_dim"),
    "attention.value_length": lambda c: of_full(c, "head_dim"),
    "attention.key_length_swa": "head_dim",
    "attention.value_length_swa": "head_dim",
    "attention.head_count_kv": lambda c: [
        c["num_key_value_heads"] if window else of_full(c, "num_key_value_heads") for window in slides(c)
    ],
    "feed_forward_length": lambda c: [
        c["intermediate_size"] * (2 if c.get("use_double_wide_mlp") and shares else 1)
        for shares in _sharing(c)
    ],
    "rope.dimension_count": lambda c: of_full(c, "head_dim"),
    "rope.dimension_count_swa": "head_dim",
    "expert_count": "num_experts",
    "expert_used_count": "top_k_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
}


def _sharing(c: Config) -> list[bool]:
    """Which layers share the keys and values of others."""
    return [
        layer >= len(c["layer_types"]) - c["num_kv_shared_layers"] for layer in range(len(c["layer_types"]))
    ]


def _quantile(share: float) -> float:
    """How many standard deviations above the mean leave this share below."""
    if share <= 0:
        return -math.inf
    low, high = -9.0, 9.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(-middle / math.sqrt(2)) / 2 < share else (low, middle)
    return low


FACTS = {
    "gemma3n_text": Facts(
        "gemma3n",
        GEMMA
        | {
            "altup.num_inputs": "altup_num_inputs",
            "altup.active_idx": "altup_active_idx",
            "activation_sparsity_scale": lambda c: [_quantile(s) for s in c["activation_sparsity_pattern"]],
        },
        _AFTER,
    ),
    "gemma4_text": Facts("gemma4", _GEMMA4, _AFTER, stacked=True),
    "gemma4_unified_text": Facts("gemma4", _GEMMA4, _AFTER),
    "ministral3": Facts("mistral3", _YARN_IN_MISTRAL, moved=True),
    "mistral4": Facts(
        "mistral4",
        DEEPSEEK
        | LATENT
        | {"attention.temperature_scale": _YARN_IN_MISTRAL["attention.temperature_scale"]}
        | {"expert_gating_func": lambda _: 1},
        stacked=True,
    ),
    "llama4_text": Facts(
        "llama4",
        {
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "feed_forward_length": "intermediate_size_mlp",
            "expert_feed_forward_length": "intermediate_size",
            "interleave_moe_layer_step": lambda _: 2,
        },
        granted={
            "attention_chunk_size": 8192,
            "floor_scale": 8192,
            "attn_scale": 0.1,
            "no_rope_layers": [1, 1, 1],
            "layer_types": ["chunked_attention"] * 3,
        },
    ),
    "glm4_moe": Facts("glm4moe", DEEPSEEK, _AFTER),
    "solar_open": Facts("glm4moe", DEEPSEEK | {"feed_forward_length": lambda _: None}, _AFTER),
    "glm4_moe_lite": Facts("deepseek2", DEEPSEEK | LATENT | {"expert_gating_func": lambda _: None}),
    "youtu": Facts("deepseek2", LATENT | {"leading_dense_block_count": "num_hidden_layers"}),
    "deepseek_v32": Facts("deepseek32", DEEPSEEK | LATENT | INDEXER),
    "glm_moe_dsa": Facts(
        "glm-dsa",
        DEEPSEEK
        | LATENT
        | INDEXER
        | {"attention.indexer.types": lambda c: [kind == "full" for kind in c["indexer_types"]]},
    ),
    "minicpm3": Facts(
        "minicpm3",
        {
            "attention.q_lora_rank": "q_lora_rank",
            "attention.kv_lora_rank": "kv_lora_rank",
            "rope.dimension_count": "qk_rope_head_dim",
            "attention.key_length": "qk_head_dim",
            "attention.value_length": lambda _: None,
        },
        granted={"scale_emb": 12, "dim_model_base": 256, "max_position_embeddings": 56},
    ),
    "ernie4_5": Facts("ernie4_5"),
    "ernie4_5_moe": Facts(
        "ernie4_5-moe",
        {
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "moe_num_shared_experts",
            "leading_dense_block_count": "moe_layer_start_index",
            "interleave_moe_layer_step": "moe_layer_interval",
        },
    ),
    "granitemoe": Facts("granitemoe", GRANITE, moved=True),
    "granitemoeshared": Facts("granitemoe", GRANITE, moved=True),
    "granite_swa": Facts("granite_swa", GRANITE | WINDOWS, moved=True, granted={"layer_rope_theta": None}),
    "granitemoe_swa": Facts(
        "granite_swa",
        GRANITE | WINDOWS,
        {"shared_mlp.input_linear": "ffn_up_shexp"},
        moved=True,
        stacked=True,
        granted={"layer_rope_theta": None},
    ),
    "olmoe": Facts("olmoe", EXPERTS),
    "olmo3": Facts("olmo2", WINDOWS, _AFTER),
    "phimoe": Facts(
        "phimoe",
        {
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "attention.sliding_window": lambda _: 0,
            "rope.scaling.attn_factor": lambda _: 1.25,
            "rope.scaling.original_context_length": "original_max_position_embeddings",
        },
        granted={"rope_parameters": {"short_mscale": 1.25, "long_mscale": 1.25}},
    ),
    "seed_oss": Facts("seed_oss", names=_AFTER),
    "hunyuan_v1_dense": Facts("hunyuan-dense"),
    "hunyuan_v1_moe": Facts(
        "hunyuan-moe",
        {
            "expert_count": "num_experts",
            "expert_used_count": "moe_topk",
            "expert_feed_forward_length": "intermediate_size",
            "expert_shared_feed_forward_length": "intermediate_size",
            "expert_shared_count": lambda _: 1,
        },
    ),
    "hy_v3": Facts(
        "hy_v3",
        EXPERTS
        | {
            "expert_shared_feed_forward_length": lambda c: (
                c["num_shared_experts"] * c["moe_intermediate_size"]
            ),
            "expert_weights_scale": "router_scaling_factor",
            "expert_weights_norm": lambda _: True,
            "expert_gating_func": lambda _: 2,
        },
        {"mlp.expert_bias": "exp_probs_b."},
    ),
    "apertus": Facts("apertus"),
    "bitnet": Facts(
        "bitnet-b1.58",
        names={"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"},
    ),
    "arcee": Facts("arcee", moved=True),
    "jais2": Facts("jais2"),
    "dots1": Facts(
        "dots1", DEEPSEEK, granted={"sliding_window": None, "layer_types": ["full_attention"] * 3}
    ),
    "minimax_m2": Facts(
        "minimax-m2",
        {
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "intermediate_size",
            "expert_gating_func": lambda _: 2,
        },
    ),
    "exaone_moe": Facts(
        "exaone-moe",
        ROUTED
        | WINDOWS
        | {"expert_shared_count": "num_shared_experts", "expert_group_count": "n_group"}
        | {"expert_group_used_count": "topk_group"},
    ),
    "cohere2_moe": Facts(
        "cohere2moe",
        ROUTED
        | WINDOWS
        | {
            "logit_scale": "logit_scale",
            "feed_forward_length": "prefix_dense_intermediate_size",
            "expert_feed_forward_length": "intermediate_size",
            "expert_shared_count": "num_shared_experts",
            "expert_gating_func": lambda _: 1,
            "expert_weights_scale": lambda _: None,
        },
    ),
    "afmoe": Facts(
        "afmoe",
        ROUTED
        | WINDOWS
        | {
            "expert_shared_count": "num_shared_experts",
            "leading_dense_block_count": "num_dense_layers",
            "expert_weights_scale": "route_scale",
            "expert_weights_norm": lambda _: True,
        },
        _AFTER,
    ),
    "laguna": Facts(
        "laguna",
        ROUTED
        | WINDOWS
        | {
            "attention.head_count": "num_attention_heads_per_layer",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
            "expert_weights_scale": "moe_routed_scaling_factor",
            "expert_weights_norm": lambda _: True,
        },
        granted={"moe_router_logit_softcapping": 0.0},
    ),
    "mellum": Facts("mellum", EXPERTS | {"expert_count": "num_local_experts"} | WINDOWS),
    "mimo_v2_flash": Facts(
        "mimo2",
        DEEPSEEK
        | WINDOWS
        | {
            "attention.head_count_kv": lambda c: [
                c["num_key_value_heads"] * (2 if window else 1) for window in slides(c)
            ],
            "attention.value_length": "v_head_dim",
            "attention.value_scale": "attention_value_scale",
            "leading_dense_block_count": lambda _: None,
        },
    ),
}
