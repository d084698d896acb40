//! Architectures whose layers all have attention and a dense MLP, or may have one.

use crate::family::gguf::arch::{
    Arch, EXPERT_WIDTH, EXPERTS, IN_ORDER, LAYER, LLAMA, MULTIPLIERS, PAIRED, ROTATED, Rotary, WINDOW,
};
use crate::family::gguf::own;

/// The architectures.
pub(super) static ARCHS: &[Arch] = &[
    Arch {
        others: &["mistral", "llava", "llava_next", "voxtral", "idefics3", "smolvlm", "iquestcoder"],
        ..LLAMA
    },
    Arch { name: "qwen2", model_type: "qwen2", ..IN_ORDER },
    Arch { name: "qwen3", model_type: "qwen3", ..IN_ORDER },
    Arch { name: "gemma", model_type: "gemma", ..IN_ORDER },
    Arch {
        name: "gemma2",
        model_type: "gemma2",
        keys: &[WINDOW, ("attn_logit_softcapping", "attn_logit_softcapping"), FINAL_CAP],
        layers_of_quotient_scale: Some(46),
        ..IN_ORDER
    },
    Arch {
        name: "gemma3",
        model_type: "gemma3_text",
        others: &["gemma3"],
        keys: &[WINDOW, FINAL_CAP, ("rope_local_base_freq", "rope.freq_base_swa")],
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
        own: own::falcon,
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
        own: own::stablelm,
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
        own: own::olmo,
        ..PAIRED
    },
    Arch {
        name: "olmo2",
        model_type: "olmo2",
        others: &["olmo3"],
        keys: &[WINDOW],
        own: own::olmo2,
        ..IN_ORDER
    },
    Arch { name: "granite", model_type: "granite", keys: MULTIPLIERS, fixed: ROTATED, ..PAIRED },
    Arch { name: "nemotron", model_type: "nemotron", epsilon: "norm_eps", rotary: Rotary::Share, ..IN_ORDER },
    Arch { flags: GLM_FLAGS, name: "chatglm", model_type: "glm", rotary: Rotary::Share, ..IN_ORDER },
    Arch {
        flags: GLM_FLAGS,
        name: "glm4",
        model_type: "glm4",
        own: own::glm4,
        rotary: Rotary::Share,
        ..IN_ORDER
    },
    Arch { name: "smollm3", model_type: "smollm3", ..PAIRED },
    Arch {
        name: "exaone4",
        model_type: "exaone4",
        keys: &[WINDOW],
        // Its family's class says 4096.
        facts: &[("sliding_window", "null")],
        ..IN_ORDER
    },
    Arch {
        name: "gemma3n",
        model_type: "gemma3n_text",
        others: &["gemma3n"],
        keys: &[
            WINDOW,
            FINAL_CAP,
            ("rope_local_base_freq", "rope.freq_base_swa"),
            PER_LAYER_WIDTH,
            SHARED_KV,
            ("altup_num_inputs", "altup.num_inputs"),
            ("altup_active_idx", "altup.active_idx"),
        ],
        own: own::gemma3n,
        ..IN_ORDER
    },
    Arch {
        name: "gemma4",
        model_type: "gemma4_text",
        others: &["gemma4", "gemma4_unified_text", "gemma4_unified"],
        keys: &[
            WINDOW,
            FINAL_CAP,
            PER_LAYER_WIDTH,
            SHARED_KV,
            EXPERTS,
            ("top_k_experts", "expert_used_count"),
            EXPERT_WIDTH,
        ],
        facts: &[("hidden_size_per_layer_input", "0")],
        own: own::gemma4,
        ..IN_ORDER
    },
    Arch {
        name: "mistral3",
        model_type: "mistral",
        others: &["ministral3", "mistral3"],
        facts: &[("sliding_window", "null")],
        own: own::mistral3,
        ..PAIRED
    },
    Arch { name: "ernie4_5", model_type: "ernie4_5", ..IN_ORDER },
    Arch { name: "seed_oss", model_type: "seed_oss", facts: &[("attention_bias", "false")], ..IN_ORDER },
    Arch { name: "hunyuan-dense", model_type: "hunyuan_v1_dense", ..IN_ORDER },
    Arch {
        name: "apertus",
        model_type: "apertus",
        facts: &[("rope_scaling", "{\"rope_type\": \"default\"}")],
        ..IN_ORDER
    },
    Arch { name: "arcee", model_type: "arcee", ..PAIRED },
    Arch {
        name: "jais2",
        model_type: "jais2",
        epsilon: LAYER,
        facts: &[("attention_bias", "false"), ("mlp_bias", "false")],
        ..IN_ORDER
    },
    Arch {
        name: "granite_swa",
        model_type: "granite_swa",
        mixture: Some("granitemoe_swa"),
        shared_keys: MULTIPLIERS,
        keys: &[WINDOW, ("shared_intermediate_size", "expert_shared_feed_forward_length")],
        own: own::granite_swa,
        ..PAIRED
    },
    // bitnet.cpp's, and llama.cpp's: the same tensors.
    Arch { name: "bitnet-b1.58", model_type: "bitnet", keys: &[ACTIVATION], ..IN_ORDER },
    Arch { name: "bitnet", model_type: "bitnet", keys: &[ACTIVATION], own: own::bitnet, ..IN_ORDER },
    // Text parts of models that see pictures: a text has one position per token.
    Arch { name: "qwen2vl", model_type: "qwen2", others: &["qwen2_vl", "qwen2_5_vl"], ..IN_ORDER },
    Arch { name: "qwen3vl", model_type: "qwen3", others: &["qwen3_vl"], ..IN_ORDER },
    // Llama under other names.
    Arch { name: "internlm2", model_type: "llama", ..PAIRED },
    Arch { name: "exaone", model_type: "llama", own: own::exaone, ..IN_ORDER },
    Arch { name: "minicpm", model_type: "granite", shared_keys: MULTIPLIERS, own: own::minicpm, ..PAIRED },
];

const ACTIVATION: (&str, &str) = ("hidden_act", "hidden_activation");
const FINAL_CAP: (&str, &str) = ("final_logit_softcapping", "final_logit_softcapping");
const PER_LAYER_WIDTH: (&str, &str) = ("hidden_size_per_layer_input", "embedding_length_per_layer_input");
const SHARED_KV: (&str, &str) = ("num_kv_shared_layers", "attention.shared_kv_layers");
/// GLM's attention has biases in some models.
const GLM_FLAGS: &[(&str, &str)] = &[("attention_bias", "attn_q.bias"), ("attention_bias", "attn_qkv.bias")];
