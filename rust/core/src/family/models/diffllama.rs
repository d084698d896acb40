//! DiffLlama: Llama with differential attention.
//!
//! Ye et al. 2024 (Differential Transformer, <https://arxiv.org/abs/2410.05258>). Defaults of absent keys: transformers
//! 5.23, `configuration_diffllama.py`; which heads make a pair is in `modeling_diffllama.py`.

use crate::config::{Bias, Config, HeadOutputs};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, NormKey, base};
use crate::family::keys::metadata::Metadata;
use ropechat_platform::error::Result;

pub(crate) static DIFFLLAMA: Family = Family { model_types: &["diffllama"], aliases: &[], config };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        head_dim: HeadDim::FreeQuotient,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        mlp_bias: BiasKey::Absent(Bias::None),
        ..Defaults::LLAMA
    };
    let config = base(metadata, &defaults)?;
    if !config.num_key_value_heads.is_multiple_of(2) {
        let what = format!("must be even, since the heads make pairs (got {})", config.num_key_value_heads);
        return Err(metadata.bad("num_key_value_heads", &what));
    }
    metadata.get("lambda_std_dev"); // of training
    Ok(Config { head_outputs: HeadOutputs::Differential, v_head_dim: 2 * config.head_dim, ..config })
}
