//! Architectures with layers that have a recurrent state.

use crate::family::gguf::arch::{
    Arch, EXPERT_WIDTH, EXPERTS, EXPERTS_USED, IN_ORDER, MULTIPLIERS, PAIRED, RecurrentMixer, Rotary, SIGMOID,
};
use crate::family::gguf::hybrid;

const CONV: (&str, &str) = ("linear_conv_kernel_dim", "ssm.conv_kernel");
const KEY_DIM: (&str, &str) = ("linear_key_head_dim", "ssm.state_size");
const KEY_HEADS: (&str, &str) = ("linear_num_key_heads", "ssm.group_count");
const VALUE_HEADS: (&str, &str) = ("linear_num_value_heads", "ssm.time_step_rank");
const SHARED_WIDTH: (&str, &str) = ("shared_expert_intermediate_size", "expert_shared_feed_forward_length");
const ROUTED_SCALING: (&str, &str) = ("routed_scaling_factor", "expert_weights_scale");
const NORMALIZED: (&str, &str) = ("norm_topk_prob", "expert_weights_norm");
const GROUPS: (&str, &str) = ("n_group", "expert_group_count");
const OPEN_GROUPS: (&str, &str) = ("topk_group", "expert_group_used_count");
/// Mamba's and Mamba-2's sizes, as most families call them.
const MAMBA_CONV: (&str, &str) = ("mamba_d_conv", "ssm.conv_kernel");
const MAMBA_STATE: (&str, &str) = ("mamba_d_state", "ssm.state_size");
const MAMBA_GROUPS: (&str, &str) = ("mamba_n_groups", "ssm.group_count");
const MAMBA_HEADS: (&str, &str) = ("mamba_n_heads", "ssm.time_step_rank");
const MAMBA_BIASES: [(&str, &str); 2] =
    [("mamba_conv_bias", "ssm_conv1d.bias"), ("mamba_proj_bias", "ssm_in.bias")];

/// Qwen's with Gated DeltaNet.
const DELTA: Arch = Arch {
    rotary: Rotary::Share,
    mixer: Some(RecurrentMixer::GatedDelta),
    shared_keys: &[CONV, KEY_DIM, KEY_HEADS, VALUE_HEADS],
    own: hybrid::gated_delta,
    ..IN_ORDER
};
const DELTA_MOE: Arch = Arch { keys: &[EXPERTS, EXPERTS_USED, EXPERT_WIDTH, SHARED_WIDTH], ..DELTA };
const LFM2: Arch = Arch {
    name: "lfm2",
    model_type: "lfm2",
    epsilon: "norm_eps",
    mixer: Some(RecurrentMixer::ShortConv),
    shared_keys: &[("conv_L_cache", "shortconv.l_cache")],
    // The file states the adjusted width.
    facts: &[("block_auto_adjust_ff_dim", "false")],
    flags: &[("conv_bias", "shortconv.in_proj.bias")],
    own: hybrid::lfm2,
    ..IN_ORDER
};
const NEMOTRON_H: Arch = Arch {
    name: "nemotron_h",
    model_type: "nemotron_h",
    epsilon: "layer_norm_epsilon",
    rotary: Rotary::None,
    mixer: Some(RecurrentMixer::Mamba2),
    shared_keys: &[
        ("conv_kernel", "ssm.conv_kernel"),
        ("ssm_state_size", "ssm.state_size"),
        ("n_groups", "ssm.group_count"),
        ("mamba_num_heads", "ssm.time_step_rank"),
    ],
    flags: &[("use_conv_bias", "ssm_conv1d.bias"), ("use_bias", "ssm_in.bias")],
    own: hybrid::nemotron,
    ..PAIRED
};

const KIMI: Arch = Arch {
    rotary: Rotary::Mla,
    mixer: Some(RecurrentMixer::KimiDelta),
    shared_keys: &[
        CONV,
        ("linear_head_dim", "kda.head_dim"),
        ("q_lora_rank", "attention.q_lora_rank"),
        ("kv_lora_rank", "attention.kv_lora_rank"),
        ("qk_rope_head_dim", "rope.dimension_count"),
        EXPERTS,
        EXPERTS_USED,
        EXPERT_WIDTH,
        ("n_shared_experts", "expert_shared_count"),
        ("first_k_dense_replace", "leading_dense_block_count"),
        ROUTED_SCALING,
        NORMALIZED,
        GROUPS,
        OPEN_GROUPS,
    ],
    fixed: &[SIGMOID],
    own: hybrid::kimi,
    ..IN_ORDER
};

/// The architectures.
pub(super) static ARCHS: &[Arch] = &[
    Arch { name: "qwen35", model_type: "qwen3_5_text", others: &["qwen3_5"], ..DELTA },
    Arch { name: "qwen35moe", model_type: "qwen3_5_moe_text", others: &["qwen3_5_moe"], ..DELTA_MOE },
    Arch { name: "qwen3next", model_type: "qwen3_next", ..DELTA_MOE },
    LFM2,
    Arch {
        name: "lfm2moe",
        model_type: "lfm2_moe",
        keys: &[
            EXPERTS,
            EXPERTS_USED,
            EXPERT_WIDTH,
            ("num_dense_layers", "leading_dense_block_count"),
            ROUTED_SCALING,
            NORMALIZED,
        ],
        facts: &[],
        fixed: &[SIGMOID],
        ..LFM2
    },
    Arch {
        name: "granitehybrid",
        model_type: "granitemoehybrid",
        others: &["bamba"],
        rotary: Rotary::Share,
        mixer: Some(RecurrentMixer::Mamba2),
        keys: &[
            MAMBA_CONV,
            MAMBA_STATE,
            MAMBA_GROUPS,
            MAMBA_HEADS,
            ("num_local_experts", "expert_count"),
            EXPERTS_USED,
            ("shared_intermediate_size", "expert_shared_feed_forward_length"),
        ],
        shared_keys: MULTIPLIERS,
        flags: &MAMBA_BIASES,
        own: hybrid::granite,
        ..PAIRED
    },
    Arch {
        name: "falcon-h1",
        model_type: "falcon_h1",
        mixer: Some(RecurrentMixer::Mamba2),
        keys: &[MAMBA_CONV, MAMBA_STATE, MAMBA_GROUPS, MAMBA_HEADS, ("mamba_d_ssm", "ssm.inner_size")],
        // The weights have the multipliers in them.
        facts: &[("mamba_norm_before_gate", "false")],
        flags: &[MAMBA_BIASES[0], MAMBA_BIASES[1], ("mamba_rms_norm", "ssm_norm.weight")],
        own: hybrid::falcon_h1,
        ..IN_ORDER
    },
    NEMOTRON_H,
    Arch {
        name: "nemotron_h_moe",
        keys: &[
            ("n_routed_experts", "expert_count"),
            EXPERTS_USED,
            EXPERT_WIDTH,
            ("n_shared_experts", "expert_shared_count"),
            ("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
            ("moe_latent_size", "moe_latent_size"),
            ROUTED_SCALING,
            NORMALIZED,
            GROUPS,
            OPEN_GROUPS,
        ],
        ..NEMOTRON_H
    },
    Arch {
        name: "jamba",
        model_type: "jamba",
        rotary: Rotary::None,
        mixer: Some(RecurrentMixer::Mamba),
        keys: &[MAMBA_CONV, MAMBA_STATE, ("mamba_dt_rank", "ssm.time_step_rank"), EXPERTS, EXPERTS_USED],
        // The file's tensors say which layers have attention, and which have experts.
        facts: &[
            ("attn_layer_period", "1"),
            ("attn_layer_offset", "0"),
            ("expert_layer_period", "1"),
            ("expert_layer_offset", "0"),
        ],
        flags: &MAMBA_BIASES,
        own: hybrid::jamba,
        ..IN_ORDER
    },
    Arch { name: "kimi-linear", model_type: "kimi_linear", ..KIMI },
    Arch {
        name: "bailingmoe3",
        model_type: "bailing_hybrid",
        keys: &[("kda_safe_gate", "kda.safe_gate"), ("kda_lower_bound", "kda.gate_lower_bound")],
        own: hybrid::bailing,
        ..KIMI
    },
];
