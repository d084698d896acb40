//! Kimi Linear: Kimi Delta Attention, with latent attention without rotation in some layers; routing as in DeepSeek V3.
//! Bailing Hybrid (Ling 3.0): the same with a bounded decay, and latent attention that rotates and has a gate per head.
//!
//! Moonshot AI 2025 (Kimi Linear, <https://arxiv.org/abs/2510.26692>); inclusionAI 2026. Defaults of absent keys: transformers
//! 5.23, `configuration_kimi_linear.py` and `configuration_bailing_hybrid.py`. Published files of Kimi Linear state the sizes
//! and the layers, counted from 1, in `linear_attn_config`.

use super::deepseek;
use crate::config::{
    Activation, AttentionGate, Bias, Config, GateWidth, GatedOutput, InProj, KeyHeads, KvB, LayerRope,
    LinearAttention, LinearRule, LmHead, Mixer, MlaNames, MoeNames, Names, Recurrent, RecurrentNames,
    RopeLayout, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, NormKey};
use crate::family::keys::known::refuse_unknown;
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mixers::{mixers, with_mixers};
use crate::family::keys::mla::{MlaDefaults, Rotation};
use crate::family::keys::moe::{Routing, only_word};
use crate::family::keys::rope::{Partial, RopeFacts, rope_object, rope_of};
use crate::family::keys::windows::layer_numbers;
use ropechat_platform::error::Result;

pub(crate) static KIMI_LINEAR: Family =
    Family { model_types: &["kimi_linear"], aliases: ALIASES, config: kimi_linear };

pub(crate) static BAILING_HYBRID: Family =
    Family { model_types: &["bailing_hybrid"], aliases: ALIASES, config: bailing_hybrid };

const ALIASES: &[(&str, &str)] = &[
    ("max_position_embeddings", "model_max_length"),
    ("norm_topk_prob", "moe_renormalize"),
    ("n_group", "num_expert_group"),
    // What a message names where a file has neither.
    ("num_experts", "num_experts"),
    ("num_experts", "num_local_experts"),
    ("num_experts_per_tok", "num_experts_per_token"),
    ("n_shared_experts", "num_shared_experts"),
    ("num_nextn_predict_layers", "num_mtp_layers"),
];

const NAMES: Names = Names {
    moe: MoeNames::Each {
        router: tensor!("block_sparse_moe.gate"),
        experts: "block_sparse_moe.experts",
        parts: ["w1.weight", "w3.weight", "w2.weight"],
        shared: "block_sparse_moe.shared_experts",
        shared_parts: MoeNames::PARTS,
    },
    correction_bias: "block_sparse_moe.gate.e_score_correction_bias",
    recurrent: RecurrentNames {
        in_proj: InProj::Each([
            tensor!("self_attn.q_proj"),
            tensor!("self_attn.k_proj"),
            tensor!("self_attn.v_proj"),
            tensor!("self_attn.g_a_proj"),
            tensor!("self_attn.b_proj"),
            tensor!("self_attn.f_a_proj"),
        ]),
        conv: &[tensor!("self_attn.q_conv1d"), tensor!("self_attn.k_conv1d"), tensor!("self_attn.v_conv1d")],
        a_log: "self_attn.A_log",
        a_log_shape: [&[1, 1], &[1]],
        dt_bias: "self_attn.dt_bias",
        norm: tensor!("self_attn.o_norm"),
        out_proj: tensor!("self_attn.o_proj"),
        inner: &[tensor!("self_attn.g_b_proj"), tensor!("self_attn.f_b_proj")],
        ..Names::LLAMA.recurrent
    },
    ..Names::LLAMA
};

const BAILING_NAMES: Names = Names {
    embed_tokens: "word_embeddings.weight",
    attention_gate: tensor!("attention.g_proj"),
    mla: MlaNames {
        q_proj: tensor!("attention.q_proj"),
        kv_a_proj: tensor!("attention.kv_a_proj_with_mqa"),
        kv_a_layernorm: tensor!("attention.kv_a_layernorm"),
        kv_b_proj: KvB::Together(tensor!("attention.kv_b_proj")),
        ..Names::LLAMA.mla
    },
    o_proj: tensor!("attention.dense"),
    correction_bias: "mlp.gate.expert_bias",
    recurrent: RecurrentNames {
        in_proj: InProj::Each([
            tensor!("attention.q_proj"),
            tensor!("attention.k_proj"),
            tensor!("attention.v_proj"),
            tensor!("attention.g_proj"),
            tensor!("attention.b_proj"),
            tensor!("attention.f_proj"),
        ]),
        conv: &[tensor!("attention.q_conv1d"), tensor!("attention.k_conv1d"), tensor!("attention.v_conv1d")],
        a_log: "attention.A_log",
        dt_bias: "attention.dt_bias",
        norm: tensor!("attention.o_norm"),
        out_proj: tensor!("attention.dense"),
        ..Names::LLAMA.recurrent
    },
    ..deepseek::NAMES
};

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    vocab_size: Some(163_840),
    num_attention_heads: Some(32),
    num_hidden_layers: Some(27),
    intermediate_size: Some(9216),
    max_position_embeddings: 1 << 20,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    mlp_bias: BiasKey::Absent(Bias::None),
    ..Defaults::LLAMA
};

fn kimi_linear(metadata: &Metadata<'_>) -> Result<Config> {
    only_word(metadata, "moe_router_activation_func", "sigmoid")?;
    if !metadata.flag_or("mla_use_nope", true)? {
        return Err(metadata.unsupported("mla_use_nope", "must be true (got false)"));
    }
    let routing =
        Routing { experts: "num_experts", scaling: ("routed_scaling_factor", 2.446), ..Routing::DEEPSEEK };
    let mla = MlaDefaults { q_lora_rank: None, rotation: Rotation::None, ..MlaDefaults::DEEPSEEK };
    let config = common(metadata, &DEFAULTS, &mla, &routing, 1)?;
    // The routing is always by groups, and nothing is rotated.
    for key in ["use_grouped_topk", "rope_theta", "rope_scaling", "rope_parameters"] {
        metadata.get(key);
    }
    let layers = config.layers.len();
    let inner = metadata.object_if_any("linear_attn_config")?;
    let size = |key: &str, inner_key: &str, most: u64, default: usize| -> Result<usize> {
        let outer = metadata.integer_if_any(key, 1..=most)?.unwrap_or(default);
        let stated = inner.as_ref().map(|inner| inner.integer_if_any(inner_key, 1..=most)).transpose()?;
        Ok(stated.flatten().unwrap_or(outer))
    };
    let head_dim = size("linear_head_dim", "head_dim", 1 << 13, 128)?;
    let heads = size("linear_num_heads", "num_heads", 1 << 16, 32)?;
    let kernel_size = size("linear_conv_kernel_dim", "short_conv_kernel_size", 256, 4)?;
    let types = mixers(metadata, layers, &["linear_attention"], &["full_attention"])?;
    let types = match (types, &inner) {
        (Some(types), _) => types,
        (None, Some(inner)) if inner.has("full_attn_layers") => counted_from_one(inner, layers)?,
        _ => {
            let attends = |layer: usize| layer > 0 && layer.is_multiple_of(4);
            let mixer = |layer| if attends(layer) { Mixer::Attention } else { Mixer::Recurrent };
            (0..layers).map(mixer).collect()
        }
    };
    if let Some(inner) = &inner {
        for key in ["full_attn_layers", "kda_layers"] {
            inner.get(key);
        }
        refuse_unknown(inner)?;
    }
    let delta = LinearAttention {
        gate_rank: Some(head_dim),
        ..delta_attention(&config, None, [heads, head_dim, kernel_size])
    };
    Ok(Config { recurrent: Some(Recurrent::Linear(delta)), ..with_mixers(config, &types) })
}

fn bailing_hybrid(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: BAILING_NAMES,
        vocab_size: Some(157_184),
        num_hidden_layers: Some(42),
        intermediate_size: Some(6144),
        max_position_embeddings: 262_144,
        norm: NormKey::Rms("rms_norm_eps", 1e-6),
        ..DEFAULTS
    };
    let routing = Routing {
        experts: "num_experts",
        groups: Some((8, 4)),
        scaling: ("routed_scaling_factor", 2.5),
        ..Routing::DEEPSEEK
    };
    let mla = MlaDefaults { q_lora_rank: None, rotation: Rotation::None, ..MlaDefaults::DEEPSEEK };
    let mut config = common(metadata, &defaults, &mla, &routing, 2)?;
    let facts = RopeFacts {
        theta: 6e6,
        head_dim: config.head_dim,
        partial: Partial::Dimensions(metadata.integer_if_any("qk_rope_head_dim", 1..=1 << 16)?.unwrap_or(64)),
        layout: RopeLayout::Interleaved,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &["mscale", "mscale_all_dim"],
    };
    // transformers writes its default base in addition to the one that counts.
    let parameters = rope_object(metadata)?;
    let counts = parameters.as_ref().is_some_and(|parameters| parameters.has("rope_theta"));
    if counts {
        metadata.get("rope_theta");
    }
    let beside = if counts { "" } else { "rope_theta" };
    config.ropes = vec![rope_of(metadata, parameters.as_ref(), beside, &facts)?];
    config.layers.iter_mut().for_each(|layer| layer.rope = LayerRope::Rotary(0));

    let size = |keys: [&str; 2], most: u64, default: usize| -> Result<usize> {
        let [stated, usual] = keys.map(|key| metadata.integer_if_any(key, 1..=most));
        Ok(stated?.or(usual?).unwrap_or(default))
    };
    let head_dim = size(["linear_head_dim", "head_dim"], 1 << 13, 128)?;
    let heads = size(["linear_num_heads", "num_attention_heads"], 1 << 16, 32)?;
    let kernel_size = size(["linear_conv_kernel_dim", "short_conv_kernel_size"], 256, 4)?;
    let lower_bound = metadata.number_or("kda_lower_bound", -1e3..=0.0, -5.0)? as f32;
    let lower_bound = metadata.flag_or("kda_safe_gate", true)?.then_some(lower_bound);
    metadata.get("mtp_loss_scaling_factor"); // training
    let every = metadata.integer_if_any("layer_group_size", 1..=1 << 16)?.unwrap_or(6);
    let layers = config.layers.len();
    let types = mixers(metadata, layers, &["linear_attention"], &["full_attention"])?.unwrap_or_else(|| {
        let attends = |layer: usize| (layer + 1).is_multiple_of(every);
        let mixer = |layer| if attends(layer) { Mixer::Attention } else { Mixer::Recurrent };
        (0..layers).map(mixer).collect()
    });
    let delta = delta_attention(&config, lower_bound, [heads, head_dim, kernel_size]);
    Ok(Config {
        recurrent: Some(Recurrent::Linear(delta)),
        attention_gate: AttentionGate::Sigmoid(GateWidth::PerHead),
        ..with_mixers(config, &types)
    })
}

/// Latent attention and the mixture, which both have.
fn common(
    metadata: &Metadata<'_>,
    defaults: &Defaults,
    mla: &MlaDefaults,
    routing: &Routing,
    first_dense: usize,
) -> Result<Config> {
    metadata.get("head_dim"); // of the part that rotates
    let config = deepseek::config(metadata, defaults, mla, routing, first_dense)?;
    // The head is never tied, regardless of `tie_word_embeddings`.
    Ok(Config { lm_head: LmHead::Own, ..config })
}

/// Kimi Delta Attention with gates from the whole row.
fn delta_attention(
    config: &Config,
    lower_bound: Option<f32>,
    [heads, head_dim, conv_kernel_size]: [usize; 3],
) -> LinearAttention {
    let eps = config.norm.eps();
    LinearAttention {
        rule: LinearRule::KimiDelta { lower_bound },
        num_key_heads: heads,
        num_value_heads: heads,
        key_heads: KeyHeads::Grouped,
        key_dim: head_dim,
        value_dim: head_dim,
        conv_kernel_size,
        conv_bias: Bias::None,
        conv_activation: config.activation,
        in_bias: Bias::None,
        out_bias: Bias::None,
        output: GatedOutput::NormThenGate { eps, group: head_dim, shared_weight: true },
        gate: Activation::Sigmoid,
        gate_rank: None,
    }
}

/// `full_attn_layers`, counted from 1.
fn counted_from_one(inner: &Metadata<'_>, layers: usize) -> Result<Vec<Mixer>> {
    let numbers = layer_numbers(inner, "full_attn_layers")?;
    if let Some(number) = numbers.iter().find(|&&number| number == 0 || number > layers) {
        let what = format!("must be layers from 1 to {layers} (got {number})");
        return Err(inner.bad("full_attn_layers", &what));
    }
    let mixer = |layer| if numbers.contains(&layer) { Mixer::Attention } else { Mixer::Recurrent };
    Ok((1..=layers).map(mixer).collect())
}
