//! ERNIE 4.5: Llama with interleaved rotation and one flag for all biases; and as a mixture of experts in a range of layers.
//!
//! Baidu 2025 (ERNIE 4.5). Defaults of absent keys: transformers 5.23, `configuration_ernie4_5.py` and
//! `configuration_ernie4_5_moe.py`; experts are chosen by their softmax with a bias and weighted without it
//! (`modeling_ernie4_5_moe.py`).

use crate::config::{
    Bias, Config, LayerMlp, LmHead, Moe, MoeNames, Names, Normalization, RopeLayout, SharedExpert, tensor,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::experts_per_token;
use ropechat_platform::error::Result;

pub(crate) static ERNIE4_5: Family =
    Family { model_types: &["ernie4_5"], aliases: &[], config: |metadata| base(metadata, &DEFAULTS) };

pub(crate) static ERNIE4_5_MOE: Family = Family {
    model_types: &["ernie4_5_moe"],
    aliases: &[("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok")],
    config: mixture,
};

const BIAS: BiasKey = BiasKey::Key("use_bias", false);

const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: KvHeads::Usually(2),
    head_dim: HeadDim::Usually(128),
    max_position_embeddings: 131_072,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    lm_head: LmHead::Tied,
    attention_bias: BIAS,
    attention_out_bias: BIAS,
    mlp_bias: BIAS,
    rope: Some(RopeDefaults { theta: 500_000.0, layout: RopeLayout::Interleaved, ..RopeDefaults::WHOLE }),
    ..Defaults::LLAMA
};

const NAMES: Names = Names {
    moe: MoeNames::Each {
        router: tensor!("mlp.gate"),
        experts: "mlp.experts",
        parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
        shared: "mlp.shared_experts",
        shared_parts: MoeNames::PARTS,
    },
    correction_bias: "mlp.moe_statics.e_score_correction_bias",
    correction_bias_shape: &[1],
    ..Names::LLAMA
};

fn mixture(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: KvHeads::Usually(4),
        head_dim: HeadDim::FreeQuotient,
        ..DEFAULTS
    };
    let mut config = base(metadata, &defaults)?;
    let number = |key: &str, least: u64, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, least..=1 << 16)?.unwrap_or(default))
    };
    let width = metadata.integer("moe_intermediate_size", 1..=1 << 24)?;
    let num_experts = number("moe_num_experts", 1, 64)?;
    let per_token = experts_per_token(metadata, "moe_k", num_experts, Some(6))?;
    let shared = number("moe_num_shared_experts", 0, 2)?;
    let least = metadata.number_or("moe_norm_min", 0.0..=1.0, 1e-12)?;
    // Bookkeeping of training, and of experts for pictures.
    for key in ["moe_capacity", "moe_use_aux_free", "moe_gate", "moe_layer_type", "moe_use_hard_gate"] {
        metadata.get(key);
    }
    let moe = Moe {
        correction_bias: Bias::Added,
        normalization: Normalization::SumAtLeast(least as f32),
        shared: match shared {
            0 => SharedExpert::None,
            count => SharedExpert::Added { intermediate_size: width * count },
        },
        ..Moe::plain(num_experts, per_token, width)
    };
    let (first, step) = (number("moe_layer_start_index", 0, 1)?, number("moe_layer_interval", 1, 1)?);
    const LAST: &str = "moe_layer_end_index";
    let last = match metadata.get(LAST).map(serde_json::Value::as_i64) {
        None | Some(Some(-1)) => usize::MAX,
        Some(_) => number(LAST, 0, 0)?,
    };
    for (index, layer) in config.layers.iter_mut().enumerate() {
        if (index + 1).is_multiple_of(step) && (first..=last).contains(&index) {
            layer.mlp = LayerMlp::Moe;
        }
    }
    Ok(Config { moe: Some(moe), lm_head_bias: config.attention_bias, ..config })
}
