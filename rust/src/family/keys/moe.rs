//! Keys that mixtures of experts share.

use super::metadata::Metadata;
use super::windows::layer_numbers;
use crate::config::{Bias, Config, ExpertGroups, LayerMlp, Moe, Scoring, SharedExpert};
use crate::error::Result;

/// The number of experts per token, which must not be more than all of them.
pub(crate) fn experts_per_token(
    metadata: &Metadata<'_>,
    key: &str,
    num_experts: usize,
    default: Option<usize>,
) -> Result<usize> {
    let stated = metadata.integer_if_any(key, 1..=1 << 16)?;
    let Some(chosen) = stated.or(default) else {
        return Err(metadata.bad(key, "it is missing; a number of experts is needed"));
    };
    if chosen > num_experts {
        let what = format!("must be at most {num_experts}, the number of experts (got {chosen})");
        return Err(metadata.bad(key, &what));
    }
    Ok(chosen)
}

/// The mixture of Qwen's configs.
pub(crate) fn qwen_moe(
    metadata: &Metadata<'_>,
    per_token: usize,
    shared: SharedExpert,
    normalized: bool,
) -> Result<Moe> {
    let num_experts = metadata.integer("num_experts", 1..=1 << 16)?;
    let normalized = metadata.flag_or("norm_topk_prob", normalized)?;
    Ok(Moe {
        num_experts,
        num_experts_per_tok: experts_per_token(
            metadata,
            "num_experts_per_tok",
            num_experts,
            Some(per_token),
        )?,
        intermediate_size: metadata.integer("moe_intermediate_size", 1..=1 << 24)?,
        scoring: if normalized { Scoring::SoftmaxOfChosen } else { Scoring::Softmax },
        groups: ExpertGroups::None,
        scaling: 1.0,
        bias: Bias::None,
        shared,
    })
}

/// A mixture in every `decoder_sparse_step`-th layer except those of `mlp_only_layers`.
pub(crate) fn moe_layers(metadata: &Metadata<'_>, mut config: Config) -> Result<Config> {
    let step = metadata.integer_if_any("decoder_sparse_step", 1..=1 << 16)?.unwrap_or(1);
    let dense = layer_numbers(metadata, "mlp_only_layers")?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        if (index + 1).is_multiple_of(step) && !dense.contains(&index) {
            layer.mlp = LayerMlp::Moe;
        }
    }
    Ok(config)
}

/// A mixture in every layer.
pub(crate) fn moe_in_all_layers(mut config: Config, moe: Moe) -> Config {
    config.layers.iter_mut().for_each(|layer| layer.mlp = LayerMlp::Moe);
    Config { moe: Some(moe), ..config }
}
