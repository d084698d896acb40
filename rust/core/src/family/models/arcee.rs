//! Arcee's AFM (arcee) and Jais 2: Llama with a plain MLP and squared ReLU; Jais 2 with LayerNorms and biases everywhere.
//!
//! Arcee 2025 (AFM-4.5B), Inception 2025 (Jais 2). Defaults of absent keys: transformers 5.23,
//! `configuration_arcee.py`, `configuration_jais2.py`.

use crate::config::{Activation, Config, MlpShape, Names, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, NormKey, base};

pub(crate) static ARCEE: Family = Family {
    model_types: &["arcee"],
    aliases: &[],
    config: |metadata| Ok(Config { mlp: MlpShape::Plain, ..base(metadata, &DEFAULTS)? }),
};

pub(crate) static JAIS2: Family = Family {
    model_types: &["jais2"],
    aliases: &[],
    config: |metadata| {
        let defaults = Defaults {
            max_position_embeddings: 8192,
            norm: NormKey::Layer("layer_norm_eps", 1e-5),
            attention_bias: BiasKey::Key("attention_bias", true),
            attention_out_bias: BiasKey::Key("attention_bias", true),
            mlp_bias: BiasKey::Key("mlp_bias", true),
            ..DEFAULTS
        };
        Ok(Config { mlp: MlpShape::Plain, ..base(metadata, &defaults)? })
    },
};

const DEFAULTS: Defaults = Defaults {
    names: Names { gate_up_proj: Names::plain_up(tensor!("mlp.up_proj")), ..Names::LLAMA },
    max_position_embeddings: 4096,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    activation: Activation::Relu2,
    ..Defaults::LLAMA
};
