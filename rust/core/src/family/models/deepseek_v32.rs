//! DeepSeek V3.2 (deepseek_v32), GLM 5 (glm_moe_dsa) and A.X K2 (axk2): DeepSeek V3 with an indexer that chooses the
//! positions a query reads.
//!
//! DeepSeek-AI 2025 (DeepSeek-V3.2). Defaults of absent keys: transformers 5.23, `configuration_deepseek_v32.py`,
//! `configuration_glm_moe_dsa.py` and `configuration_axk2.py`. The rotation does not depend on keys there.

use super::deepseek::{NAMES, config as latent_mixture};
use crate::config::{
    Attention, AttentionGate, Bias, ClosedGroups, Config, ExpertGroups, GateWidth, Moe, NormPlacement,
    QueryLatent, RopeLayout,
};
use crate::family::keys::base::{BiasKey, Defaults, Family, NormKey};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mla::{MlaDefaults, Rotation};
use crate::family::keys::moe::{Routing, only_word};
use crate::mechanisms::indexer::family::keys::{IndexerDefaults, indexer_in_all_layers};
use ropechat_platform::error::Result;

pub(crate) static DEEPSEEK_V32: Family =
    Family { model_types: &["deepseek_v32"], aliases: &[], config: deepseek_v32 };

pub(crate) static GLM_MOE_DSA: Family =
    Family { model_types: &["glm_moe_dsa"], aliases: &[], config: glm_moe_dsa };

pub(crate) static AXK2: Family = Family { model_types: &["axk2"], aliases: &[], config: axk2 };

const MLA: MlaDefaults =
    MlaDefaults { rotation: Rotation::Fixed(RopeLayout::Interleaved), ..MlaDefaults::DEEPSEEK };

const ROUTING: Routing = Routing { scaling: ("routed_scaling_factor", 2.5), ..Routing::DEEPSEEK };

/// What absent keys mean; no MLP has a bias, regardless of `mlp_bias`.
const DEFAULTS: Defaults =
    Defaults { names: NAMES, mlp_bias: BiasKey::Absent(Bias::None), ..Defaults::LLAMA };

/// The original's words for what is computed here.
fn check_words(metadata: &Metadata<'_>) -> Result<()> {
    metadata.get("mlp_bias");
    only_word(metadata, "topk_method", "noaux_tc")?;
    only_word(metadata, "scoring_func", "sigmoid")?;
    only_true(metadata, "rope_interleave")
}

fn only_true(metadata: &Metadata<'_>, key: &str) -> Result<()> {
    match metadata.flag_or(key, true)? {
        true => Ok(()),
        false => Err(metadata.unsupported(key, "must be true (got false)")),
    }
}

fn deepseek_v32(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults { max_position_embeddings: 163_840, ..DEFAULTS };
    let routing = Routing { groups: Some((8, 4)), ..ROUTING };
    check_words(metadata)?;
    let config = latent_mixture(metadata, &defaults, &MLA, &routing, 3)?;
    indexer_in_all_layers(metadata, config, &IndexerDefaults::DEEPSEEK, |_| false)
}

fn glm_moe_dsa(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults =
        Defaults { max_position_embeddings: 202_752, norm: NormKey::Rms("rms_norm_eps", 1e-5), ..DEFAULTS };
    let mla = MlaDefaults { q_lora_rank: Some(2048), qk_nope_head_dim: 192, v_head_dim: Some(256), ..MLA };
    check_words(metadata)?;
    only_true(metadata, "indexer_rope_interleave")?;
    let config = latent_mixture(metadata, &defaults, &mla, &ROUTING, 3)?;
    let indexing =
        IndexerDefaults { index_n_heads: 32, layout: RopeLayout::Interleaved, ..IndexerDefaults::DEEPSEEK };
    indexer_in_all_layers(metadata, config, &indexing, |_| false)
}

/// Queries are computed from their latent before and after its norm, and a gate of attention's output with them; some
/// norms have a gate too.
fn axk2(metadata: &Metadata<'_>) -> Result<Config> {
    check_words(metadata)?;
    let defaults = Defaults { max_position_embeddings: 131_072, ..DEFAULTS };
    let mla = MlaDefaults {
        q_lora_rank: Some(384),
        kv_lora_rank: 128,
        qk_nope_head_dim: 64,
        qk_rope_head_dim: 32,
        v_head_dim: Some(64),
        ..MLA
    };
    let mut config = latent_mixture(metadata, &defaults, &mla, &ROUTING, 1)?;
    if let Attention::Mla { q_latent, .. } = &mut config.attention {
        *q_latent = QueryLatent::NormedAndRaw;
    }
    if let Some(Moe { groups: ExpertGroups::Limited { closed, .. }, .. }) = &mut config.moe {
        *closed = ClosedGroups::ScoreZero;
    }
    let gated_norm_rank = metadata.integer_if_any("gated_norm_rank", 1..=1 << 16)?.unwrap_or(16);
    let config = Config {
        attention_gate: AttentionGate::Sigmoid(GateWidth::PerChannel),
        norm_placement: NormPlacement::BeforeGated { gated_norm_rank },
        ..config
    };
    let indexing = IndexerDefaults { index_n_heads: 16, ..IndexerDefaults::DEEPSEEK };
    indexer_in_all_layers(metadata, config, &indexing, |_| false)
}
