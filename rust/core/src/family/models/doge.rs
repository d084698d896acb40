//! Doge: dynamic mask attention, and learned vectors that scale the residual stream.
//!
//! SmallDoge 2025 (Shi et al. 2024, <https://arxiv.org/abs/2412.11834>). Defaults of absent keys: transformers 5.23,
//! `configuration_doge.py`. Its mixture of experts is not computed: in transformers a token's experts depend on the tokens
//! behind it.

use crate::config::{Bias, Config, Mask, Mechanisms, QkNorm, Residual};
use crate::family::keys::base::{Defaults, Family, HeadDim, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::windows::window;
use crate::mechanisms::dynamic_mask::config::DynamicMask;
use ropechat_platform::error::Result;

pub(crate) static DOGE: Family = Family { model_types: &["doge"], aliases: &[], config };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults =
        Defaults { head_dim: HeadDim::FreeQuotient, windows: WindowKeys::OfFamily, ..Defaults::LLAMA };
    if metadata.flag_or("is_moe", false)? {
        let what =
            "true; the experts of a token would depend on the tokens behind it; only false is computed";
        return Err(metadata.unsupported("is_moe", what));
    }
    for key in ["num_experts", "num_experts_per_tok", "norm_topk_prob"] {
        metadata.get(key); // of the mixture
    }
    let keep_window_size = metadata.integer_if_any("keep_window_size", 1..=1 << 40)?.unwrap_or(2048);
    let mut config = base(metadata, &defaults)?;
    if let Some(window) = window(metadata, None)? {
        config.layers.iter_mut().for_each(|layer| layer.mask = Mask::Sliding(window));
    }
    Ok(Config {
        residual: Residual::StreamScaled,
        qk_norm: QkNorm::PerHead(Bias::None),
        mechanisms: Mechanisms { dynamic_mask: Some(DynamicMask { keep_window_size }), ..config.mechanisms },
        ..config
    })
}
