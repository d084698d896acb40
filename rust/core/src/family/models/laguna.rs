//! Laguna: numbers of query heads by layer, gates of attention's output by softplus, router logits capped; Mellum 2:
//! Qwen 3's mixture with windows; MiMo V2 Flash: twice the key/value heads, and sinks, in windowed layers. All three
//! have a rope for each kind of layer.
//!
//! Poolside 2026 (Laguna), JetBrains 2026 (Mellum 2), Xiaomi 2025 (MiMo-V2-Flash). Defaults of absent keys: transformers
//! 5.23, `configuration_laguna.py`, `configuration_mellum.py`, `configuration_mimo_v2_flash.py`.

use super::deepseek::NAMES;
use crate::config::{
    AttentionGate, Bias, Config, GateWidth, Heads, Mask, Moe, MoeNames, Names, Normalization, QkNorm,
    RopeLayout, Scoring, Sinks, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{
    Routing, experts_per_token, ignore_multi_token_prediction, qwen_moe, routed_moe, shared_width,
    sparse_layers,
};
use crate::family::keys::rope::{Partial, RopeFacts, ropes_by_kind};
use crate::family::keys::windows::{layer_numbers, window, with_ropes, with_windows};
use ropechat_platform::error::Result;

pub(crate) static LAGUNA: Family = Family { model_types: &["laguna"], aliases: &[], config: laguna };

pub(crate) static MELLUM: Family =
    Family { model_types: &["mellum"], aliases: &[("num_experts", "num_local_experts")], config: mellum };

pub(crate) static MIMO_V2_FLASH: Family =
    Family { model_types: &["mimo_v2_flash"], aliases: &[], config: mimo_v2_flash };

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    head_dim: HeadDim::Usually(128),
    max_position_embeddings: 131_072,
    mlp_bias: BiasKey::Absent(Bias::None),
    rope: None,
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

/// A rope for layers without a window and one for the others: (theta, share of the head that rotates) each.
fn roped(metadata: &Metadata<'_>, config: Config, full: (f64, f64), local: (f64, f64)) -> Result<Config> {
    let facts = |(theta, share)| RopeFacts {
        theta,
        head_dim: config.head_dim,
        partial: Partial::Usually(share),
        layout: RopeLayout::Neox,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &[],
    };
    let kinds = ["full_attention", "sliding_attention"];
    let ropes =
        ropes_by_kind(metadata, kinds, ["rope_theta", "swa_rope_theta"], [facts(full), facts(local)])?;
    Ok(with_ropes(config, ropes))
}

fn laguna(metadata: &Metadata<'_>) -> Result<Config> {
    let names = Names {
        attention_gate: tensor!("self_attn.g_proj"),
        moe: MoeNames::Each {
            router: tensor!("mlp.gate"),
            experts: "mlp.experts",
            parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
            shared: "mlp.shared_expert",
            shared_parts: MoeNames::PARTS,
        },
        correction_bias: "mlp.experts.e_score_correction_bias",
        ..Names::LLAMA
    };
    let defaults = Defaults { names, num_key_value_heads: KvHeads::Usually(8), ..DEFAULTS };
    let config = base(metadata, &defaults)?;
    let window = window(metadata, Some(512))?;
    let config = with_windows(metadata, config, window, |_| false)?;
    let mut config = roped(metadata, config, (500_000.0, 0.5), (10_000.0, 1.0))?;
    const HEADS: &str = "num_attention_heads_per_layer";
    let of_layers = layer_numbers(metadata, HEADS)?;
    if metadata.get(HEADS).is_some() && of_layers.len() != config.layers.len() {
        let what =
            format!("must have one number per layer, {} (got {})", config.layers.len(), of_layers.len());
        return Err(metadata.bad(HEADS, &what));
    }
    for (index, &heads) in of_layers.iter().enumerate() {
        let usual = config.heads(&config.layers[index]);
        if heads == 0 || heads > 1 << 16 || !heads.is_multiple_of(usual.num_key_value_heads) {
            let what = format!(
                "must be multiples of num_key_value_heads, {} (got {heads})",
                usual.num_key_value_heads
            );
            return Err(metadata.bad(HEADS, &what));
        }
        config.layers[index].heads = Some(Heads { num_attention_heads: heads, ..usual });
    }
    let width = match metadata.get("gating") {
        None | Some(serde_json::Value::Bool(true)) => GateWidth::PerHead,
        Some(value) if value.as_str() == Some("per-head") => GateWidth::PerHead,
        Some(_) => GateWidth::PerChannel,
    };
    if metadata.flag_or("moe_apply_router_weight_on_input", false)? {
        return Err(metadata.unsupported("moe_apply_router_weight_on_input", "must be false (got true)"));
    }
    let cap = metadata.number_or("moe_router_logit_softcapping", 0.0..=1e9, 0.0)?;
    let num_experts = metadata.integer("num_experts", 1..=1 << 16)?;
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(8))?;
    let moe = Moe {
        scoring: Scoring::Sigmoid,
        correction_bias: Bias::Added,
        normalization: Normalization::SUM,
        scaling: metadata.number_or("moe_routed_scaling_factor", 1e-6..=1e6, 1.0)? as f32,
        logit_softcapping: (cap > 0.0).then_some(cap as f32),
        shared: shared_width(metadata, "shared_expert_intermediate_size", 512)?,
        ..Moe::plain(num_experts, per_token, metadata.integer("moe_intermediate_size", 1..=1 << 24)?)
    };
    let config = Config {
        moe: Some(moe),
        qk_norm: QkNorm::PerHead(Bias::None),
        attention_gate: AttentionGate::Softplus(width),
        ..config
    };
    sparse_layers(metadata, config, 1)
}

fn mellum(metadata: &Metadata<'_>) -> Result<Config> {
    let config = base(metadata, &Defaults { num_key_value_heads: KvHeads::Usually(4), ..DEFAULTS })?;
    let window = window(metadata, Some(1024))?;
    let config = with_windows(metadata, config, window, |_| false)?;
    let config = roped(metadata, config, (500_000.0, 1.0), (10_000.0, 1.0))?;
    let moe = qwen_moe(metadata, 8, crate::config::SharedExpert::None, false)?;
    let moe = match metadata.get("norm_topk_prob") {
        None => Moe { normalization: Normalization::SUM, ..moe },
        Some(_) => moe,
    };
    ignore_multi_token_prediction(metadata);
    sparse_layers(metadata, Config { moe: Some(moe), qk_norm: QkNorm::PerHead(Bias::None), ..config }, 0)
}

fn mimo_v2_flash(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: Names { sinks: "self_attn.attention_sink_bias", ..NAMES },
        num_key_value_heads: KvHeads::Usually(4),
        head_dim: HeadDim::Usually(192),
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        attention_out_bias: BiasKey::Absent(Bias::None),
        ..DEFAULTS
    };
    let config = base(metadata, &defaults)?;
    // `sliding_window_size` counts the tokens before the current one.
    let before = metadata.integer_if_any("sliding_window_size", 0..=1 << 40)?;
    let window = window(metadata, Some(129))?;
    let window = before.map_or(window, |before| Some(before + 1));
    let slides = |layer: usize| layer != 0 && !(layer + 1).is_multiple_of(6);
    let config = with_windows(metadata, config, window, slides)?;
    let mut config = roped(metadata, config, (5e6, 0.334), (10_000.0, 0.334))?;
    config.v_head_dim = metadata.integer_if_any("v_head_dim", 1..=1 << 13)?.unwrap_or(128);
    let usual = config.heads(&config.layers[0]);
    for layer in config.layers.iter_mut().filter(|layer| layer.mask != Mask::Causal) {
        let num_key_value_heads = 2 * usual.num_key_value_heads;
        if !usual.num_attention_heads.is_multiple_of(num_key_value_heads) {
            let what =
                format!("half of num_attention_heads, {}, must be a multiple", usual.num_attention_heads);
            return Err(metadata.bad("num_key_value_heads", &what));
        }
        layer.heads = Some(Heads { num_key_value_heads, ..usual });
    }
    let routing = Routing { shared: None, ..Routing::DEEPSEEK };
    ignore_multi_token_prediction(metadata);
    let config = Config {
        moe: Some(routed_moe(metadata, &routing)?),
        value_scale: metadata
            .number_if_any("attention_value_scale", 1e-6..=1e6)?
            .unwrap_or(if metadata.has("attention_value_scale") { 1.0 } else { 0.707 })
            as f32,
        sinks: Sinks::PerHeadInWindows,
        ..config
    };
    sparse_layers(metadata, config, 1)
}
