//! Qwen 3: Llama with a norm on every head of q and k; dense, and as a mixture of experts.
//!
//! Yang et al. 2025 (Qwen3). Defaults of absent keys: transformers 5.23, `configuration_qwen3.py` and
//! `configuration_qwen3_moe.py` (a window of the mixture is in every layer).

use super::qwen2::{upper_windows, used_window};
use crate::config::{Bias, Config, QkNorm, SharedExpert};
use crate::family::keys::base::{Defaults, Family, HeadDim, KvHeads, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{moe_layers, qwen_moe};
use crate::family::keys::windows::with_windows;
use ropechat_platform::error::Result;

pub(crate) static QWEN3: Family = Family {
    model_types: &["qwen3"],
    aliases: &[],
    config: |metadata| {
        let config = base(metadata, &DEFAULTS)?;
        upper_windows(metadata, Config { qk_norm: QkNorm::PerHead(Bias::None), ..config })
    },
};

pub(crate) static QWEN3_MOE: Family =
    Family { model_types: &["qwen3_moe"], aliases: &[("num_experts", "num_local_experts")], config: mixture };

const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: KvHeads::Usually(32),
    head_dim: HeadDim::Usually(128),
    max_position_embeddings: 32_768,
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

fn mixture(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults =
        Defaults { num_key_value_heads: KvHeads::Usually(4), head_dim: HeadDim::FreeQuotient, ..DEFAULTS };
    let config = base(metadata, &defaults)?;
    let moe = qwen_moe(metadata, 8, SharedExpert::None, false)?;
    let config = Config { qk_norm: QkNorm::PerHead(Bias::None), moe: Some(moe), ..config };
    metadata.flag_or("use_sliding_window", false)?;
    metadata.integer_if_any("max_window_layers", 0..=1 << 20)?;
    let config = with_windows(metadata, config, used_window(metadata)?, |_| true)?;
    moe_layers(metadata, config)
}
