//! Qwen 2 and 2.5: Llama with biases on q, k and v, and a window in the upper layers when one is asked for.
//!
//! Yang et al. 2024 (Qwen2). Defaults of absent keys: transformers 5.23, `configuration_qwen2.py`.

use crate::config::{Bias, Config};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::windows::{window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static QWEN2: Family = Family {
    model_types: &["qwen2"],
    aliases: &[],
    config: |metadata| upper_windows(metadata, base(metadata, &DEFAULTS)?),
};

/// What the mixture says too, but for its key/value heads.
pub(crate) const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: KvHeads::Usually(32),
    head_dim: HeadDim::FreeQuotient,
    max_position_embeddings: 32_768,
    attention_bias: BiasKey::Fixed(Bias::Added),
    attention_out_bias: BiasKey::Absent(Bias::None),
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

/// `sliding_window`, which counts only when `use_sliding_window` says so.
pub(crate) fn used_window(metadata: &Metadata<'_>) -> Result<Option<usize>> {
    let window = window(metadata, Some(4096))?;
    Ok(window.filter(|_| metadata.flag_or("use_sliding_window", false).unwrap_or(false)))
}

/// Windows in the layers from `max_window_layers` on.
pub(crate) fn upper_windows(metadata: &Metadata<'_>, config: Config) -> Result<Config> {
    metadata.flag_or("use_sliding_window", false)?;
    let first = metadata.integer_if_any("max_window_layers", 0..=1 << 20)?.unwrap_or(28);
    with_windows(metadata, config, used_window(metadata)?, |layer| layer >= first)
}
