//! GLM 4 (glm: the 2024 models; glm4: those of 2025): gate and up in one matrix, half of a head rotated,
//! interleaved; glm4 has norms around attention and MLP.
//!
//! GLM Team 2024. Defaults of absent keys: transformers 5.23, `configuration_glm.py`, `configuration_glm4.py`: head_dim
//! 128, epsilon 1.5625e-7, biases on q, k and v.

use crate::config::{Bias, Config, GateUp, Names, NormPlacement, RopeLayout, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, base};
use crate::family::keys::rope::Partial;

pub(crate) static GLM: Family =
    Family { model_types: &["glm"], aliases: &[], config: |metadata| base(metadata, &DEFAULTS) };

pub(crate) static GLM4: Family = Family {
    model_types: &["glm4"],
    aliases: &[],
    config: |metadata| {
        let config = base(metadata, &Defaults { names: AROUND, ..DEFAULTS })?;
        Ok(Config { norm_placement: NormPlacement::Around, ..config })
    },
};

const NAMES: Names = Names { gate_up_proj: GateUp::Stacked(tensor!("mlp.gate_up_proj")), ..Names::LLAMA };
const AROUND: Names = Names {
    attention_out_norm: tensor!("post_self_attn_layernorm"),
    mlp_out_norm: tensor!("post_mlp_layernorm"),
    ..NAMES
};

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    num_key_value_heads: KvHeads::Usually(2),
    head_dim: HeadDim::Usually(128),
    max_position_embeddings: 131_072,
    norm: NormKey::Rms("rms_norm_eps", 1.5625e-7),
    attention_bias: BiasKey::Key("attention_bias", true),
    attention_out_bias: BiasKey::Absent(Bias::None),
    rope: Some(RopeDefaults {
        partial: Partial::Usually(0.5),
        layout: RopeLayout::Interleaved,
        ..RopeDefaults::WHOLE
    }),
    ..Defaults::LLAMA
};
