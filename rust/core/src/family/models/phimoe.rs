//! Phi 3.5 MoE: LayerNorms with biases, longrope with its own factor for each range, two experts by a sparse mixer.
//!
//! Abdin et al. 2024 (Phi-3). Defaults of absent keys: transformers 5.23, `configuration_phimoe.py`; the short divisors at
//! every length are `modeling_phimoe.py`'s.

use super::mixtral::NAMES;
use crate::config::{Bias, Config, Moe, RopeScaling, Scoring};
use crate::family::keys::base::{
    BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, WindowKeys, base,
};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::moe_in_all_layers;
use crate::family::keys::rope::LENGTHS;
use crate::family::keys::windows::{window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static PHIMOE: Family = Family { model_types: &["phimoe"], aliases: &[], config };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: KvHeads::Usually(8),
        head_dim: HeadDim::FreeQuotient,
        max_position_embeddings: 4096 * 32,
        norm: NormKey::Layer("rms_norm_eps", 1e-5),
        attention_bias: BiasKey::Key("attention_bias", false),
        attention_out_bias: BiasKey::Key("attention_bias", false),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: Some(RopeDefaults {
            theta: 1e6,
            own_keys: &["short_mscale", "long_mscale"],
            ..RopeDefaults::WHOLE
        }),
        windows: WindowKeys::OfFamily,
        ..Defaults::LLAMA
    };
    let mut config = base(metadata, &defaults)?;
    for rope in &mut config.ropes {
        // Beyond the trained length transformers takes the other factor of cos and sin, and the same divisors.
        if let RopeScaling::LongRope { short_factor, long_factor, .. } = &mut rope.scaling {
            long_factor.clone_from(short_factor);
        }
    }
    let num_experts = metadata.integer_if_any("num_local_experts", 2..=1 << 16)?.unwrap_or(16);
    // The mixer is made for two.
    let per_token = metadata.integer_if_any("num_experts_per_tok", 2..=2)?.unwrap_or(2);
    let jitter = metadata.number_or("router_jitter_noise", 0.0..=1e3, 0.01)? as f32;
    metadata.get("input_jitter_noise"); // of training
    metadata.integer_if_any("original_max_position_embeddings", LENGTHS)?;
    let head_bias = metadata.flag_or("lm_head_bias", false)?;
    let moe = Moe {
        scoring: Scoring::Sparsemixer { jitter },
        ..Moe::plain(num_experts, per_token, config.intermediate_size)
    };
    let window = window(metadata, None)?;
    let config = with_windows(metadata, moe_in_all_layers(config, moe), window, |_| true)?;
    Ok(Config { lm_head_bias: if head_bias { Bias::Added } else { Bias::None }, ..config })
}
