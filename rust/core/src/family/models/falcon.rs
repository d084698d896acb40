//! Falcon, built like PaLM: attention and MLP in parallel, one key/value head (7B) or a few (40B).
//!
//! Almazrouei et al. 2023; Chowdhery et al. 2022 (PaLM). Defaults of absent keys: transformers 5.23,
//! `configuration_falcon.py`. ALiBi (Falcon RW) is refused.

use crate::config::{Activation, Config, LmHead, MlpShape, Names, Qkv, Residual, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, KvHeads, NormKey, base};
use crate::family::keys::metadata::Metadata;
use ropechat_platform::error::Result;

pub(crate) static FALCON: Family = Family {
    model_types: &["falcon"],
    aliases: &[
        ("hidden_size", "n_embed"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("num_key_value_heads", "num_kv_heads"),
        ("num_key_value_heads", "n_head_kv"),
        ("intermediate_size", "ffn_hidden_size"),
        ("hidden_act", "activation"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ],
    config,
};

/// 40B: separate norms for attention and MLP.
const NAMES: Names = Names {
    bases: &["transformer.", ""],
    base: "transformer.",
    embed_tokens: "word_embeddings.weight",
    layers: "h",
    norm: tensor!("ln_f"),
    attention_norm: tensor!("ln_attn"),
    mlp_norm: tensor!("ln_mlp"),
    qkv: Qkv::Grouped(tensor!("self_attention.query_key_value")),
    o_proj: tensor!("self_attention.dense"),
    gate_up_proj: Names::plain_up(tensor!("mlp.dense_h_to_4h")),
    down_proj: tensor!("mlp.dense_4h_to_h"),
    ..Names::LLAMA
};
/// 7B: one norm for both.
const ONE_NORM: Names =
    Names { attention_norm: tensor!("input_layernorm"), mlp_norm: tensor!("input_layernorm"), ..NAMES };
/// Blocks that are not parallel.
const SEQUENTIAL: Names = Names { mlp_norm: tensor!("post_attention_layernorm"), ..ONE_NORM };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    if metadata.flag_or("alibi", false)? {
        let what = "must be false (got true); transformers adds ALiBi biases once or twice, depending on its attention \
             implementation, so there is no right number to compare with; use a model with rotary positions";
        return Err(metadata.unsupported("alibi", what));
    }
    let new = metadata.flag_or("new_decoder_architecture", false)?;
    let multi_query = metadata.flag_or("multi_query", true)?;
    let parallel = metadata.flag_or("parallel_attn", true)?;
    let norms = metadata.integer_if_any("num_ln_in_parallel_attn", 1..=2)?.unwrap_or(2);
    let heads = metadata.integer("num_attention_heads", 1..=1 << 16)?;
    let stated = metadata.integer_if_any("num_key_value_heads", 1..=1 << 16)?;
    // Old models have one key/value head or all of them, regardless of the file.
    let groups = match (new, multi_query) {
        (true, _) => stated.unwrap_or(heads),
        (false, true) => 1,
        (false, false) => heads,
    };
    let (names, residual) = match (parallel || new, new && norms == 2) {
        (true, true) => (NAMES, Residual::Parallel),
        (true, false) => (ONE_NORM, Residual::Parallel),
        (false, _) => (SEQUENTIAL, Residual::Sequential),
    };
    let bias = BiasKey::Key("bias", false);
    let defaults = Defaults {
        names,
        num_key_value_heads: KvHeads::Always(groups),
        norm: NormKey::Layer("layer_norm_eps", 1e-5),
        activation: Activation::Gelu,
        lm_head: LmHead::Tied,
        attention_bias: bias,
        attention_out_bias: bias,
        mlp_bias: bias,
        intermediate_size: Some(4 * metadata.integer("hidden_size", 1..=1 << 20)?),
        ..Defaults::LLAMA
    };
    Ok(Config { residual, mlp: MlpShape::Plain, ..base(metadata, &defaults)? })
}
