//! Llama 1, 2 and 3, and the many models that took their shape (SmolLM, TinyLlama, Yi, DeepSeek-Coder ...).
//!
//! Touvron et al. 2023 (LLaMA, Llama 2), Dubey et al. 2024 (Llama 3). Defaults of absent keys: transformers 5.23,
//! `configuration_llama.py`. Sizes have no default here: a file that does not state them is broken.

use super::metadata::Metadata;
use super::rope::{LENGTHS, RopeFacts, rope};
use super::{Family, heads};
use crate::config::{Activation, Config, LayerSpec, LmHead, Mask, Norm, RopeLayout};
use crate::error::Result;

/// Facts of the family.
pub(super) static LLAMA: Family = Family { model_types: &["llama"], config };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let vocab_size = metadata.integer("vocab_size", 1..=1 << 26)?;
    let hidden_size = metadata.integer("hidden_size", 1..=1 << 20)?;
    let heads = heads(metadata, hidden_size)?;
    let max_position_embeddings =
        metadata.integer_if_any("max_position_embeddings", LENGTHS)?.unwrap_or(2048);
    let layer = LayerSpec { mask: Mask::Causal };
    super::refuse_window(metadata, max_position_embeddings)?;
    super::refuse_partial_rotation(metadata)?;
    Ok(Config {
        model_type: "llama".to_owned(),
        vocab_size,
        hidden_size,
        intermediate_size: metadata.integer("intermediate_size", 1..=1 << 24)?,
        num_attention_heads: heads.num_attention_heads,
        num_key_value_heads: heads.num_key_value_heads,
        head_dim: heads.head_dim,
        max_position_embeddings,
        layers: vec![layer; metadata.integer("num_hidden_layers", 1..=4096)?],
        norm: Norm::RmsNorm { eps: super::eps(metadata, "rms_norm_eps", 1e-6)? },
        activation: super::activation(metadata, "hidden_act", Activation::Silu)?,
        attention_bias: super::bias(metadata, "attention_bias")?,
        mlp_bias: super::bias(metadata, "mlp_bias")?,
        rope: rope(
            metadata,
            &RopeFacts {
                theta: 10_000.0,
                rotary_dim: heads.head_dim,
                layout: RopeLayout::HalfSplit,
                max_position_embeddings,
            },
        )?,
        lm_head: if metadata.flag_or("tie_word_embeddings", false)? { LmHead::Tied } else { LmHead::Own },
        bos_token_id: metadata.token_ids("bos_token_id", vocab_size)?.first().copied(),
        eos_token_id: metadata.token_ids("eos_token_id", vocab_size)?,
        torch_dtype: super::torch_dtype(metadata),
    })
}
