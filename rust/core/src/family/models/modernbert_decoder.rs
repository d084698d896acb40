//! ModernBERT as a decoder (Ettin): LayerNorms without bias, one also behind the embedding and none before the first layer's
//! attention, windows of half of `local_attention`, a dense layer before the tied head.
//!
//! Weller et al. 2025 (Ettin, <https://arxiv.org/abs/2507.11412>). Defaults of absent keys: transformers 5.23,
//! `configuration_modernbert_decoder.py`.

use crate::config::{
    Activation, Config, EmbeddingNorm, GateUp, HeadTransform, LmHead, Names, NormPlacement, Qkv, RopeLayout,
    tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, NormKey, WindowKeys, activation, base, bias};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::rope::{Partial, RopeFacts, rope_object, rope_of, ropes_by_kind};
use crate::family::keys::windows::{with_ropes, with_windows};
use ropechat_platform::error::Result;

pub(crate) static MODERNBERT_DECODER: Family =
    Family { model_types: &["modernbert-decoder"], aliases: &[], config };

const DEFAULTS: Defaults = Defaults {
    names: Names {
        embed_tokens: "embeddings.tok_embeddings.weight",
        embedding_norm: tensor!("embeddings.norm"),
        norm: tensor!("final_norm"),
        lm_head: tensor!("decoder"),
        attention_norm: tensor!("attn_norm"),
        mlp_norm: tensor!("mlp_norm"),
        qkv: Qkv::Separate([tensor!("attn.q_proj"), tensor!("attn.k_proj"), tensor!("attn.v_proj")]),
        o_proj: tensor!("attn.Wo"),
        gate_up_proj: GateUp::Stacked(tensor!("mlp.Wi")),
        down_proj: tensor!("mlp.Wo"),
        ..Names::LLAMA
    },
    max_position_embeddings: 8192,
    norm: NormKey::Layer("norm_eps", 1e-5),
    activation_key: "hidden_activation",
    activation: Activation::Gelu,
    lm_head: LmHead::Tied,
    rope: None,
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let config = base(metadata, &DEFAULTS)?;
    const LOCAL: &str = "local_attention";
    let local = metadata.integer_if_any(LOCAL, 2..=1 << 40)?;
    let local = if metadata.has(LOCAL) { local } else { Some(128) };
    let every = metadata.integer_if_any("global_attn_every_n_layers", 1..=1 << 16)?.unwrap_or(3);
    // It counts both sides of an encoder; a file that states the half means that.
    let window = match (metadata.get("sliding_window"), local) {
        (None, local) => local.map(|local| local / 2),
        (Some(unset), None) if unset.as_i64() == Some(-1) => None,
        (Some(_), _) => metadata.integer_if_any("sliding_window", 1..=1 << 40)?,
    };
    let config = with_windows(metadata, config, window, |layer| !layer.is_multiple_of(every))?;
    let facts = |theta| RopeFacts {
        theta,
        head_dim: config.head_dim,
        partial: Partial::Whole,
        layout: RopeLayout::Neox,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &[],
    };
    let kinds = ["full_attention", "sliding_attention"];
    let parameters = rope_object(metadata)?;
    let thetas = ["global_rope_theta", "local_rope_theta"];
    let ropes =
        match parameters.as_ref().is_some_and(|parameters| kinds.iter().any(|kind| parameters.has(kind))) {
            true => ropes_by_kind(metadata, kinds, thetas, [facts(160_000.0), facts(10_000.0)])?,
            false => [
                Some(rope_of(metadata, parameters.as_ref(), thetas[0], &facts(160_000.0))?),
                Some(rope_of(metadata, parameters.as_ref(), thetas[1], &facts(10_000.0))?),
            ],
        };
    let norm_bias = bias(metadata, BiasKey::Key("norm_bias", false))?;
    let head_bias = bias(metadata, BiasKey::Key("classifier_bias", false))?;
    let lm_head_bias = bias(metadata, BiasKey::Key("decoder_bias", true))?;
    let activation = activation(metadata, "classifier_activation", Activation::Gelu)?;
    for key in ["initializer_cutoff_factor", "mlp_dropout", "cls_token_id", "classifier_pooling"] {
        metadata.get(key);
    }
    Ok(Config {
        norm_bias,
        norm_placement: NormPlacement::BeforeButFirst,
        embedding_norm: EmbeddingNorm::Normed,
        head_transform: HeadTransform::DenseAndNorm { activation, bias: head_bias },
        lm_head_bias,
        ..with_ropes(config, ropes)
    })
}
