//! Mistral 7B and its successors, Ministral (windows in the layers that `layer_types` names), and Ministral 3.
//!
//! Jiang et al. 2023 (Mistral 7B): Llama with a sliding window in every layer. Ministral 3 adds a growth of queries
//! with their position (Llama 4's). Defaults of absent keys: transformers 5.23, `configuration_mistral.py` (8 key/value
//! heads, a window of 4096 unless `null` is written) and `configuration_ministral3.py` (head_dim 128, base 1e6).

use crate::config::{Bias, Config, QueryScaling};
use crate::family::keys::base::{
    BiasKey, Defaults, Family, HeadDim, KvHeads, RopeDefaults, WindowKeys, base,
};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::rope::rope_object;
use crate::family::keys::windows::{window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static MISTRAL: Family = Family { model_types: &["mistral"], aliases: &[], config: mistral };

pub(crate) static MINISTRAL: Family = Family { model_types: &["ministral"], aliases: &[], config: mistral };

pub(crate) static MINISTRAL3: Family =
    Family { model_types: &["ministral3"], aliases: &[], config: ministral3 };

/// Defaults of both.
pub(crate) const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: KvHeads::Usually(8),
    head_dim: HeadDim::FreeQuotient,
    max_position_embeddings: 4096 * 32,
    attention_bias: BiasKey::Fixed(Bias::None),
    attention_out_bias: BiasKey::Absent(Bias::None),
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

fn mistral(metadata: &Metadata<'_>) -> Result<Config> {
    let config = base(metadata, &DEFAULTS)?;
    let window = window(metadata, Some(4096))?;
    with_windows(metadata, config, window, |_| true)
}

fn ministral3(metadata: &Metadata<'_>) -> Result<Config> {
    let rope = RopeDefaults {
        theta: 1e6,
        own_keys: &["llama_4_scaling_beta", "max_position_embeddings"],
        ..RopeDefaults::WHOLE
    };
    let defaults = Defaults {
        head_dim: HeadDim::Usually(128),
        max_position_embeddings: 262_144,
        rope: Some(rope),
        norm: crate::family::keys::base::NormKey::Rms("rms_norm_eps", 1e-5),
        ..DEFAULTS
    };
    let query_scaling = query_scaling(metadata)?;
    let config = Config { query_scaling, ..base(metadata, &defaults)? };
    let window = window(metadata, None)?;
    with_windows(metadata, config, window, |_| true)
}

/// `llama_4_scaling_beta`: queries grow with their position.
pub(crate) fn query_scaling(metadata: &Metadata<'_>) -> Result<QueryScaling> {
    let Some(parameters) = rope_object(metadata)? else {
        return Err(metadata.bad("rope_parameters", "it is missing; yarn's keys are needed"));
    };
    let beta = parameters.number_if_any("llama_4_scaling_beta", 0.0..=1e3)?;
    let original =
        parameters.integer_if_any("original_max_position_embeddings", crate::family::keys::rope::LENGTHS)?;
    Ok(match (beta, original) {
        (Some(beta), Some(original_max_position_embeddings)) => {
            QueryScaling::Llama4 { beta, original_max_position_embeddings }
        }
        (None, _) => QueryScaling::None,
        (Some(_), None) => {
            return Err(
                parameters.bad("original_max_position_embeddings", "it is missing; a length is needed")
            );
        }
    })
}
