//! Architectures whose layers all have attention.

use super::{Arch, EXPERT_WIDTH, EXPERTS, EXPERTS_USED, IN_ORDER, LAYER, LLAMA, PAIRED, Rotary, WINDOW};

/// The architectures.
pub(super) static ARCHS: &[Arch] = &[
    LLAMA,
    Arch { name: "qwen2", model_type: "qwen2", ..IN_ORDER },
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
    Arch { name: "qwen3", model_type: "qwen3", ..IN_ORDER },
    Arch {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        keys: &[EXPERTS, EXPERTS_USED, EXPERT_WIDTH],
        facts: &[("norm_topk_prob", "true")],
        ..IN_ORDER
    },
    Arch { name: "gemma", model_type: "gemma", ..IN_ORDER },
    Arch {
        name: "gemma2",
        model_type: "gemma2",
        keys: &[
            WINDOW,
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ],
        layers_of_quotient_scale: Some(46),
        ..IN_ORDER
    },
    Arch {
        name: "gemma3",
        model_type: "gemma3_text",
        keys: &[
            WINDOW,
            ("final_logit_softcapping", "final_logit_softcapping"),
            ("rope_local_base_freq", "rope.freq_base_swa"),
        ],
        layers_of_quotient_scale: Some(62),
        ..IN_ORDER
    },
    Arch { name: "phi2", model_type: "phi", epsilon: LAYER, rotary: Rotary::Share, ..IN_ORDER },
    Arch {
        name: "phi3",
        model_type: "phi3",
        rotary: Rotary::Share,
        keys: &[WINDOW, ("original_max_position_embeddings", "rope.scaling.original_context_length")],
        ..IN_ORDER
    },
    Arch { name: "gpt2", model_type: "gpt2", epsilon: LAYER, rotary: Rotary::None, ..IN_ORDER },
    Arch {
        name: "gptneox",
        model_type: "gpt_neox",
        epsilon: LAYER,
        rotary: Rotary::Share,
        keys: &[("use_parallel_residual", "use_parallel_residual")],
        ..IN_ORDER
    },
    Arch {
        name: "falcon",
        model_type: "falcon",
        epsilon: LAYER,
        // The new architecture is the old one with its heads counted.
        facts: &[("new_decoder_architecture", "true")],
        ..IN_ORDER
    },
    Arch {
        name: "starcoder2",
        model_type: "starcoder2",
        epsilon: "norm_epsilon",
        keys: &[WINDOW],
        ..IN_ORDER
    },
    Arch {
        name: "stablelm",
        model_type: "stablelm",
        epsilon: LAYER,
        rotary: Rotary::Share,
        flags: &[("qk_layernorm", "attn_q_norm.weight"), ("use_qkv_bias", "attn_q.bias")],
        ..IN_ORDER
    },
    Arch {
        name: "command-r",
        model_type: "cohere",
        epsilon: LAYER,
        keys: &[("logit_scale", "logit_scale")],
        flags: &[("use_qk_norm", "attn_q_norm.weight")],
        ..IN_ORDER
    },
    Arch {
        name: "cohere2",
        model_type: "cohere2",
        epsilon: LAYER,
        keys: &[WINDOW, ("logit_scale", "logit_scale")],
        ..IN_ORDER
    },
    Arch {
        name: "olmo",
        model_type: "olmo",
        epsilon: LAYER,
        keys: &[("clip_qkv", "attention.clamp_kqv")],
        ..PAIRED
    },
    Arch { name: "olmo2", model_type: "olmo2", ..IN_ORDER },
    Arch {
        name: "granite",
        model_type: "granite",
        keys: &[
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("logits_scaling", "logit_scale"),
        ],
        ..PAIRED
    },
    Arch { name: "nemotron", model_type: "nemotron", epsilon: "norm_eps", rotary: Rotary::Share, ..IN_ORDER },
    Arch { flags: GLM_FLAGS, name: "chatglm", model_type: "glm", rotary: Rotary::Share, ..IN_ORDER },
    Arch { flags: GLM_FLAGS, name: "glm4", model_type: "glm4", rotary: Rotary::Share, ..IN_ORDER },
    Arch { name: "smollm3", model_type: "smollm3", ..PAIRED },
    Arch { name: "exaone4", model_type: "exaone4", keys: &[WINDOW], ..IN_ORDER },
    Arch {
        name: "deepseek2",
        model_type: "deepseek_v3",
        rotary: Rotary::Mla,
        keys: &[
            ("q_lora_rank", "attention.q_lora_rank"),
            ("kv_lora_rank", "attention.kv_lora_rank"),
            ("qk_rope_head_dim", "rope.dimension_count"),
            ("n_routed_experts", "expert_count"),
            ("n_shared_experts", "expert_shared_count"),
            EXPERTS_USED,
            EXPERT_WIDTH,
            ("first_k_dense_replace", "leading_dense_block_count"),
            ("routed_scaling_factor", "expert_weights_scale"),
            ("norm_topk_prob", "expert_weights_norm"),
            ("n_group", "expert_group_count"),
            ("topk_group", "expert_group_used_count"),
        ],
        ..IN_ORDER
    },
    Arch {
        name: "gpt-oss",
        model_type: "gpt_oss",
        keys: &[WINDOW, ("num_local_experts", "expert_count"), EXPERTS_USED],
        ..IN_ORDER
    },
];

/// GLM's attention has biases in some models.
const GLM_FLAGS: &[(&str, &str)] = &[("attention_bias", "attn_q.bias"), ("attention_bias", "attn_qkv.bias")];
