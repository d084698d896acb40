//! Keys that mixtures of experts share.

use super::metadata::Metadata;
use super::windows::layer_numbers;
use crate::checkpoint::escape_for_terminal;
use crate::checkpoint::json::describe;
use crate::config::{
    Bias, ClosedGroups, Config, ExpertGroups, LayerMlp, Moe, Normalization, Scoring, SharedExpert,
};
use ropechat_platform::error::Result;

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
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(per_token))?;
    let width = metadata.integer("moe_intermediate_size", 1..=1 << 24)?;
    let normalization = Normalization::sum_if(normalized);
    Ok(Moe { normalization, shared, ..Moe::plain(num_experts, per_token, width) })
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

/// Routing as in DeepSeek V3: a sigmoid, a bias for the choice, groups, weights that are normalized and scaled, shared
/// experts. Keys, and what they mean when absent.
#[derive(Clone, Copy)]
pub(crate) struct Routing {
    /// The number of experts.
    pub experts: &'static str,
    /// Experts per token.
    pub per_token: Option<usize>,
    pub scoring: Scoring,
    pub correction_bias: Bias,
    /// `n_group`, `topk_group`.
    pub groups: Option<(usize, usize)>,
    /// A group's score is the sum of so many of its experts' scores.
    pub group_top_k: usize,
    /// `norm_topk_prob`.
    pub normalized: bool,
    pub scaling: (&'static str, f64),
    /// The number of shared experts, each as wide as the others.
    pub shared: Option<(&'static str, usize)>,
}

impl Routing {
    /// DeepSeek V3's names, and what most others mean by absent keys.
    pub const DEEPSEEK: Routing = Routing {
        experts: "n_routed_experts",
        per_token: Some(8),
        scoring: Scoring::Sigmoid,
        correction_bias: Bias::Added,
        groups: Some((1, 1)),
        group_top_k: 2,
        normalized: true,
        scaling: ("routed_scaling_factor", 1.0),
        shared: Some(("n_shared_experts", 1)),
    };
}

/// The mixture of [`Routing`]'s keys.
pub(crate) fn routed_moe(metadata: &Metadata<'_>, routing: &Routing) -> Result<Moe> {
    let num_experts = metadata.integer(routing.experts, 1..=1 << 16)?;
    let intermediate_size = metadata.integer("moe_intermediate_size", 1..=1 << 24)?;
    let stated = |key: &str| metadata.integer_if_any(key, 1..=1 << 16);
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, routing.per_token)?;
    let groups = match routing.groups {
        None => ExpertGroups::None,
        Some((n_group, topk_group)) => {
            let n_group = stated("n_group")?.unwrap_or(n_group);
            let topk_group = stated("topk_group")?.unwrap_or(topk_group);
            limited_groups(metadata, [n_group, topk_group, routing.group_top_k], num_experts, per_token)?
        }
    };
    let shared = match routing.shared {
        None => None,
        Some((key, default)) => Some(metadata.integer_if_any(key, 0..=1 << 16)?.unwrap_or(default)),
    };
    Ok(Moe {
        scoring: routing.scoring,
        correction_bias: routing.correction_bias,
        normalization: Normalization::sum_if(metadata.flag_or("norm_topk_prob", routing.normalized)?),
        groups,
        scaling: metadata.number_or(routing.scaling.0, 1e-6..=1e6, routing.scaling.1)? as f32,
        shared: match shared {
            None | Some(0) => SharedExpert::None,
            Some(shared) => SharedExpert::Added { intermediate_size: intermediate_size * shared },
        },
        ..Moe::plain(num_experts, per_token, intermediate_size)
    })
}

/// [number of groups, groups that are open, experts that make a group's score], which must leave room for the chosen.
pub(crate) fn limited_groups(
    metadata: &Metadata<'_>,
    [n_group, topk_group, group_top_k]: [usize; 3],
    num_experts: usize,
    per_token: usize,
) -> Result<ExpertGroups> {
    if n_group == 1 {
        return Ok(ExpertGroups::None); // it is open
    }
    let per_group = num_experts / n_group;
    let fits = num_experts.is_multiple_of(n_group) && topk_group <= n_group && per_group >= group_top_k;
    if !fits || topk_group * per_group < per_token {
        let what = format!(
            "must make whole groups with room for the chosen experts (got {n_group} groups, {topk_group} open, of \
             {num_experts} experts, {per_token} per token)"
        );
        return Err(metadata.bad("n_group", &what));
    }
    Ok(ExpertGroups::Limited { n_group, topk_group, group_top_k, closed: ClosedGroups::Excluded })
}

/// A mixture in the layers that `mlp_layer_types` calls sparse, or else in those from `first_k_dense_replace` on, of which
/// every `moe_layer_freq`-th has one, or those that its list does not give as 0.
pub(crate) fn sparse_layers(metadata: &Metadata<'_>, mut config: Config, first: usize) -> Result<Config> {
    const FREQUENCY: &str = "moe_layer_freq";
    let first = metadata.integer_if_any("first_k_dense_replace", 0..=1 << 16)?.unwrap_or(first);
    let listed = match metadata.get(FREQUENCY).is_some_and(serde_json::Value::is_array) {
        true => Some(layer_numbers(metadata, FREQUENCY)?),
        false => None,
    };
    let step = match listed {
        Some(_) => 1,
        None => metadata.integer_if_any(FREQUENCY, 1..=1 << 16)?.unwrap_or(1),
    };
    if let Some(listed) = listed.as_ref().filter(|listed| listed.len() != config.layers.len()) {
        let what = format!("must have one number per layer, {} (got {})", config.layers.len(), listed.len());
        return Err(metadata.bad(FREQUENCY, &what));
    }
    let types = metadata.texts_if_any("mlp_layer_types")?;
    if let Some(types) = &types
        && types.len() != config.layers.len()
    {
        let what = format!("must have one entry per layer, {} (got {})", config.layers.len(), types.len());
        return Err(metadata.bad("mlp_layer_types", &what));
    }
    for (index, layer) in config.layers.iter_mut().enumerate() {
        let sparse = match types.as_ref().map(|types| types[index]) {
            None => {
                let is_listed = listed.as_ref().is_none_or(|listed| listed[index] != 0);
                index >= first && index.is_multiple_of(step) && is_listed
            }
            Some("dense") => false,
            Some("sparse") => true,
            Some(other) => {
                let what = format!("must be dense or sparse (got \"{}\")", escape_for_terminal(other));
                return Err(metadata.unsupported("mlp_layer_types", &what));
            }
        };
        layer.mlp = if sparse { LayerMlp::Moe } else { LayerMlp::Dense };
    }
    Ok(config)
}

/// A width, 0 or null for no shared expert.
pub(crate) fn shared_width(metadata: &Metadata<'_>, key: &str, default: usize) -> Result<SharedExpert> {
    Ok(match metadata.integer_if_any(key, 0..=1 << 24)?.unwrap_or(default) {
        0 => SharedExpert::None,
        intermediate_size => SharedExpert::Added { intermediate_size },
    })
}

/// Refuses another word than the only one that is computed.
pub(crate) fn only_word(metadata: &Metadata<'_>, key: &str, word: &str) -> Result<()> {
    match metadata.get(key) {
        Some(value) if value.as_str() != Some(word) => {
            Err(metadata.unsupported(key, &format!("must be \"{word}\" (got {})", describe(value))))
        }
        _ => Ok(()),
    }
}

/// Layers and weights that predict further tokens, and bookkeeping of training: not part of the model.
pub(crate) fn ignore_multi_token_prediction(metadata: &Metadata<'_>) {
    for key in [
        "num_nextn_predict_layers",
        "num_mtp_layers",
        "mtp_layer_types",
        "mtp_mlp_layer_types",
        "mtp_num_hidden_layers",
        "ep_size",
        "aux_loss_alpha",
        "aux_loss_coef",
        "seq_aux",
        "moe_loss_weight",
        "moe_jitter_eps",
        "router_z_loss_coef",
    ] {
        metadata.get(key);
    }
}
