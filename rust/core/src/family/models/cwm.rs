//! Code World Model: Llama with a window in all but the first of every four layers.
//!
//! Meta FAIR 2025 (CWM). Defaults of absent keys: transformers 5.23, `configuration_cwm.py`, whose rope without keys is
//! llama3 with a factor of 16.

use crate::config::Bias;
use crate::family::keys::base::{
    BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, WindowKeys, base,
};
use crate::family::keys::rope::require_rope;
use crate::family::keys::windows::{window, with_windows};

pub(crate) static CWM: Family = Family {
    model_types: &["cwm"],
    aliases: &[],
    config: |metadata| {
        require_rope(metadata)?;
        let defaults = Defaults {
            num_key_value_heads: KvHeads::Usually(8),
            head_dim: HeadDim::Usually(128),
            max_position_embeddings: 131_072,
            norm: NormKey::Rms("rms_norm_eps", 1e-5),
            attention_bias: BiasKey::Fixed(Bias::None),
            attention_out_bias: BiasKey::Absent(Bias::None),
            rope: Some(RopeDefaults { theta: 1e6, ..RopeDefaults::WHOLE }),
            windows: WindowKeys::OfFamily,
            ..Defaults::LLAMA
        };
        let config = base(metadata, &defaults)?;
        let window = window(metadata, Some(8192))?;
        with_windows(metadata, config, window, |layer| !layer.is_multiple_of(4))
    },
};
