//! Seed-OSS: Llama with biases on q, k and v, and their own flags for the other two.
//!
//! ByteDance Seed 2025. Defaults of absent keys: transformers 5.23, `configuration_seed_oss.py`.

use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, base};

pub(crate) static SEED_OSS: Family = Family {
    model_types: &["seed_oss"],
    aliases: &[],
    config: |metadata| {
        let defaults = Defaults {
            num_key_value_heads: KvHeads::Usually(8),
            head_dim: HeadDim::Usually(128),
            max_position_embeddings: 524_288,
            attention_bias: BiasKey::Key("attention_bias", true),
            attention_out_bias: BiasKey::Key("attention_out_bias", false),
            ..Defaults::LLAMA
        };
        base(metadata, &defaults)
    },
};
