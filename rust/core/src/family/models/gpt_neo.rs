//! GPT-Neo: learned positions, a window in every second layer, scores without a scale.
//!
//! Black et al. 2021. Defaults of absent keys: transformers 5.23, `configuration_gpt_neo.py`: global and local layers
//! alternate, a window of 256. It has no rotation and is supported for comparison.

use serde_json::Value;

use super::gpt2::inner_size;
use crate::checkpoint::json::describe;
use crate::config::{
    Activation, Bias, Config, EmbeddingPosition, LmHead, Mask, MlpShape, Names, Qkv, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, NormKey, base};
use crate::family::keys::metadata::Metadata;
use ropechat_platform::error::Result;

pub(crate) static GPT_NEO: Family = Family {
    model_types: &["gpt_neo"],
    aliases: &[
        ("num_attention_heads", "num_heads"),
        ("num_hidden_layers", "num_layers"),
        ("hidden_act", "activation_function"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ],
    config,
};

const NAMES: Names = Names {
    bases: &["transformer.", ""],
    base: "transformer.",
    embed_tokens: "wte.weight",
    position_embedding: "wpe.weight",
    layers: "h",
    norm: tensor!("ln_f"),
    attention_norm: tensor!("ln_1"),
    mlp_norm: tensor!("ln_2"),
    qkv: Qkv::Separate([
        tensor!("attn.attention.q_proj"),
        tensor!("attn.attention.k_proj"),
        tensor!("attn.attention.v_proj"),
    ]),
    o_proj: tensor!("attn.attention.out_proj"),
    gate_up_proj: Names::plain_up(tensor!("mlp.c_fc")),
    down_proj: tensor!("mlp.c_proj"),
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        norm: NormKey::Layer("layer_norm_eps", 1e-5),
        activation: Activation::GeluTanh,
        lm_head: LmHead::Tied,
        attention_bias: BiasKey::Fixed(Bias::None),
        attention_out_bias: BiasKey::Absent(Bias::Added),
        mlp_bias: BiasKey::Absent(Bias::Added),
        intermediate_size: Some(inner_size(metadata)?),
        rope: None,
        ..Defaults::LLAMA
    };
    let mut config = base(metadata, &defaults)?;
    let window = metadata.integer_if_any("window_size", 1..=1 << 40)?.unwrap_or(256);
    let local = local_layers(metadata, config.layers.len())?;
    for (layer, local) in config.layers.iter_mut().zip(local) {
        layer.mask = if local { Mask::Sliding(window) } else { Mask::Causal };
    }
    Ok(Config {
        position: EmbeddingPosition::Learned,
        mlp: MlpShape::Plain,
        attention_multiplier: 1.0,
        ..config
    })
}

/// `attention_types`: [[[kind, ...], times], ...]; `attention_layers` is the same written out.
fn local_layers(metadata: &Metadata<'_>, layers: usize) -> Result<Vec<bool>> {
    const KEY: &str = "attention_types";
    let written_out = metadata.texts_if_any("attention_layers")?;
    let Some(value) = metadata.get(KEY) else {
        return Ok(match written_out {
            Some(kinds) if kinds.len() == layers => kinds.iter().map(|kind| *kind == "local").collect(),
            _ => (0..layers).map(|layer| layer % 2 == 1).collect(),
        });
    };
    let entry = |item: &Value| -> Option<Vec<bool>> {
        let (kinds, times) = (item.get(0)?.as_array()?, usize::try_from(item.get(1)?.as_u64()?).ok()?);
        let kinds: Option<Vec<bool>> = kinds
            .iter()
            .map(|kind| match kind.as_str()? {
                "global" => Some(false),
                "local" => Some(true),
                _ => None,
            })
            .collect();
        Some(kinds?.repeat(times.min(layers)))
    };
    let all: Option<Vec<Vec<bool>>> = value.as_array().and_then(|items| items.iter().map(entry).collect());
    let all: Vec<bool> = all.unwrap_or_default().concat();
    if all.len() != layers {
        let what = format!(
            "must be a list like [[[\"global\", \"local\"], 12]] for {layers} layers (got {})",
            describe(value)
        );
        return Err(metadata.bad(KEY, &what));
    }
    Ok(all)
}
