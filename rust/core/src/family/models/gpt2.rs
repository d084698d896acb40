//! GPT-2: learned positions, LayerNorm, q, k, v in one matrix, all matrices stored [in, out].
//!
//! Radford et al. 2019. Defaults of absent keys: transformers 5.23, `configuration_gpt2.py`. It has no rotation
//! and is supported for comparison. Sequences end where the table of positions ends.

use crate::config::{
    Activation, Bias, Config, EmbeddingPosition, LmHead, MlpShape, Names, Qkv, Stored, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, NormKey, base};
use crate::family::keys::metadata::Metadata;
use ropechat_platform::error::Result;

pub(crate) static GPT2: Family = Family { model_types: &["gpt2"], aliases: ALIASES, config };

/// GPT-2's and GPT-J's names of the common keys.
pub(crate) const ALIASES: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("max_position_embeddings", "n_positions"),
    ("intermediate_size", "n_inner"),
    ("hidden_act", "activation_function"),
    ("layer_norm_eps", "layer_norm_epsilon"),
];

const NAMES: Names = Names {
    bases: &["transformer.", ""],
    base: "transformer.",
    embed_tokens: "wte.weight",
    position_embedding: "wpe.weight",
    layers: "h",
    stored: Stored::InOut,
    norm: tensor!("ln_f"),
    attention_norm: tensor!("ln_1"),
    mlp_norm: tensor!("ln_2"),
    qkv: Qkv::Stacked(tensor!("attn.c_attn")),
    o_proj: tensor!("attn.c_proj"),
    gate_up_proj: Names::plain_up(tensor!("mlp.c_fc")),
    down_proj: tensor!("mlp.c_proj"),
    ..Names::LLAMA
};

/// `n_inner`, or four times the width.
pub(crate) fn inner_size(metadata: &Metadata<'_>) -> Result<usize> {
    Ok(4 * metadata.integer("hidden_size", 1..=1 << 20)?)
}

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        max_position_embeddings: 1024,
        norm: NormKey::Layer("layer_norm_eps", 1e-5),
        activation: Activation::GeluTanh,
        lm_head: LmHead::Tied,
        attention_bias: BiasKey::Fixed(Bias::Added),
        attention_out_bias: BiasKey::Absent(Bias::Added),
        mlp_bias: BiasKey::Absent(Bias::Added),
        intermediate_size: Some(inner_size(metadata)?),
        rope: None,
        ..Defaults::LLAMA
    };
    let mut config = base(metadata, &defaults)?;
    if !metadata.flag_or("scale_attn_weights", true)? {
        config.attention_multiplier = 1.0;
    }
    if metadata.flag_or("scale_attn_by_inverse_layer_idx", false)? {
        for (index, layer) in config.layers.iter_mut().enumerate() {
            layer.attention_scale = 1.0 / (index + 1) as f32;
        }
    }
    // It says that scores and softmax are in f32, where the rest is narrower: here they always are.
    metadata.flag_or("reorder_and_upcast_attn", false)?;
    // The same as n_positions; transformers reads only that.
    metadata.integer_if_any("n_ctx", crate::family::keys::rope::LENGTHS)?;
    Ok(Config { position: EmbeddingPosition::Learned, mlp: MlpShape::Plain, ..config })
}
