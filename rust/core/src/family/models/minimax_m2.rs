//! MiniMax M2: norms over all of q and of k, half of a head rotated, experts chosen by their sigmoid with a bias.
//!
//! MiniMax 2025 (M2). Defaults of absent keys: transformers 5.23, `configuration_minimax_m2.py`.

use crate::config::{Bias, Config, Moe, MoeNames, Names, QkNorm, Scoring, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{
    experts_per_token, ignore_multi_token_prediction, moe_in_all_layers, only_word,
};
use crate::family::keys::rope::Partial;
use ropechat_platform::error::Result;

pub(crate) static MINIMAX_M2: Family =
    Family { model_types: &["minimax_m2"], aliases: &[("num_local_experts", "num_experts")], config };

const NAMES: Names = Names {
    moe: MoeNames::Each {
        router: tensor!("block_sparse_moe.gate"),
        experts: "block_sparse_moe.experts",
        parts: ["w1.weight", "w3.weight", "w2.weight"],
        shared: "",
        shared_parts: MoeNames::PARTS,
    },
    correction_bias: "block_sparse_moe.e_score_correction_bias",
    ..Names::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let partial = match metadata.integer_if_any("rotary_dim", 2..=1 << 13)? {
        Some(dim) => Partial::Dimensions(dim),
        None => Partial::Usually(1.0),
    };
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: KvHeads::Usually(8),
        head_dim: HeadDim::Usually(128),
        max_position_embeddings: 196_608,
        attention_bias: BiasKey::Fixed(Bias::None),
        attention_out_bias: BiasKey::Absent(Bias::None),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: Some(RopeDefaults { theta: 5e6, partial, ..RopeDefaults::WHOLE }),
        ..Defaults::LLAMA
    };
    let config = base(metadata, &defaults)?;
    let num_experts = metadata.integer("num_local_experts", 1..=1 << 16)?;
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(8))?;
    ignore_multi_token_prediction(metadata);
    // The original's words for what is computed here, and what is not used.
    only_word(metadata, "scoring_func", "sigmoid")?;
    only_word(metadata, "qk_norm_type", "per_layer")?;
    for (key, computed) in [("use_qk_norm", true), ("use_routing_bias", true)] {
        if metadata.flag_or(key, computed)? != computed {
            return Err(metadata.unsupported(key, &format!("must be {computed} (got {})", !computed)));
        }
    }
    for key in ["attn_type_list", "use_mtp", "num_mtp_modules", "mtp_transformer_layers", "max_model_len"] {
        metadata.get(key);
    }
    metadata.integer_if_any("shared_intermediate_size", 0..=0)?;
    let moe = Moe {
        scoring: Scoring::Sigmoid,
        correction_bias: Bias::Added,
        ..Moe::plain(num_experts, per_token, config.intermediate_size)
    };
    Ok(moe_in_all_layers(Config { qk_norm: QkNorm::FullWidth, ..config }, moe))
}
