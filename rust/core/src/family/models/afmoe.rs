//! Trinity (afmoe), Beam and Flint: attention with norms on every head of q and k that rotates in windowed layers only;
//! the first two gate its output and have norms around, the last has sinks.
//!
//! Arcee 2026 (Trinity), Beam 2026, Recursive SI 2026 (Flint). Defaults of absent keys: transformers 5.23,
//! `configuration_afmoe.py`, `configuration_beam.py`, `configuration_flint.py`.

use super::deepseek::NAMES;
use crate::config::{
    AttentionGate, Bias, Config, GateWidth, Moe, MoeNames, Names, NormPlacement, Normalization, QkNorm,
    QueryScaling, ResidualFactors, RopeLayout, Scoring, Sinks, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{
    Routing, experts_per_token, moe_layers, only_word, routed_moe, shared_width, sparse_layers,
};
use crate::family::keys::rope::{Partial, RopeFacts, ropes_by_kind};
use crate::family::keys::windows::{layer_numbers, rotate_in_windows, window, with_ropes, with_windows};
use ropechat_platform::error::Result;

pub(crate) static AFMOE: Family = Family { model_types: &["afmoe"], aliases: &[], config: afmoe };

pub(crate) static BEAM: Family = Family { model_types: &["beam"], aliases: &[], config: beam };

pub(crate) static FLINT: Family = Family { model_types: &["flint"], aliases: &[], config: flint };

const DEFAULTS: Defaults = Defaults {
    head_dim: HeadDim::Usually(128),
    mlp_bias: BiasKey::Absent(Bias::None),
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

fn afmoe(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: Names {
            mlp_norm: tensor!("pre_mlp_layernorm"),
            mlp_out_norm: tensor!("post_mlp_layernorm"),
            moe: MoeNames::Each {
                router: tensor!("mlp.router.gate"),
                experts: "mlp.experts",
                parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
                shared: "mlp.shared_experts",
                shared_parts: MoeNames::PARTS,
            },
            correction_bias: "mlp.expert_bias",
            ..Names::LLAMA
        },
        max_position_embeddings: 16_384,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        ..DEFAULTS
    };
    let config = base(metadata, &defaults)?;
    let every = metadata.integer_if_any("global_attn_every_n_layers", 1..=1 << 16)?.unwrap_or(4);
    let window = window(metadata, Some(1024))?;
    let config = with_windows(metadata, config, window, |layer| !(layer + 1).is_multiple_of(every))?;
    // Words of the original code for what is computed here, and bookkeeping of training.
    only_word(metadata, "score_func", "sigmoid")?;
    metadata.flag_or("route_norm", true)?;
    for key in ["load_balance_coeff", "n_group", "topk_group", "num_expert_groups", "num_limited_groups"] {
        metadata.get(key);
    }
    let routing = Routing {
        experts: "num_experts",
        per_token: Some(6),
        groups: None,
        scaling: ("route_scale", 1.0),
        shared: Some(("num_shared_experts", 2)),
        ..Routing::DEEPSEEK
    };
    let moe = routed_moe(metadata, &routing)?;
    let dense = metadata.integer_if_any("num_dense_layers", 0..=1 << 16)?.unwrap_or(1);
    let scaled = metadata.flag_or("mup_enabled", false)?;
    let config = Config {
        moe: Some(moe),
        embedding_multiplier: if scaled { (config.hidden_size as f32).sqrt() } else { 1.0 },
        ..gated(config, GateWidth::PerChannel)
    };
    sparse_layers(metadata, rotate_in_windows(config), dense)
}

/// Norms around, norms on the heads, a gate of attention's output.
fn gated(config: Config, width: GateWidth) -> Config {
    Config {
        norm_placement: NormPlacement::Around,
        qk_norm: QkNorm::PerHead(Bias::None),
        attention_gate: AttentionGate::Sigmoid(width),
        ..config
    }
}

fn beam(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: Names { mlp_norm: tensor!("pre_feedforward_layernorm"), ..NAMES },
        num_key_value_heads: KvHeads::Usually(8),
        max_position_embeddings: 8192,
        rope: None,
        ..DEFAULTS
    };
    let config = base(metadata, &defaults)?;
    let (window, last) = (window(metadata, Some(512))?, config.layers.len() - 1);
    let config =
        with_windows(metadata, config, window, |layer| !(layer + 1).is_multiple_of(6) && layer != last)?;
    let facts = RopeFacts {
        theta: 10_000.0,
        head_dim: config.head_dim,
        partial: Partial::Whole,
        layout: RopeLayout::Neox,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &[],
    };
    let mut ropes =
        ropes_by_kind(metadata, ["full_attention", "sliding_attention"], ["rope_theta"; 2], [facts; 2])?;
    if !metadata.has("rope_parameters") {
        ropes[0] = None;
    }
    let mut config = with_ropes(config, ropes);
    // The i-th addition weighs the branch by 1 / sqrt(i) and the stream by sqrt((i - 1) / i), from i = 2 on.
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.residual_factors = [2 * index + 2, 2 * index + 3].map(|i| {
            let i = i as f64;
            ResidualFactors { stream: ((i - 1.0) / i).sqrt() as f32, branch: (1.0 / i.sqrt()) as f32 }
        });
    }
    let routing = Routing {
        experts: "num_experts",
        groups: Some((8, 4)),
        scaling: ("routed_scaling_factor", 2.5),
        shared: None,
        ..Routing::DEEPSEEK
    };
    let cap = metadata.number_if_any("final_logit_softcapping", 1e-3..=1e6)?;
    let cap = if metadata.has("final_logit_softcapping") { cap } else { Some(30.0) };
    let dense = config.layers.len().min(3);
    let config = Config {
        moe: Some(routed_moe(metadata, &routing)?),
        query_scaling: QueryScaling::PowerWhereUnrotated { exponent: 0.1, length: 2048.0 },
        final_logit_softcapping: cap.map(|cap| cap as f32),
        ..gated(config, GateWidth::PerChannelBiasPerHead)
    };
    sparse_layers(metadata, config, dense)
}

fn flint(metadata: &Metadata<'_>) -> Result<Config> {
    let names = Names {
        sinks: "self_attn.softmax_offset",
        moe: MoeNames::Each {
            router: tensor!("mlp.gate"),
            experts: "mlp.experts",
            parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
            shared: "mlp.shared_expert",
            shared_parts: MoeNames::PARTS,
        },
        ..Names::LLAMA
    };
    let defaults = Defaults {
        names,
        num_key_value_heads: KvHeads::Usually(4),
        max_position_embeddings: 262_144,
        ..DEFAULTS
    };
    let config = base(metadata, &defaults)?;
    let (window, last) = (window(metadata, Some(513))?, config.layers.len() - 1);
    let config =
        with_windows(metadata, config, window, |layer| layer >= 2 && layer % 4 != 1 && layer != last)?;
    let num_experts = metadata.integer("num_experts", 1..=1 << 16)?;
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(6))?;
    let width = metadata.integer("moe_intermediate_size", 1..=1 << 24)?;
    let moe = Moe {
        scoring: Scoring::Sigmoid,
        normalization: Normalization::sum_if(metadata.flag_or("norm_topk_prob", true)?),
        shared: shared_width(metadata, "shared_expert_intermediate_size", 1024)?,
        ..Moe::plain(num_experts, per_token, width)
    };
    let config = Config {
        moe: Some(moe),
        qk_norm: QkNorm::PerHead(Bias::None),
        sinks: Sinks::PerHead,
        ..rotate_in_windows(config)
    };
    let mut config = moe_layers(metadata, config)?;
    if metadata.get("mlp_only_layers").is_none() {
        config.layers.iter_mut().take(2).for_each(|layer| layer.mlp = crate::config::LayerMlp::Dense);
    }
    layer_numbers(metadata, "mlp_only_layers")?;
    Ok(config)
}
