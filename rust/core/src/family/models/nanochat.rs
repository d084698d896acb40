//! nanochat: RMSNorms without weights, also right behind the embedding and on q and k after rotation, which turns the other
//! way; a plain MLP with squared ReLU, capped logits.
//!
//! Karpathy 2025 (nanochat). Defaults of absent keys: transformers 5.23, `configuration_nanochat.py`.

use crate::config::{
    Activation, Bias, Config, EmbeddingNorm, HeadRows, MlpShape, Names, NormWeight, QkNorm, QkNormPlace,
    tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, base};
use crate::family::keys::metadata::Metadata;
use ropechat_platform::error::Result;

pub(crate) static NANOCHAT: Family = Family { model_types: &["nanochat"], aliases: &[], config };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: Names {
            gate_up_proj: Names::plain_up(tensor!("mlp.fc1")),
            down_proj: tensor!("mlp.fc2"),
            head_rows: HeadRows::HalvesSwapped,
            ..Names::LLAMA
        },
        head_dim: HeadDim::FreeQuotient,
        activation: Activation::Relu2,
        mlp_bias: BiasKey::Absent(Bias::None),
        ..Defaults::LLAMA
    };
    let cap = metadata.number_if_any("final_logit_softcapping", 1e-3..=1e6)?;
    let cap = if metadata.has("final_logit_softcapping") { cap } else { Some(15.0) };
    Ok(Config {
        norm_weight: NormWeight::Absent,
        embedding_norm: EmbeddingNorm::Normed,
        qk_norm: QkNorm::Unweighted,
        qk_norm_place: QkNormPlace::AfterRotation,
        mlp: MlpShape::Plain,
        final_logit_softcapping: cap.map(|cap| cap as f32),
        ..base(metadata, &defaults)?
    })
}
