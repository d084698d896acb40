//! DeepSeek V2 and V3: latent attention, and a mixture of experts with groups and shared experts above the first layers.
//!
//! DeepSeek-AI 2024 (DeepSeek-V2, DeepSeek-V3). Defaults of absent keys: transformers 5.23, `configuration_deepseek_v2.py`
//! and `configuration_deepseek_v3.py`; the latents' norms have the epsilon 1e-6 whatever the file says
//! (`modeling_deepseek_v2.py`), and V2 never normalizes the experts' weights (`norm_topk_prob` is not read there).

use crate::config::{
    Attention, Bias, Config, ExpertGroups, LayerMlp, Moe, MoeNames, Names, Norm, RopeLayout, Scoring,
    SharedExpert, tensor,
};
use crate::error::Result;
use crate::family::keys::base::{Defaults, Family, HeadDim, KvHeads, RopeDefaults, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::experts_per_token;
use crate::family::keys::rope::{Partial, rope_object};

pub(crate) static DEEPSEEK_V2: Family = Family { model_types: &["deepseek_v2"], aliases: &[], config: v2 };

pub(crate) static DEEPSEEK_V3: Family = Family { model_types: &["deepseek_v3"], aliases: &[], config: v3 };

const NAMES: Names = Names {
    moe: MoeNames::Each {
        router: tensor!("mlp.gate"),
        experts: "mlp.experts",
        parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
        shared: "mlp.shared_experts",
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
    let facts = Facts {
        max_position_embeddings: 2048,
        scoring: Scoring::Softmax,
        per_token: None,
        groups: if limited { Groups::Stated } else { Groups::Ignored },
        group_top_k: 1,
        scaling: 1.0,
        first_dense: 0,
        interleaved: true,
    };
    config(metadata, &facts)
}

fn v3(metadata: &Metadata<'_>) -> Result<Config> {
    for (key, word) in [("topk_method", "noaux_tc"), ("scoring_func", "sigmoid")] {
        if metadata.text_if_any(key)?.is_some_and(|stated| stated != word) {
            return Err(wrong_word(metadata, key, word));
        }
    }
    // The layer that predicts a second token is left out.
    for key in ["num_nextn_predict_layers", "num_mtp_layers", "ep_size", "aux_loss_alpha", "seq_aux"] {
        metadata.get(key);
    }
    let normalized = metadata.flag_or("norm_topk_prob", true)?;
    let facts = Facts {
        max_position_embeddings: 4096,
        scoring: if normalized { Scoring::SigmoidNormalized } else { Scoring::Sigmoid },
        per_token: Some(8),
        groups: Groups::Usually(8, 4),
        group_top_k: 2,
        scaling: 2.5,
        first_dense: 3,
        interleaved: metadata.flag_or("rope_interleave", true)?,
    };
    config(metadata, &facts)
}

/// The defaults in which V2 and V3 differ.
struct Facts {
    max_position_embeddings: usize,
    scoring: Scoring,
    per_token: Option<usize>,
    groups: Groups,
    group_top_k: usize,
    scaling: f64,
    first_dense: usize,
    interleaved: bool,
}

/// `n_group` and `topk_group`.
enum Groups {
    Ignored,
    Stated,
    Usually(usize, usize),
}

fn config(metadata: &Metadata<'_>, facts: &Facts) -> Result<Config> {
    let width = |key: &str, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=1 << 16)?.unwrap_or(default))
    };
    let (nope, rope) = (width("qk_nope_head_dim", 128)?, width("qk_rope_head_dim", 64)?);
    let layout = if facts.interleaved { RopeLayout::Interleaved } else { RopeLayout::Neox };
    let defaults = Defaults {
        names: NAMES,
        num_key_value_heads: KvHeads::AsQueries,
        head_dim: HeadDim::Always(nope + rope),
        max_position_embeddings: facts.max_position_embeddings,
        rope: Some(RopeDefaults { partial: Partial::Dimensions(rope), layout, ..RopeDefaults::WHOLE }),
        ..Defaults::LLAMA
    };
    let base = base(metadata, &defaults)?;
    if base.num_key_value_heads != base.num_attention_heads {
        return Err(metadata.bad("num_key_value_heads", "latent attention has as many as query heads"));
    }
    let q_lora_rank = metadata.integer_if_any("q_lora_rank", 1..=1 << 16)?;
    let q_lora_rank = if metadata.has("q_lora_rank") { q_lora_rank } else { Some(1536) };
    if q_lora_rank.is_none() && base.attention_bias == Bias::Added {
        let what = "must be false without q_lora_rank (got true)";
        return Err(metadata.unsupported("attention_bias", what));
    }
    if metadata.integer_if_any("qk_head_dim", 1..=1 << 17)?.is_some_and(|width| width != nope + rope) {
        return Err(
            metadata.bad("qk_head_dim", "it is not qk_nope_head_dim + qk_rope_head_dim; they must agree")
        );
    }
    let attention = Attention::Mla {
        q_lora_rank,
        kv_lora_rank: width("kv_lora_rank", 512)?,
        qk_rope_head_dim: rope,
        norm: Norm::RmsNorm { eps: 1e-6 },
    };
    let attention_multiplier = base.attention_multiplier * score_scale(metadata)?;
    let v_head_dim = width("v_head_dim", 128)?;
    let mut config =
        Config { attention, attention_multiplier, v_head_dim, moe: Some(moe(metadata, facts)?), ..base };
    let dense = metadata.integer_if_any("first_k_dense_replace", 0..=1 << 16)?.unwrap_or(facts.first_dense);
    if metadata.integer_if_any("moe_layer_freq", 1..=1 << 16)?.is_some_and(|step| step != 1) {
        return Err(wrong_word(metadata, "moe_layer_freq", "1"));
    }
    config.layers.iter_mut().skip(dense).for_each(|layer| layer.mlp = LayerMlp::Moe);
    Ok(config)
}

fn moe(metadata: &Metadata<'_>, facts: &Facts) -> Result<Moe> {
    let num_experts = metadata.integer("n_routed_experts", 1..=1 << 16)?;
    let intermediate_size = metadata.integer("moe_intermediate_size", 1..=1 << 24)?;
    let stated = |key: &str| metadata.integer_if_any(key, 1..=1 << 16);
    let groups = match (&facts.groups, stated("n_group")?, stated("topk_group")?) {
        (Groups::Ignored, ..) => ExpertGroups::None,
        (Groups::Stated, None, _) | (Groups::Stated, _, None) => {
            return Err(metadata.bad("n_group", "group_limited_greedy needs n_group and topk_group"));
        }
        (Groups::Stated, Some(n_group), Some(topk_group)) => limited(n_group, topk_group, facts),
        (Groups::Usually(groups, best), n_group, topk_group) => {
            limited(n_group.unwrap_or(*groups), topk_group.unwrap_or(*best), facts)
        }
    };
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, facts.per_token)?;
    if let ExpertGroups::Limited { n_group, topk_group, group_top_k } = groups {
        let per_group = num_experts / n_group;
        let fits = num_experts.is_multiple_of(n_group) && topk_group <= n_group && per_group >= group_top_k;
        if !fits || topk_group * per_group < per_token {
            let what = format!(
                "must make whole groups with room for the chosen experts (got {n_group} groups, {topk_group} open, of \
                 {num_experts} experts, {per_token} per token)"
            );
            return Err(metadata.bad("n_group", &what));
        }
    }
    let shared = stated("n_shared_experts")?.unwrap_or(if facts.group_top_k == 1 { 2 } else { 1 });
    Ok(Moe {
        num_experts,
        num_experts_per_tok: per_token,
        intermediate_size,
        scoring: facts.scoring,
        groups,
        scaling: metadata.number_or("routed_scaling_factor", 1e-6..=1e6, facts.scaling)? as f32,
        bias: Bias::None,
        shared: SharedExpert::Added { intermediate_size: intermediate_size * shared },
    })
}

fn limited(n_group: usize, topk_group: usize, facts: &Facts) -> ExpertGroups {
    ExpertGroups::Limited { n_group, topk_group, group_top_k: facts.group_top_k }
}

/// YaRN's temperature, squared: `mscale_all_dim` sharpens scores, also those of the part that does not rotate.
fn score_scale(metadata: &Metadata<'_>) -> Result<f32> {
    let Some(parameters) = rope_object(metadata)? else {
        return Ok(1.0);
    };
    let weight = parameters.number_if_any("mscale_all_dim", 0.0..=1e6)?.unwrap_or(0.0);
    let factor = parameters.number_if_any("factor", 1e-6..=1e9)?.unwrap_or(1.0);
    let temperature = if factor <= 1.0 || weight == 0.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
    Ok((temperature * temperature) as f32)
}

fn wrong_word(metadata: &Metadata<'_>, key: &str, supported: &str) -> crate::error::Error {
    let found = metadata.get(key).map_or_else(String::new, crate::checkpoint::json::describe);
    metadata.unsupported(key, &format!("must be {supported} (got {found})"))
}
