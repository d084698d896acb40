//! Granite 4: Mamba-2, with attention in some layers, usually without positions; Granite's multipliers.
//!
//! IBM 2025. Defaults of absent keys: transformers 5.23, `configuration_granitemoehybrid.py`.

use super::bamba::MAMBA;
use super::granite_moe::{LINEAR, experts};
use crate::checkpoint::json::describe;
use crate::config::{Config, GateUp, LayerRope, Mixer, Names, Recurrent, tensor};
use crate::family::keys::base::{Defaults, Family, HeadDim, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mixers::{mamba2, mixers, with_mixers};
use ropechat_platform::error::Result;

pub(crate) static GRANITEMOEHYBRID: Family =
    Family { model_types: &["granitemoehybrid"], aliases: &[], config };

/// The MLP that every token passes is all of it where there are no experts.
const NAMES: Names = Names {
    gate_up_proj: GateUp::Stacked(tensor!("shared_mlp.input_linear")),
    down_proj: tensor!("shared_mlp.output_linear"),
    moe: LINEAR,
    recurrent: MAMBA,
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        vocab_size: Some(32_000),
        num_attention_heads: Some(32),
        intermediate_size: Some(11_008),
        head_dim: HeadDim::FreeQuotient,
        ..Defaults::LLAMA
    };
    let factor = |key: &str| metadata.number_or(key, 1e-9..=1e9, 1.0);
    let mut config = Config {
        embedding_multiplier: factor("embedding_multiplier")? as f32,
        attention_multiplier: factor("attention_multiplier")? as f32,
        residual_multiplier: factor("residual_multiplier")? as f32,
        logit_scale: (1.0 / factor("logits_scaling")?) as f32,
        ..base(metadata, &defaults)?
    };
    match metadata.get("position_embedding_type").map(|kind| (kind, kind.as_str())) {
        Some((_, Some("rope"))) => {}
        None | Some((_, Some("nope"))) => {
            config.ropes.clear();
            config.layers.iter_mut().for_each(|layer| layer.rope = LayerRope::None);
        }
        Some((other, _)) => {
            let what = format!("must be null, \"nope\" or \"rope\" (got {})", describe(other));
            return Err(metadata.unsupported("position_embedding_type", &what));
        }
    }
    let layers = config.layers.len();
    let types = mixers(metadata, layers, &["linear_attention", "mamba"], &["full_attention", "attention"])?;
    let types = types.unwrap_or_else(|| vec![Mixer::Recurrent; layers]);
    let expand = metadata.integer_if_any("mamba_expand", 1..=256)?.unwrap_or(2);
    let linear = mamba2(metadata, expand * config.hidden_size, config.norm.eps())?;
    if metadata.integer_if_any("num_local_experts", 0..=1 << 16)? == Some(0) {
        // The MLP that every token passes is all of it.
        config.intermediate_size =
            metadata.integer_if_any("shared_intermediate_size", 1..=1 << 24)?.unwrap_or(1024);
        metadata.get("num_experts_per_tok");
    } else {
        config = experts(metadata, config)?;
    }
    Ok(Config { recurrent: Some(Recurrent::Linear(linear)), ..with_mixers(config, &types) })
}
