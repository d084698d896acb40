//! Gemma 3, text: Gemma 2 without caps, a norm on every head of q and k, and its own rotation in windowed layers.
//!
//! Gemma Team 2025. Defaults of absent keys: transformers 5.23, `configuration_gemma3.py`, of which published files make
//! use: 262208 tokens, 8 heads, every sixth layer without a window of 4096; base 1e6 there and 1e4 in the others.

use super::gemma::{SANDWICH, sandwich};
use crate::config::{Bias, Config, QkNorm, Rope, RopeLayout};
use crate::family::keys::base::{Defaults, Family, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::rope::{Partial, RopeFacts, rope_object, rope_of, ropes_by_kind};
use crate::family::keys::windows::{pattern, window, with_ropes, with_windows};
use ropechat_platform::error::Result;

pub(crate) static GEMMA3_TEXT: Family = Family { model_types: &["gemma3_text"], aliases: &[], config: text };

const DEFAULTS: Defaults = Defaults {
    max_position_embeddings: 131_072,
    vocab_size: Some(262_208),
    num_attention_heads: Some(8),
    rope: None,
    ..SANDWICH
};

fn text(metadata: &Metadata<'_>) -> Result<Config> {
    let config = sandwich(metadata, base(metadata, &DEFAULTS)?, None, None)?;
    let every = pattern(metadata, 6)?;
    let window = window(metadata, Some(4096))?;
    let config = with_windows(metadata, config, window, |layer| !(layer + 1).is_multiple_of(every))?;
    let ropes = layer_ropes(metadata, &config)?;
    Ok(Config {
        qk_norm: QkNorm::PerHead(Bias::None),
        // The scores have no cap, regardless of `attn_logit_softcapping` (`modeling_gemma3.py`).
        attn_logit_softcapping: None,
        ..with_ropes(config, ropes)
    })
}

/// The ropes of layers without and with a window: nested in `rope_parameters`, or (old) the scaling for the first
/// only and `rope_local_base_freq` for the second.
pub(crate) fn layer_ropes(metadata: &Metadata<'_>, config: &Config) -> Result<[Option<Rope>; 2]> {
    let facts = |theta| RopeFacts {
        theta,
        head_dim: config.head_dim,
        partial: Partial::Whole,
        layout: RopeLayout::Neox,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &[],
    };
    let kinds = ["full_attention", "sliding_attention"];
    let nested =
        rope_object(metadata)?.is_some_and(|parameters| kinds.iter().any(|kind| parameters.has(kind)));
    if nested {
        let theta_keys = ["rope_theta", "rope_local_base_freq"];
        return ropes_by_kind(metadata, kinds, theta_keys, [facts(1e6), facts(1e4)]);
    }
    Ok([
        Some(rope_of(metadata, rope_object(metadata)?.as_ref(), "rope_theta", &facts(1e6))?),
        Some(rope_of(metadata, None, "rope_local_base_freq", &facts(1e4))?),
    ])
}
