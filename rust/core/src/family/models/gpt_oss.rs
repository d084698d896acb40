//! gpt-oss: alternating windows, attention sinks, a mixture of experts with biases and a clamped SwiGLU.
//!
//! OpenAI 2025 (gpt-oss model card). Defaults of absent keys: transformers 5.23, `configuration_gpt_oss.py`: base
//! 150000, window 128 in even layers, 4 experts per token, alpha 1.702, limit 7. Published experts are in MXFP4.

use crate::config::{Activation, Bias, Config, Moe, MoeNames, Names, Sinks, Tensor, tensor};
use crate::family::keys::base::{
    BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, WindowKeys, base,
};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{experts_per_token, moe_in_all_layers};
use crate::family::keys::windows::{window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static GPT_OSS: Family = Family { model_types: &["gpt_oss"], aliases: &[], config };

const NAMES: Names = Names {
    moe: MoeNames::Interleaved {
        router: tensor!("mlp.router"),
        gate_up: Tensor { weight: "mlp.experts.gate_up_proj", bias: "mlp.experts.gate_up_proj_bias" },
        down: Tensor { weight: "mlp.experts.down_proj", bias: "mlp.experts.down_proj_bias" },
    },
    ..Names::LLAMA
};

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    num_key_value_heads: KvHeads::Usually(8),
    head_dim: HeadDim::Usually(64),
    max_position_embeddings: 131_072,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    attention_bias: BiasKey::Key("attention_bias", true),
    attention_out_bias: BiasKey::Key("attention_bias", true),
    rope: Some(RopeDefaults { theta: 150_000.0, ..RopeDefaults::WHOLE }),
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let config = base(metadata, &DEFAULTS)?;
    let num_experts = metadata.integer("num_local_experts", 1..=1 << 16)?;
    let num_experts_per_tok = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(4))?;
    // The published files have OpenAI's own names for two keys in addition to transformers'.
    let same = metadata.integer_if_any("experts_per_token", 1..=1 << 16)?;
    if same.is_some_and(|same| same != num_experts_per_tok) {
        return Err(metadata.bad("experts_per_token", "it differs from num_experts_per_tok; they must agree"));
    }
    metadata.integer_if_any("initial_context_length", crate::family::keys::rope::LENGTHS)?;
    let plain = Moe::plain(num_experts, num_experts_per_tok, config.intermediate_size);
    let moe = Moe { bias: Bias::Added, ..plain };
    let activation = Activation::ClampedSwiglu {
        alpha: metadata.number_or("swiglu_alpha", 1e-6..=1e6, 1.702)? as f32,
        limit: metadata.number_or("swiglu_limit", 1e-6..=1e9, 7.0)? as f32,
        offset: 1.0,
    };
    let config = Config { activation, sinks: Sinks::PerHead, ..moe_in_all_layers(config, moe) };
    let window = window(metadata, Some(128))?;
    with_windows(metadata, config, window, |layer| layer.is_multiple_of(2))
}
