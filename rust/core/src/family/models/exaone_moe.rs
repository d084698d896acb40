//! K-EXAONE (exaone_moe): EXAONE 4's attention behind norms before it, experts routed as in DeepSeek V3; and Kolibri 1: the
//! same attention between norms, experts chosen by their logit and weighted by its sigmoid.
//!
//! LG AI Research 2026; Kolibri 2026. Defaults of absent keys: transformers 5.23, `configuration_exaone_moe.py`,
//! `configuration_kolibri1.py`.

use super::deepseek::NAMES;
use super::exaone4::windowed;
use crate::config::{Bias, Config, Moe, Names, NormPlacement, Normalization, QkNorm, Scoring, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{
    Routing, experts_per_token, ignore_multi_token_prediction, moe_in_all_layers, routed_moe, shared_width,
    sparse_layers,
};
use crate::family::keys::windows::{rotate_in_windows, window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static EXAONE_MOE: Family = Family { model_types: &["exaone_moe"], aliases: &[], config };

pub(crate) static KOLIBRI1: Family =
    Family { model_types: &["kolibri1"], aliases: &[("num_local_experts", "num_experts")], config: kolibri1 };

const DEFAULTS: Defaults = Defaults {
    attention_bias: BiasKey::Fixed(Bias::None),
    attention_out_bias: BiasKey::Absent(Bias::None),
    mlp_bias: BiasKey::Absent(Bias::None),
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: Names { correction_bias: "mlp.e_score_correction_bias", ..NAMES },
        num_key_value_heads: KvHeads::Usually(32),
        head_dim: HeadDim::FreeQuotient,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        ..DEFAULTS
    };
    let config = windowed(metadata, base(metadata, &defaults)?)?;
    let routing = Routing {
        experts: "num_experts",
        scaling: ("routed_scaling_factor", 2.5),
        shared: Some(("num_shared_experts", 1)),
        ..Routing::DEEPSEEK
    };
    ignore_multi_token_prediction(metadata);
    for key in ["scoring_func", "topk_method", "is_moe_layer", "mtp_share_layers"] {
        metadata.get(key);
    }
    let moe = routed_moe(metadata, &routing)?;
    let config = Config { moe: Some(moe), qk_norm: QkNorm::PerHead(Bias::None), ..config };
    sparse_layers(metadata, config, 1)
}

fn kolibri1(metadata: &Metadata<'_>) -> Result<Config> {
    let num_experts = metadata.integer_if_any("num_local_experts", 1..=1 << 16)?.unwrap_or(384);
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(6))?;
    let width = metadata.integer("moe_intermediate_size", 1..=1 << 24)?;
    let moe = Moe {
        scoring: Scoring::SigmoidOfLogit,
        correction_bias: Bias::Added,
        normalization: Normalization::sum_if(metadata.flag_or("norm_topk_prob", false)?),
        shared: shared_width(metadata, "shared_expert_intermediate_size", 512)?,
        ..Moe::plain(num_experts, per_token, width)
    };
    let defaults = Defaults {
        names: Names {
            attention_out_norm: tensor!("post_attn_norm"),
            mlp_out_norm: tensor!("post_ffn_norm"),
            correction_bias: "moe.router.expert_bias",
            ..NAMES
        },
        intermediate_size: Some(width), // no layer is dense
        num_key_value_heads: KvHeads::Usually(4),
        head_dim: HeadDim::Usually(128),
        max_position_embeddings: 262_144,
        ..DEFAULTS
    };
    let config = base(metadata, &defaults)?;
    let window = window(metadata, Some(513))?;
    let config = with_windows(metadata, config, window, |layer| !(layer + 1).is_multiple_of(5))?;
    let config = Config {
        norm_placement: NormPlacement::Around,
        qk_norm: QkNorm::PerHead(Bias::None),
        ..rotate_in_windows(config)
    };
    Ok(moe_in_all_layers(config, moe))
}
