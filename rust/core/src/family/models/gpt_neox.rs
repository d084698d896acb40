//! GPT-NeoX and Pythia: LayerNorm, q, k, v of each head in one matrix, a quarter of a head rotated; attention and MLP
//! in parallel, each behind its own norm, or one after another.
//!
//! Black et al. 2022 (GPT-NeoX-20B), Biderman et al. 2023 (Pythia). Defaults of absent keys: transformers 5.23,
//! `configuration_gpt_neox.py`; old files write `rotary_pct` and `rotary_emb_base`.

use crate::config::{Activation, Bias, Config, LmHead, MlpShape, Names, Qkv, Residual, Tensor, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::rope::Partial;
use ropechat_platform::error::Result;

pub(crate) static GPT_NEOX: Family = Family {
    model_types: &["gpt_neox"],
    aliases: &[("partial_rotary_factor", "rotary_pct"), ("rope_theta", "rotary_emb_base")],
    config,
};

const NAMES: Names = Names {
    bases: &["gpt_neox.", ""],
    base: "gpt_neox.",
    embed_tokens: "embed_in.weight",
    norm: tensor!("final_layer_norm"),
    lm_head: tensor!("embed_out"),
    qkv: Qkv::Grouped(tensor!("attention.query_key_value")),
    o_proj: tensor!("attention.dense"),
    gate_up_proj: Names::plain_up(tensor!("mlp.dense_h_to_4h")),
    down_proj: tensor!("mlp.dense_4h_to_h"),
    ..Names::LLAMA
};

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    norm: NormKey::Layer("layer_norm_eps", 1e-5),
    activation: Activation::Gelu,
    attention_bias: BiasKey::Key("attention_bias", true),
    attention_out_bias: BiasKey::Key("attention_bias", true),
    mlp_bias: BiasKey::Absent(Bias::Added),
    rope: Some(RopeDefaults { partial: Partial::Usually(0.25), ..RopeDefaults::WHOLE }),
    ..Defaults::LLAMA
};

pub(crate) static GPT_NEOX_JAPANESE: Family = Family {
    model_types: &["gpt_neox_japanese"],
    aliases: &[("partial_rotary_factor", "rotary_pct"), ("rope_theta", "rotary_emb_base")],
    config: |metadata| {
        let times = metadata.integer_if_any("intermediate_multiple_size", 1..=1 << 10)?.unwrap_or(4);
        let defaults = Defaults {
            names: Names {
                bases: &["gpt_neox_japanese.", ""],
                base: "gpt_neox_japanese.",
                o_proj: Tensor { weight: "attention.dense.weight", bias: "attention.dense_bias" },
                ..NAMES
            },
            intermediate_size: Some(times * metadata.integer("hidden_size", 1..=1 << 20)?),
            lm_head: LmHead::Tied,
            attention_bias: BiasKey::Absent(Bias::None),
            attention_out_bias: BiasKey::Absent(Bias::AddedInLastLayer),
            mlp_bias: BiasKey::Absent(Bias::None),
            rope: Some(RopeDefaults { partial: Partial::Usually(1.0), ..RopeDefaults::WHOLE }),
            ..DEFAULTS
        };
        Ok(Config { mlp: MlpShape::Plain, ..base(metadata, &defaults)? })
    },
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let parallel = metadata.flag_or("use_parallel_residual", true)?;
    Ok(Config {
        residual: if parallel { Residual::Parallel } else { Residual::Sequential },
        mlp: MlpShape::Plain,
        ..base(metadata, &DEFAULTS)?
    })
}
