//! BitNet b1.58: Llama with squared ReLU and norms of the inputs of o_proj and down_proj. `keys/quantization.rs` has its matrices.
//!
//! Ma et al. 2025 (BitNet b1.58 2B4T). Defaults of absent keys: transformers 5.23, `configuration_bitnet.py`.

use crate::config::{Activation, Bias, Config, SubNorms};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, base};

pub(crate) static BITNET: Family = Family {
    model_types: &["bitnet"],
    aliases: &[],
    config: |metadata| {
        let defaults = Defaults {
            num_key_value_heads: KvHeads::Usually(5),
            head_dim: HeadDim::FreeQuotient,
            norm: NormKey::Rms("rms_norm_eps", 1e-5),
            activation: Activation::Relu2,
            mlp_bias: BiasKey::Absent(Bias::None),
            rope: Some(RopeDefaults { theta: 500_000.0, ..RopeDefaults::WHOLE }),
            ..Defaults::LLAMA
        };
        Ok(Config { sub_norms: SubNorms::BeforeOutput, ..base(metadata, &defaults)? })
    },
};
