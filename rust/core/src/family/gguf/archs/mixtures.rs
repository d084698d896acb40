//! Architectures whose layers all have attention, with mixtures of experts or latent attention.

use crate::family::gguf::arch::{
    Arch, EXPERT_WIDTH, EXPERTS, EXPERTS_USED, IN_ORDER, LAYER, MULTIPLIERS, PAIRED, ROTATED, Rotary,
    SIGMOID, SOFTMAX, WINDOW,
};
use crate::family::gguf::own;

/// The architectures.
pub(super) static ARCHS: &[Arch] = &[
    Arch {
        name: "qwen2moe",
        model_type: "qwen2_moe",
        keys: &[
            EXPERTS,
            EXPERTS_USED,
            EXPERT_WIDTH,
            ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        ],
        facts: &[("norm_topk_prob", "false")],
        ..IN_ORDER
    },
    Arch {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        keys: &[EXPERTS, EXPERTS_USED, EXPERT_WIDTH],
        facts: &[("norm_topk_prob", "true")],
        ..IN_ORDER
    },
    Arch {
        name: "deepseek2",
        model_type: "deepseek_v3",
        others: &["deepseek_v2", "glm4_moe_lite", "youtu"],
        rotary: Rotary::Mla,
        keys: LATENT,
        shared_keys: MIXTURE,
        ..IN_ORDER
    },
    Arch {
        name: "gpt-oss",
        model_type: "gpt_oss",
        keys: &[WINDOW, LOCAL_EXPERTS, EXPERTS_USED, ("intermediate_size", "expert_feed_forward_length")],
        ..IN_ORDER
    },
    Arch {
        name: "mistral4",
        model_type: "mistral4",
        rotary: Rotary::Mla,
        keys: LATENT,
        shared_keys: MIXTURE,
        fixed: &[SOFTMAX],
        own: own::mistral4,
        ..IN_ORDER
    },
    Arch {
        name: "llama4",
        model_type: "llama4_text",
        others: &["llama4"],
        keys: &[
            ("intermediate_size_mlp", "feed_forward_length"),
            ("intermediate_size", "expert_feed_forward_length"),
            ("interleave_moe_layer_step", "interleave_moe_layer_step"),
            LOCAL_EXPERTS,
            EXPERTS_USED,
        ],
        fixed: &[SIGMOID],
        own: own::llama4,
        ..IN_ORDER
    },
    Arch {
        name: "glm4moe",
        model_type: "glm4_moe",
        others: &["solar_open"],
        rotary: Rotary::Share,
        shared_keys: MIXTURE,
        facts: &[("first_k_dense_replace", "0")],
        flags: &[("attention_bias", "attn_q.bias"), ("use_qk_norm", "attn_q_norm.weight")],
        fixed: &[SIGMOID],
        ..IN_ORDER
    },
    Arch {
        name: "ernie4_5-moe",
        model_type: "ernie4_5_moe",
        keys: &[
            ("moe_num_experts", "expert_count"),
            ("moe_k", "expert_used_count"),
            EXPERT_WIDTH,
            ("moe_layer_start_index", "leading_dense_block_count"),
            ("moe_layer_interval", "interleave_moe_layer_step"),
            ("moe_num_shared_experts", "expert_shared_count"),
        ],
        facts: &[("moe_layer_start_index", "0"), ("moe_num_shared_experts", "0")],
        own: own::shared_experts,
        ..IN_ORDER
    },
    Arch {
        name: "granitemoe",
        model_type: "granitemoe",
        others: &["granitemoeshared"],
        shared_keys: MULTIPLIERS,
        keys: &[
            LOCAL_EXPERTS,
            EXPERTS_USED,
            ("shared_intermediate_size", "expert_shared_feed_forward_length"),
        ],
        fixed: ROTATED,
        ..PAIRED
    },
    Arch {
        name: "olmoe",
        model_type: "olmoe",
        keys: &[EXPERTS, EXPERTS_USED],
        facts: &[("norm_topk_prob", "false")],
        ..IN_ORDER
    },
    Arch {
        name: "phimoe",
        model_type: "phimoe",
        rotary: Rotary::Share,
        keys: &[
            WINDOW,
            LOCAL_EXPERTS,
            EXPERTS_USED,
            ("original_max_position_embeddings", "rope.scaling.original_context_length"),
        ],
        flags: &[("attention_bias", "attn_q.bias")],
        own: own::phimoe,
        ..IN_ORDER
    },
    Arch {
        name: "hunyuan-moe",
        model_type: "hunyuan_v1_moe",
        keys: &[EXPERTS, ("moe_topk", "expert_used_count")],
        fixed: &[("expert_shared_count", "1")],
        own: own::hunyuan_moe,
        ..IN_ORDER
    },
    Arch {
        name: "hy_v3",
        model_type: "hy_v3",
        keys: &[
            EXPERTS,
            EXPERTS_USED,
            EXPERT_WIDTH,
            ("router_scaling_factor", "expert_weights_scale"),
            NORMALIZED,
        ],
        facts: &[("router_scaling_factor", "1.0")],
        fixed: &[SIGMOID],
        own: own::hy_v3,
        ..IN_ORDER
    },
    Arch {
        name: "dots1",
        model_type: "dots1",
        shared_keys: MIXTURE,
        facts: &[("sliding_window", "null"), ("norm_topk_prob", "false")],
        fixed: &[SIGMOID],
        ..IN_ORDER
    },
    Arch {
        name: "minimax-m2",
        model_type: "minimax_m2",
        rotary: Rotary::Share,
        keys: &[LOCAL_EXPERTS, EXPERTS_USED, ("intermediate_size", "expert_feed_forward_length")],
        fixed: &[SIGMOID],
        ..IN_ORDER
    },
    Arch {
        name: "exaone-moe",
        model_type: "exaone_moe",
        keys: &[
            WINDOW,
            EXPERTS,
            ("num_shared_experts", "expert_shared_count"),
            EXPERTS_USED,
            EXPERT_WIDTH,
            DENSE_LAYERS,
            ("routed_scaling_factor", "expert_weights_scale"),
            NORMALIZED,
            ("n_group", "expert_group_count"),
            ("topk_group", "expert_group_used_count"),
        ],
        facts: &[("first_k_dense_replace", "0"), ("routed_scaling_factor", "1.0")],
        fixed: &[SIGMOID],
        own: own::shared_experts,
        ..IN_ORDER
    },
    Arch {
        name: "cohere2moe",
        model_type: "cohere2_moe",
        epsilon: LAYER,
        keys: &[
            WINDOW,
            ("logit_scale", "logit_scale"),
            EXPERTS,
            ("num_shared_experts", "expert_shared_count"),
            EXPERTS_USED,
            ("prefix_dense_intermediate_size", "feed_forward_length"),
            ("intermediate_size", "expert_feed_forward_length"),
            DENSE_LAYERS,
            NORMALIZED,
        ],
        facts: &[("norm_topk_prob", "false")],
        fixed: &[("expert_weights_scale", "1.0")],
        own: own::cohere2moe,
        ..IN_ORDER
    },
    Arch {
        name: "afmoe",
        model_type: "afmoe",
        keys: &[
            WINDOW,
            EXPERTS,
            ("num_shared_experts", "expert_shared_count"),
            EXPERTS_USED,
            EXPERT_WIDTH,
            ("num_dense_layers", "leading_dense_block_count"),
            ("route_scale", "expert_weights_scale"),
            NORMALIZED,
        ],
        facts: &[
            ("mup_enabled", "true"),
            ("norm_topk_prob", "false"),
            ("num_dense_layers", "0"),
            ("sliding_window", "null"),
        ],
        fixed: &[SIGMOID],
        ..IN_ORDER
    },
    Arch {
        name: "laguna",
        model_type: "laguna",
        rotary: Rotary::Share,
        keys: &[
            WINDOW,
            EXPERTS,
            EXPERTS_USED,
            EXPERT_WIDTH,
            ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
            DENSE_LAYERS,
            ("moe_routed_scaling_factor", "expert_weights_scale"),
        ],
        fixed: &[SIGMOID, ("expert_weights_norm", "true"), ("expert_shared_count", "1")],
        own: own::laguna,
        ..IN_ORDER
    },
    Arch {
        name: "mellum",
        model_type: "mellum",
        keys: &[WINDOW, EXPERTS, EXPERTS_USED, EXPERT_WIDTH],
        facts: &[("sliding_window", "null"), ("norm_topk_prob", "true")],
        own: own::mellum,
        ..IN_ORDER
    },
    Arch {
        name: "mimo2",
        model_type: "mimo_v2_flash",
        rotary: Rotary::Share,
        shared_keys: MIXTURE,
        keys: &[
            WINDOW,
            ("v_head_dim", "attention.value_length"),
            ("attention_value_scale", "attention.value_scale"),
        ],
        facts: &[("attention_value_scale", "null")],
        fixed: &[SIGMOID],
        own: own::mimo2,
        ..IN_ORDER
    },
    Arch { name: "minicpm3", model_type: "minicpm3", rotary: Rotary::Mla, keys: LATENT, ..IN_ORDER },
    Arch {
        name: "deepseek32",
        model_type: "deepseek_v32",
        rotary: Rotary::Mla,
        keys: INDEXED,
        shared_keys: MIXTURE,
        fixed: &[SIGMOID],
        ..IN_ORDER
    },
    Arch {
        name: "glm-dsa",
        model_type: "glm_moe_dsa",
        rotary: Rotary::Mla,
        keys: INDEXED,
        shared_keys: MIXTURE,
        fixed: &[SIGMOID],
        own: own::indexer,
        ..IN_ORDER
    },
    Arch {
        name: "qwen3vlmoe",
        model_type: "qwen3_moe",
        keys: &[EXPERTS, EXPERTS_USED, EXPERT_WIDTH],
        facts: &[("norm_topk_prob", "true")],
        ..IN_ORDER
    },
];

/// DeepSeek's.
const MIXTURE: &[(&str, &str)] = &[
    ("n_routed_experts", "expert_count"),
    ("n_shared_experts", "expert_shared_count"),
    EXPERTS_USED,
    EXPERT_WIDTH,
    DENSE_LAYERS,
    ("routed_scaling_factor", "expert_weights_scale"),
    NORMALIZED,
    ("n_group", "expert_group_count"),
    ("topk_group", "expert_group_used_count"),
];
/// Keys of latent attention.
const LATENT: &[(&str, &str)] = &[
    ("q_lora_rank", "attention.q_lora_rank"),
    ("kv_lora_rank", "attention.kv_lora_rank"),
    ("qk_rope_head_dim", "rope.dimension_count"),
];
/// Latent attention with an indexer.
const INDEXED: &[(&str, &str)] = &[
    LATENT[0],
    LATENT[1],
    LATENT[2],
    ("index_n_heads", "attention.indexer.head_count"),
    ("index_head_dim", "attention.indexer.key_length"),
    ("index_topk", "attention.indexer.top_k"),
];
const DENSE_LAYERS: (&str, &str) = ("first_k_dense_replace", "leading_dense_block_count");
const NORMALIZED: (&str, &str) = ("norm_topk_prob", "expert_weights_norm");
const LOCAL_EXPERTS: (&str, &str) = ("num_local_experts", "expert_count");
