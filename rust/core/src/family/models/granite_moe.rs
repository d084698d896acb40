//! Granite 3 as mixtures of experts (granitemoe, granitemoeshared), and with windows, sinks and a base per layer
//! (granite_swa, granitemoe_swa); HyperCLOVA X SEED with the same multipliers.
//!
//! IBM 2024, 2026; NAVER 2025. Defaults of absent keys: transformers 5.23, `configuration_granitemoe.py`,
//! `configuration_granitemoeshared.py`, `configuration_granite_swa.py`, `configuration_granitemoe_swa.py`,
//! `configuration_hyperclovax.py` (whose `logits_scaling` multiplies, and whose attention has a factor of 1/sqrt(head_dim)).

use super::granite::multiplied;
use crate::config::{
    Config, GateUp, LayerRope, LmHead, Moe, MoeNames, Names, NormPlacement, Rope, Shared, Sinks, Stored,
    Tensor, tensor,
};
use crate::family::keys::base::{Defaults, Family, HeadDim, KvHeads, NormKey, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{experts_per_token, moe_in_all_layers, shared_width};
use crate::family::keys::windows::{window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static GRANITEMOE: Family =
    Family { model_types: &["granitemoe", "granitemoeshared"], aliases: &[], config: mixture };

pub(crate) static GRANITE_SWA: Family = Family {
    model_types: &["granite_swa"],
    aliases: &[],
    config: |metadata| {
        let defaults = Defaults {
            num_key_value_heads: KvHeads::Usually(4),
            max_position_embeddings: 8192,
            norm: NormKey::Rms("rms_norm_eps", 1e-5),
            lm_head: LmHead::Tied,
            windows: WindowKeys::OfFamily,
            ..DEFAULTS
        };
        let config = multiplied(metadata, base(metadata, &defaults)?)?;
        windowed(metadata, config)
    },
};

pub(crate) static GRANITEMOE_SWA: Family = Family {
    model_types: &["granitemoe_swa"],
    aliases: &[],
    config: |metadata| {
        let names = Names { moe: FUSED, ..Names::LLAMA };
        let defaults = Defaults { names, windows: WindowKeys::OfFamily, ..DEFAULTS };
        let config = experts(metadata, multiplied(metadata, base(metadata, &defaults)?)?)?;
        windowed(metadata, config)
    },
};

pub(crate) static HYPERCLOVAX: Family =
    Family { model_types: &["hyperclovax"], aliases: &[], config: hyperclovax };

const DEFAULTS: Defaults = Defaults { head_dim: HeadDim::FreeQuotient, ..Defaults::LLAMA };

const SHARED: Shared = Shared {
    gate_up: GateUp::Stacked(tensor!("shared_mlp.input_linear")),
    down: tensor!("shared_mlp.output_linear"),
};
/// As granitemoe and granitemoeshared store their experts.
pub(super) const LINEAR: MoeNames = MoeNames::Fused {
    router: tensor!("block_sparse_moe.router.layer"),
    gate_up: tensor!("block_sparse_moe.input_linear"),
    down: tensor!("block_sparse_moe.output_linear"),
    stored: Stored::OutIn,
    shared: SHARED,
};
/// As granitemoe_swa does.
const FUSED: MoeNames = MoeNames::Fused {
    router: tensor!("block_sparse_moe.router"),
    gate_up: Tensor { weight: "block_sparse_moe.experts.gate_up_proj", bias: "" },
    down: Tensor { weight: "block_sparse_moe.experts.down_proj", bias: "" },
    stored: Stored::OutIn,
    shared: SHARED,
};

fn mixture(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults { names: Names { moe: LINEAR, ..Names::LLAMA }, ..DEFAULTS };
    experts(metadata, multiplied(metadata, base(metadata, &defaults)?)?)
}

pub(super) fn experts(metadata: &Metadata<'_>, config: Config) -> Result<Config> {
    let num_experts = metadata.integer_if_any("num_local_experts", 1..=1 << 16)?.unwrap_or(8);
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(2))?;
    let shared = shared_width(metadata, "shared_intermediate_size", 0)?;
    let moe = Moe { shared, ..Moe::plain(num_experts, per_token, config.intermediate_size) };
    Ok(moe_in_all_layers(config, moe))
}

/// A window in all but the first of every four layers, sinks, and `layer_rope_theta`: a base per layer, 0 for none.
fn windowed(metadata: &Metadata<'_>, config: Config) -> Result<Config> {
    let window = window(metadata, Some(128))?;
    let mut config = with_windows(metadata, config, window, |layer| !layer.is_multiple_of(4))?;
    const KEY: &str = "layer_rope_theta";
    if let Some(thetas) = metadata.numbers_if_any(KEY, 0.0..=1e18)? {
        if thetas.len() != config.layers.len() {
            let what =
                format!("must have one base per layer, {} (got {})", config.layers.len(), thetas.len());
            return Err(metadata.bad(KEY, &what));
        }
        let usual = config.ropes[0].clone();
        config.ropes.clear();
        for (layer, &theta) in config.layers.iter_mut().zip(&thetas) {
            layer.rope = if theta == 0.0 {
                LayerRope::None
            } else {
                let known = config.ropes.iter().position(|rope| rope.theta == theta);
                LayerRope::Rotary(known.unwrap_or_else(|| {
                    config.ropes.push(Rope { theta, ..usual.clone() });
                    config.ropes.len() - 1
                }))
            };
        }
    }
    Ok(Config { sinks: Sinks::PerHead, ..config })
}

fn hyperclovax(metadata: &Metadata<'_>) -> Result<Config> {
    let names = Names {
        attention_out_norm: tensor!("post_norm1"),
        mlp_out_norm: tensor!("post_norm2"),
        ..Names::LLAMA
    };
    let config = base(metadata, &Defaults { names, ..Defaults::LLAMA })?;
    let factor = |key: &str| metadata.number_or(key, 1e-9..=1e9, 1.0);
    let around = metadata.flag_or("use_post_norm", true)?;
    let attention = metadata.number_if_any("attention_multiplier", 1e-9..=1e9)?;
    Ok(Config {
        embedding_multiplier: factor("embedding_multiplier")? as f32,
        residual_multiplier: factor("residual_multiplier")? as f32,
        logit_scale: factor("logits_scaling")? as f32,
        attention_multiplier: attention.map_or(config.attention_multiplier, |factor| factor as f32),
        norm_placement: if around { NormPlacement::Around } else { NormPlacement::Before },
        ..config
    })
}
