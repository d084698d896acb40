//! DeepSeek V2 and V3: latent attention, and a mixture of experts with groups and shared experts above the first layers.
//!
//! DeepSeek-AI 2024 (DeepSeek-V2, DeepSeek-V3). Defaults of absent keys: transformers 5.23, `configuration_deepseek_v2.py`
//! and `configuration_deepseek_v3.py`; the latents' norms have the epsilon 1e-6 regardless of the file
//! (`modeling_deepseek_v2.py`), and V2 never normalizes the experts' weights (`norm_topk_prob` is not read there).

use crate::config::{Bias, Config, MoeNames, MtpNames, Names, Normalization, RopeLayout, Scoring, tensor};
use crate::family::keys::base::{Defaults, Family};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mla::{MlaDefaults, Rotation, latent};
use crate::family::keys::moe::{Routing, ignore_multi_token_prediction, routed_moe, sparse_layers};
use ropechat_platform::error::{Error, Result};

pub(crate) static DEEPSEEK_V2: Family = Family { model_types: &["deepseek_v2"], aliases: &[], config: v2 };

pub(crate) static DEEPSEEK_V3: Family = Family { model_types: &["deepseek_v3"], aliases: &[], config: v3 };

/// Names of DeepSeek and of those that follow it.
pub(crate) const NAMES: Names = Names {
    moe: MoeNames::Each {
        router: tensor!("mlp.gate"),
        experts: "mlp.experts",
        parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
        shared: "mlp.shared_experts",
        shared_parts: MoeNames::PARTS,
    },
    ..Names::LLAMA
};

fn v2(metadata: &Metadata<'_>) -> Result<Config> {
    let limited = match metadata.text_if_any("topk_method")? {
        None | Some("greedy") => false,
        Some("group_limited_greedy") => true,
        Some(_) => return Err(wrong_word(metadata, "topk_method", "greedy and group_limited_greedy")),
    };
    if metadata.text_if_any("scoring_func")?.is_some_and(|word| word != "softmax") {
        return Err(wrong_word(metadata, "scoring_func", "softmax"));
    }
    metadata.flag_or("norm_topk_prob", false)?;
    for key in ["n_group", "topk_group"] {
        if metadata.integer_if_any(key, 1..=1 << 16)?.is_none() && limited {
            return Err(metadata.bad("n_group", "group_limited_greedy needs n_group and topk_group"));
        }
    }
    let routing = Routing {
        per_token: None,
        scoring: Scoring::Softmax,
        correction_bias: Bias::None,
        groups: limited.then_some((1, 1)),
        group_top_k: 1,
        shared: Some(("n_shared_experts", 2)),
        ..Routing::DEEPSEEK
    };
    let mla = MlaDefaults { rotation: Rotation::Fixed(RopeLayout::Interleaved), ..MlaDefaults::DEEPSEEK };
    let config = config(metadata, &Defaults { names: NAMES, ..Defaults::LLAMA }, &mla, &routing, 0)?;
    let moe = config.moe.map(|moe| crate::config::Moe { normalization: Normalization::None, ..moe });
    Ok(Config { moe, ..config })
}

fn v3(metadata: &Metadata<'_>) -> Result<Config> {
    for (key, word) in [("topk_method", "noaux_tc"), ("scoring_func", "sigmoid")] {
        if metadata.text_if_any(key)?.is_some_and(|stated| stated != word) {
            return Err(wrong_word(metadata, key, word));
        }
    }
    let routing =
        Routing { groups: Some((8, 4)), scaling: ("routed_scaling_factor", 2.5), ..Routing::DEEPSEEK };
    let defaults = Defaults { names: NAMES, max_position_embeddings: 4096, ..Defaults::LLAMA };
    Ok(config(metadata, &defaults, &MlaDefaults::DEEPSEEK, &routing, 3)?.with_mtp(MtpNames::IN_LAYER))
}

/// Latent attention and a mixture; dense layers first.
pub(crate) fn config(
    metadata: &Metadata<'_>,
    defaults: &Defaults,
    mla: &MlaDefaults,
    routing: &Routing,
    first_dense: usize,
) -> Result<Config> {
    ignore_multi_token_prediction(metadata);
    let config = latent(metadata, defaults, mla)?;
    let moe = routed_moe(metadata, routing)?;
    sparse_layers(metadata, Config { moe: Some(moe), ..config }, first_dense)
}

fn wrong_word(metadata: &Metadata<'_>, key: &str, supported: &str) -> Error {
    let found = metadata.get(key).map_or_else(String::new, crate::checkpoint::json::describe);
    metadata.unsupported(key, &format!("must be {supported} (got {found})"))
}
