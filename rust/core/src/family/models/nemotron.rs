//! Nemotron 4 and Minitron: LayerNorms whose weight is stored minus one, a plain MLP with squared ReLU, half of a head
//! rotated.
//!
//! Parmar et al. 2024 (Nemotron-4). Defaults of absent keys: transformers 5.23, `configuration_nemotron.py`.

use crate::config::{Activation, Config, MlpShape, NormWeight};
use crate::family::keys::base::{Defaults, Family, HeadDim, NormKey, RopeDefaults, base};
use crate::family::keys::rope::Partial;

pub(crate) static NEMOTRON: Family = Family {
    model_types: &["nemotron"],
    aliases: &[],
    config: |metadata| {
        let config = base(metadata, &DEFAULTS)?;
        Ok(Config { mlp: MlpShape::Plain, norm_weight: NormWeight::MinusOne, ..config })
    },
};

const DEFAULTS: Defaults = Defaults {
    head_dim: HeadDim::FreeQuotient,
    max_position_embeddings: 4096,
    norm: NormKey::Layer("norm_eps", 1e-5),
    activation: Activation::Relu2,
    rope: Some(RopeDefaults { partial: Partial::Usually(0.5), ..RopeDefaults::WHOLE }),
    ..Defaults::LLAMA
};
