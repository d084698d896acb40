//! Apertus: a norm on every head of q and k, a plain MLP with xIELU, whose two parameters each layer learns.
//!
//! Swiss AI 2025 (Apertus, <https://arxiv.org/abs/2509.14233>). Defaults of absent keys: transformers 5.23,
//! `configuration_apertus.py`, whose rope without keys is llama3 with a factor of 8; xIELU's other two constants
//! (`activations.py`) are in the files too and never differ.

use crate::config::{Activation, Bias, Config, MlpShape, Names, QkNorm, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::rope::require_rope;
use ropechat_platform::error::Result;

pub(crate) static APERTUS: Family = Family { model_types: &["apertus"], aliases: &[], config };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    require_rope(metadata)?;
    let defaults = Defaults {
        names: Names {
            attention_norm: tensor!("attention_layernorm"),
            mlp_norm: tensor!("feedforward_layernorm"),
            gate_up_proj: Names::plain_up(tensor!("mlp.up_proj")),
            ..Names::LLAMA
        },
        head_dim: HeadDim::FreeQuotient,
        max_position_embeddings: 65_536,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        activation: Activation::Xielu { alpha_p: 0.0, alpha_n: 0.0 },
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: Some(RopeDefaults { theta: 1.2e7, ..RopeDefaults::WHOLE }),
        ..Defaults::LLAMA
    };
    // The original's flags for what is computed here.
    for (key, computed) in [("qk_norm", true), ("post_norm", false)] {
        if metadata.flag_or(key, computed)? != computed {
            return Err(metadata.unsupported(key, &format!("must be {computed} (got {})", !computed)));
        }
    }
    let config = base(metadata, &defaults)?;
    Ok(Config { mlp: MlpShape::Plain, qk_norm: QkNorm::PerHead(Bias::None), ..config })
}
