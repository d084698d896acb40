//! Helium: Llama with interleaved rotation.
//!
//! Kyutai 2025 (Helium 1). Defaults of absent keys: transformers 5.23, `configuration_helium.py`; o_proj has no bias
//! whatever the flag says (`modeling_helium.py`).

use crate::config::{Bias, RopeLayout};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, base};

pub(crate) static HELIUM: Family = Family {
    model_types: &["helium"],
    aliases: &[],
    config: |metadata| {
        let defaults = Defaults {
            num_key_value_heads: KvHeads::Usually(20),
            head_dim: HeadDim::Usually(128),
            max_position_embeddings: 4096,
            norm: NormKey::Rms("rms_norm_eps", 1e-8),
            attention_out_bias: BiasKey::Absent(Bias::None),
            rope: Some(RopeDefaults { theta: 1e5, layout: RopeLayout::Interleaved, ..RopeDefaults::WHOLE }),
            ..Defaults::LLAMA
        };
        base(metadata, &defaults)
    },
};
