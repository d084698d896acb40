//! dots.llm1: a norm on every head of q and k, windows in the upper layers, experts routed as in DeepSeek V3.
//!
//! rednote-hilab 2025 (dots.llm1, <https://arxiv.org/abs/2506.05767>). Defaults of absent keys: transformers 5.23,
//! `configuration_dots1.py`.

use super::deepseek::NAMES;
use crate::config::{Bias, Config, QkNorm};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{
    Routing, ignore_multi_token_prediction, only_word, routed_moe, sparse_layers,
};
use crate::family::keys::windows::{window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static DOTS1: Family = Family { model_types: &["dots1"], aliases: &[], config };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: KvHeads::Usually(32),
        head_dim: HeadDim::FreeQuotient,
        mlp_bias: BiasKey::Absent(Bias::None),
        windows: WindowKeys::OfFamily,
        ..Defaults::LLAMA
    };
    let config = base(metadata, &defaults)?;
    let first = metadata.integer_if_any("max_window_layers", 0..=1 << 20)?.unwrap_or(62);
    let window = window(metadata, Some(4096))?;
    let config = with_windows(metadata, config, window, |layer| layer >= first)?;
    let routing = Routing {
        per_token: None,
        normalized: false,
        shared: Some(("n_shared_experts", 0)),
        ..Routing::DEEPSEEK
    };
    only_word(metadata, "scoring_func", "noaux_tc").or(only_word(metadata, "scoring_func", "sigmoid"))?;
    only_word(metadata, "topk_method", "noaux_tc")?;
    ignore_multi_token_prediction(metadata);
    let moe = routed_moe(metadata, &routing)?;
    let config = Config { moe: Some(moe), qk_norm: QkNorm::PerHead(Bias::None), ..config };
    sparse_layers(metadata, config, 0)
}
