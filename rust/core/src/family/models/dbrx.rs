//! DBRX: LayerNorms without bias, q, k and v in one matrix and clipped, experts below each other in three tensors.
//!
//! Databricks 2024 (DBRX). Defaults of absent keys: transformers 5.23, `configuration_dbrx.py`; epsilon 1e-5 is torch's.

use serde_json::Value;

use crate::config::{Activation, Bias, Config, Moe, MoeNames, Names, Normalization, Qkv, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, KvHeads, NormKey, RopeDefaults, base};
use crate::family::keys::known::refuse_unknown;
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{experts_per_token, ignore_multi_token_prediction, moe_in_all_layers};
use ropechat_platform::error::Result;

pub(crate) static DBRX: Family = Family {
    model_types: &["dbrx"],
    aliases: &[
        ("hidden_size", "d_model"),
        ("num_attention_heads", "n_heads"),
        ("num_hidden_layers", "n_layers"),
        ("max_position_embeddings", "max_seq_len"),
    ],
    config,
};

const NAMES: Names = Names {
    bases: &["transformer.", ""],
    base: "transformer.",
    embed_tokens: "wte.weight",
    layers: "blocks",
    norm: tensor!("norm_f"),
    attention_norm: tensor!("norm_attn_norm.norm_1"),
    mlp_norm: tensor!("norm_attn_norm.norm_2"),
    qkv: Qkv::Stacked(tensor!("norm_attn_norm.attn.Wqkv")),
    o_proj: tensor!("norm_attn_norm.attn.out_proj"),
    moe: MoeNames::Flat {
        router: tensor!("ffn.router.layer"),
        parts: ["ffn.experts.mlp.w1", "ffn.experts.mlp.v1", "ffn.experts.mlp.w2"],
    },
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let missing = |key: &str| metadata.bad(key, "it is missing; an object is needed");
    let attention = metadata.object_if_any("attn_config")?.ok_or_else(|| missing("attn_config"))?;
    let mlp = metadata.object_if_any("ffn_config")?.ok_or_else(|| missing("ffn_config"))?;
    let heads = attention.integer_if_any("kv_n_heads", 1..=1 << 16)?.unwrap_or(1);
    let theta = attention.number_if_any("rope_theta", 1e-3..=1e18)?.unwrap_or(10_000.0);
    let width = mlp.integer_if_any("ffn_hidden_size", 1..=1 << 24)?.unwrap_or(3584);
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: KvHeads::Always(heads),
        intermediate_size: Some(width),
        norm: NormKey::Layer("layer_norm_eps", 1e-5),
        attention_bias: BiasKey::Absent(Bias::None),
        attention_out_bias: BiasKey::Absent(Bias::None),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: Some(RopeDefaults { theta, ..RopeDefaults::WHOLE }),
        ..Defaults::LLAMA
    };
    let clip_qkv = attention.number_if_any("clip_qkv", 1e-6..=1e9)?;
    let config = base(metadata, &defaults)?;
    let num_experts = mlp.integer_if_any("moe_num_experts", 1..=1 << 16)?.unwrap_or(4);
    let per_token = experts_per_token(&mlp, "moe_top_k", num_experts, Some(1))?;
    const P: &str = "moe_normalize_expert_weights";
    let p = mlp.number_if_any(P, 1e-3..=1e3)?.or(if mlp.has(P) { None } else { Some(1.0) });
    if let Some(activation) = mlp.get("ffn_act_fn")
        && activation.get("name").and_then(Value::as_str) != Some("silu")
    {
        return Err(mlp.unsupported("ffn_act_fn", "must be {\"name\": \"silu\"}"));
    }
    mlp.integer_if_any("hidden_size", 1..=1 << 20)?;
    for inner in [&attention, &mlp] {
        inner.get("model_type");
        inner.get("name");
        ignore_multi_token_prediction(inner);
        refuse_unknown(inner)?;
    }
    metadata.get("emb_pdrop");
    let normalization = p.map_or(Normalization::None, |p| Normalization::PNorm(p as f32));
    let moe = Moe { normalization, ..Moe::plain(num_experts, per_token, width) };
    let config = Config {
        norm_bias: Bias::None,
        activation: Activation::Silu,
        clip_qkv: clip_qkv.map(|limit| limit as f32),
        ..config
    };
    Ok(moe_in_all_layers(config, moe))
}
