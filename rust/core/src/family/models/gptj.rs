//! GPT-J: attention and MLP in parallel behind one LayerNorm, interleaved rotation; and CodeGen, the same with q, k and v in
//! one matrix that was made for four devices.
//!
//! Wang and Komatsuzaki 2021. Defaults of absent keys: transformers 5.23, `configuration_gptj.py`: 64 dimensions rotate.

use super::gpt2::{ALIASES, inner_size};
use crate::config::{Activation, Bias, Config, MlpShape, Names, Qkv, Residual, RopeLayout, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::rope::Partial;
use ropechat_platform::error::Result;

pub(crate) static GPTJ: Family = Family { model_types: &["gptj"], aliases: ALIASES, config };

pub(crate) static CODEGEN: Family = Family {
    model_types: &["codegen"],
    aliases: ALIASES,
    config: |metadata| {
        let config = config(metadata)?;
        let qkv = Qkv::OfFourDevices(tensor!("attn.qkv_proj"));
        if !(config.num_attention_heads * config.head_dim).is_multiple_of(4) {
            return Err(metadata
                .bad("hidden_size", "must be a multiple of 4, since q, k and v are stored in four parts"));
        }
        metadata.integer_if_any("n_ctx", crate::family::keys::rope::LENGTHS)?;
        Ok(Config { names: Names { qkv, ..NAMES }, ..config })
    },
};

const NAMES: Names = Names {
    bases: &["transformer.", ""],
    base: "transformer.",
    embed_tokens: "wte.weight",
    layers: "h",
    norm: tensor!("ln_f"),
    attention_norm: tensor!("ln_1"),
    mlp_norm: tensor!("ln_1"),
    qkv: Qkv::Separate([tensor!("attn.q_proj"), tensor!("attn.k_proj"), tensor!("attn.v_proj")]),
    o_proj: tensor!("attn.out_proj"),
    gate_up_proj: Names::plain_up(tensor!("mlp.fc_in")),
    down_proj: tensor!("mlp.fc_out"),
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let rotary_dim = metadata.integer_if_any("rotary_dim", 2..=1 << 13)?.unwrap_or(64);
    let partial = Partial::Dimensions(rotary_dim);
    let rope = RopeDefaults { partial, layout: RopeLayout::Interleaved, ..RopeDefaults::WHOLE };
    let defaults = Defaults {
        names: NAMES,
        norm: NormKey::Layer("layer_norm_eps", 1e-5),
        activation: Activation::GeluTanh,
        attention_bias: BiasKey::Fixed(Bias::None),
        attention_out_bias: BiasKey::Absent(Bias::None),
        mlp_bias: BiasKey::Absent(Bias::Added),
        intermediate_size: Some(inner_size(metadata)?),
        rope: Some(rope),
        ..Defaults::LLAMA
    };
    // Flags of the original code, which transformers does not read either.
    metadata.flag_or("rotary", true)?;
    metadata.flag_or("scale_attn_weights", true)?;
    Ok(Config {
        residual: Residual::Parallel,
        mlp: MlpShape::Plain,
        lm_head_bias: Bias::Added,
        ..base(metadata, &defaults)?
    })
}
