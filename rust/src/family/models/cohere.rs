//! Command R (cohere) and Command R7B, A (cohere2): attention and MLP in parallel behind one LayerNorm without bias,
//! interleaved rotation, scaled logits.
//!
//! Cohere 2024, 2025 (Command A). Cohere 2 has a window in three layers of four, and rotates only there. Defaults of
//! absent keys: transformers 5.23, `configuration_cohere.py` (base 500000) and `configuration_cohere2.py`.

use crate::config::{Bias, Config, LayerRope, LmHead, Mask, Names, QkNorm, Residual, RopeLayout, tensor};
use crate::error::Result;
use crate::family::keys::base::{Defaults, Family, HeadDim, NormKey, RopeDefaults, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::windows::{pattern, window, with_windows};

pub(crate) static COHERE: Family = Family { model_types: &["cohere"], aliases: &[], config: cohere };

pub(crate) static COHERE2: Family = Family { model_types: &["cohere2"], aliases: &[], config: cohere2 };

const DEFAULTS: Defaults = Defaults {
    names: Names { mlp_norm: tensor!("input_layernorm"), ..Names::LLAMA },
    head_dim: HeadDim::FreeQuotient,
    max_position_embeddings: 8192,
    norm: NormKey::Layer("layer_norm_eps", 1e-5),
    lm_head: LmHead::Tied,
    rope: Some(RopeDefaults { theta: 500_000.0, layout: RopeLayout::Interleaved, ..RopeDefaults::WHOLE }),
    ..Defaults::LLAMA
};

fn common(metadata: &Metadata<'_>, defaults: &Defaults) -> Result<Config> {
    Ok(Config {
        residual: Residual::Parallel,
        norm_bias: Bias::None,
        logit_scale: metadata.number_or("logit_scale", 1e-9..=1e9, 0.0625)? as f32,
        ..base(metadata, defaults)?
    })
}

fn cohere(metadata: &Metadata<'_>) -> Result<Config> {
    let normed = metadata.flag_or("use_qk_norm", false)?;
    let qk_norm = if normed { QkNorm::PerHeadOwn } else { QkNorm::None };
    Ok(Config { qk_norm, ..common(metadata, &DEFAULTS)? })
}

fn cohere2(metadata: &Metadata<'_>) -> Result<Config> {
    let rope = RopeDefaults { layout: RopeLayout::Interleaved, ..RopeDefaults::WHOLE };
    let defaults = Defaults { rope: Some(rope), windows: WindowKeys::OfFamily, ..DEFAULTS };
    let config = common(metadata, &defaults)?;
    let every = pattern(metadata, 4)?;
    let window = window(metadata, Some(4096))?;
    let mut config = with_windows(metadata, config, window, |layer| !(layer + 1).is_multiple_of(every))?;
    for layer in &mut config.layers {
        layer.rope = if layer.mask == Mask::Causal { LayerRope::None } else { LayerRope::Rotary(0) };
    }
    // Words of the original code for what is computed here; other words are refused.
    for (key, word) in
        [("order_of_interleaved_layers", "local_attn_first"), ("position_embedding_type", "rope_gptj")]
    {
        if metadata.text_if_any(key)?.is_some_and(|stated| stated != word) {
            return Err(metadata.unsupported(key, &format!("must be \"{word}\"")));
        }
    }
    metadata.number_if_any("rotary_pct", 1.0..=1.0)?;
    metadata.flag_or("use_embedding_sharing", true)?;
    Ok(config)
}
