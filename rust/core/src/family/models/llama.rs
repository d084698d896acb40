//! Llama 1, 2 and 3, and the many models with the same architecture (SmolLM, TinyLlama, Yi, DeepSeek-Coder ...); InternLM 3
//! and IQuest Coder, which differ in defaults only.
//!
//! Touvron et al. 2023 (LLaMA, Llama 2), Dubey et al. 2024 (Llama 3). Defaults of absent keys: transformers 5.23,
//! `configuration_llama.py`, `configuration_internlm3.py`, `configuration_iquestcoder.py`. Sizes have no default here: a
//! file that does not state them is broken.

use crate::config::Config;
use crate::family::keys::base::{Defaults, Family, HeadDim, KvHeads, NormKey, base};
use crate::family::keys::metadata::Metadata;
use ropechat_platform::error::Result;

pub(crate) static LLAMA: Family =
    Family { model_types: &["llama"], aliases: &[], config: |metadata| base(metadata, &Defaults::LLAMA) };

pub(crate) static INTERNLM3: Family = Family {
    model_types: &["internlm3"],
    aliases: &[("attention_bias", "qkv_bias"), ("mlp_bias", "bias")],
    config: internlm3,
};

pub(crate) static IQUESTCODER: Family = Family {
    model_types: &["iquestcoder"],
    aliases: &[],
    config: |metadata| {
        let defaults = Defaults { max_position_embeddings: 131_072, ..DEFAULTS };
        base(metadata, &Defaults { num_key_value_heads: KvHeads::Usually(8), ..defaults })
    },
};

const DEFAULTS: Defaults = Defaults {
    head_dim: HeadDim::Usually(128),
    max_position_embeddings: 32_768,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    ..Defaults::LLAMA
};

fn internlm3(metadata: &Metadata<'_>) -> Result<Config> {
    let config = base(metadata, &Defaults { num_key_value_heads: KvHeads::Usually(2), ..DEFAULTS })?;
    if config.attention_bias != config.mlp_bias {
        let what = "must be the same as bias, since o_proj and the MLP have one flag in the original";
        return Err(metadata.unsupported("attention_bias", what));
    }
    Ok(config)
}
