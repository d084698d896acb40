//! Persimmon: LayerNorms, q, k, v of each head in one matrix, a LayerNorm on every head of q and k, half of a head rotated,
//! a plain MLP with squared ReLU.
//!
//! Adept 2023 (Persimmon-8B). Defaults of absent keys: transformers 5.23, `configuration_persimmon.py`.

use crate::config::{Activation, Bias, Config, MlpShape, Names, QkNorm, Qkv, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::rope::Partial;
use ropechat_platform::error::Result;

pub(crate) static PERSIMMON: Family = Family { model_types: &["persimmon"], aliases: &[], config };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: Names {
            norm: tensor!("final_layernorm"),
            qkv: Qkv::Grouped(tensor!("self_attn.query_key_value")),
            q_norm: tensor!("self_attn.q_layernorm"),
            k_norm: tensor!("self_attn.k_layernorm"),
            o_proj: tensor!("self_attn.dense"),
            gate_up_proj: Names::plain_up(tensor!("mlp.dense_h_to_4h")),
            down_proj: tensor!("mlp.dense_4h_to_h"),
            ..Names::LLAMA
        },
        max_position_embeddings: 16_384,
        norm: NormKey::Layer("layer_norm_eps", 1e-5),
        activation: Activation::Relu2,
        attention_bias: BiasKey::Absent(Bias::Added),
        attention_out_bias: BiasKey::Absent(Bias::Added),
        mlp_bias: BiasKey::Absent(Bias::Added),
        rope: Some(RopeDefaults { partial: Partial::Cut(0.5), ..RopeDefaults::WHOLE }),
        ..Defaults::LLAMA
    };
    let normed = metadata.flag_or("qk_layernorm", true)?;
    Ok(Config {
        mlp: MlpShape::Plain,
        qk_norm: if normed { QkNorm::PerHead(Bias::Added) } else { QkNorm::None },
        ..base(metadata, &defaults)?
    })
}
