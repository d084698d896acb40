//! Phi 3, 3.5 and 4: Llama with q, k, v in one matrix and gate and up in another, and longrope for long contexts.
//!
//! Abdin et al. 2024 (Phi-3). Defaults of absent keys: transformers 5.23, `configuration_phi3.py`: a trained length of
//! 4096 in addition to the extended one. Beyond it a sequence is evaluated again with the long factors, as `generate`
//! does.

use crate::config::{Bias, Config, GateUp, Names, Qkv, RopeScaling, tensor};
use crate::family::keys::base::{
    BiasKey, Defaults, Family, HeadDim, NormKey, RopeDefaults, WindowKeys, base,
};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::rope::{Partial, rope_object};
use crate::family::keys::windows::{window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static PHI3: Family = Family { model_types: &["phi3"], aliases: &[], config };

const DEFAULTS: Defaults = Defaults {
    names: Names {
        qkv: Qkv::Stacked(tensor!("self_attn.qkv_proj")),
        gate_up_proj: GateUp::Stacked(tensor!("mlp.gate_up_proj")),
        ..Names::LLAMA
    },
    head_dim: HeadDim::FreeQuotient,
    max_position_embeddings: 4096,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    // No matrix has one, regardless of `attention_bias`.
    attention_bias: BiasKey::Absent(Bias::None),
    attention_out_bias: BiasKey::Absent(Bias::None),
    rope: Some(RopeDefaults { partial: Partial::Usually(1.0), ..RopeDefaults::WHOLE }),
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let config = base(metadata, &DEFAULTS)?;
    metadata.get("attention_bias");
    const KEY: &str = "original_max_position_embeddings";
    let stated = metadata.has(KEY) || rope_object(metadata)?.is_some_and(|parameters| parameters.has(KEY));
    let is_long = config.ropes.iter().any(|rope| matches!(rope.scaling, RopeScaling::LongRope { .. }));
    if is_long && !stated {
        return Err(metadata.bad(KEY, "it is missing; the length before longrope is needed"));
    }
    // Without longrope it says nothing.
    metadata.integer_if_any(KEY, crate::family::keys::rope::LENGTHS)?;
    let window = window(metadata, None)?;
    with_windows(metadata, config, window, |_| true)
}
