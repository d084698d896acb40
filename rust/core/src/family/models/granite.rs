//! Granite 3: Llama with four multipliers.
//!
//! Granite Team, IBM 2024. Defaults of absent keys: transformers 5.23, `configuration_granite.py`: all four are 1, also
//! the one that takes the place of 1 / sqrt(head_dim).

use crate::config::Config;
use crate::family::keys::base::{Defaults, Family, HeadDim, base};
use crate::family::keys::metadata::Metadata;
use ropechat_platform::error::Result;

pub(crate) static GRANITE: Family = Family {
    model_types: &["granite"],
    aliases: &[],
    config: |metadata| {
        let defaults = Defaults { head_dim: HeadDim::FreeQuotient, ..Defaults::LLAMA };
        multiplied(metadata, base(metadata, &defaults)?)
    },
};

/// The four multipliers.
pub(crate) fn multiplied(metadata: &Metadata<'_>, config: Config) -> Result<Config> {
    let factor = |key: &str| metadata.number_or(key, 1e-9..=1e9, 1.0);
    Ok(Config {
        embedding_multiplier: factor("embedding_multiplier")? as f32,
        attention_multiplier: factor("attention_multiplier")? as f32,
        residual_multiplier: factor("residual_multiplier")? as f32,
        logit_scale: (1.0 / factor("logits_scaling")?) as f32,
        ..config
    })
}
