//! Solar Open: Llama's attention, and in every layer experts that are routed as in DeepSeek V3.
//!
//! Upstage 2025. Defaults of absent keys: transformers 5.23, `configuration_solar_open.py`; o_proj has no bias.

use super::deepseek::NAMES;
use crate::config::{Bias, Config};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{Routing, ignore_multi_token_prediction, moe_in_all_layers, routed_moe};
use ropechat_platform::error::Result;

pub(crate) static SOLAR_OPEN: Family = Family { model_types: &["solar_open"], aliases: &[], config };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let moe = routed_moe(metadata, &Routing::DEEPSEEK)?;
    let defaults = Defaults {
        names: NAMES,
        intermediate_size: Some(moe.intermediate_size), // no layer is dense
        num_key_value_heads: KvHeads::Usually(8),
        head_dim: HeadDim::Usually(128),
        max_position_embeddings: 131_072,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        attention_out_bias: BiasKey::Absent(Bias::None),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: Some(RopeDefaults { theta: 1e6, ..RopeDefaults::WHOLE }),
        ..Defaults::LLAMA
    };
    ignore_multi_token_prediction(metadata);
    Ok(moe_in_all_layers(base(metadata, &defaults)?, moe))
}
