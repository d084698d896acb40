//! OLMo 1 and 2: the first with LayerNorms that have no weights, the second with RMSNorms after attention and MLP.
//!
//! Groeneveld et al. 2024 (OLMo), OLMo Team 2025 (OLMo 2). Defaults of absent keys: transformers 5.23,
//! `configuration_olmo.py` and `configuration_olmo2.py`; OLMo 1's epsilon, 1e-5, is in `modeling_olmo.py` only.

use crate::config::{Bias, Config, Names, NormPlacement, NormWeight, QkNorm, tensor};
use crate::error::Result;
use crate::family::keys::base::{Defaults, Family, HeadDim, NormKey, base};
use crate::family::keys::metadata::Metadata;

pub(crate) static OLMO: Family = Family { model_types: &["olmo"], aliases: &[], config: olmo };

pub(crate) static OLMO2: Family = Family { model_types: &["olmo2"], aliases: &[], config: olmo2 };

fn olmo(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        head_dim: HeadDim::FreeQuotient,
        norm: NormKey::Layer("layer_norm_eps", 1e-5),
        ..Defaults::LLAMA
    };
    let clip_qkv = metadata.number_if_any("clip_qkv", 1e-6..=1e9)?;
    Ok(Config {
        norm_weight: NormWeight::Absent,
        norm_bias: Bias::None,
        clip_qkv: clip_qkv.map(|limit| limit as f32),
        ..base(metadata, &defaults)?
    })
}

fn olmo2(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: Names { attention_out_norm: tensor!("post_attention_layernorm"), ..Names::LLAMA },
        head_dim: HeadDim::FreeQuotient,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        ..Defaults::LLAMA
    };
    let config = base(metadata, &defaults)?;
    Ok(Config { norm_placement: NormPlacement::After, qk_norm: QkNorm::FullWidth, ..config })
}
