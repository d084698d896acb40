//! Qwen 1.5 and 2 as mixtures of experts, with a shared expert behind a gate.
//!
//! Yang et al. 2024 (Qwen2). Defaults of absent keys: transformers 5.23, `configuration_qwen2_moe.py`; windows, when
//! used, are in the even layers below `max_window_layers`.

use super::qwen2::{DEFAULTS, used_window};
use crate::config::{Config, SharedExpert};
use crate::family::keys::base::{BiasKey, Defaults, Family, KvHeads, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{moe_layers, qwen_moe};
use crate::family::keys::windows::with_windows;
use ropechat_platform::error::Result;

pub(crate) static QWEN2_MOE: Family = Family { model_types: &["qwen2_moe"], aliases: &[], config };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        num_key_value_heads: KvHeads::Usually(16),
        attention_bias: BiasKey::Key("qkv_bias", true),
        ..DEFAULTS
    };
    let config = base(metadata, &defaults)?;
    let intermediate_size =
        metadata.integer_if_any("shared_expert_intermediate_size", 1..=1 << 24)?.unwrap_or(5632);
    let moe = qwen_moe(metadata, 4, SharedExpert::Gated { intermediate_size }, false)?;
    metadata.flag_or("use_sliding_window", false)?;
    let below = metadata.integer_if_any("max_window_layers", 0..=1 << 20)?.unwrap_or(28);
    let config = Config { moe: Some(moe), ..config };
    let window = used_window(metadata)?;
    let config = with_windows(metadata, config, window, |layer| layer.is_multiple_of(2) && layer < below)?;
    moe_layers(metadata, config)
}
