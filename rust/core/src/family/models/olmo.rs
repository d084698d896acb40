//! OLMo 1 to 3: the first with LayerNorms that have no weights, the others with RMSNorms after attention and MLP, the third
//! with windows in three layers of four; OLMoE and FlexOlmo, mixtures with norms before and after.
//!
//! Groeneveld et al. 2024 (OLMo), OLMo Team 2025 (OLMo 2). Defaults of absent keys: transformers 5.23,
//! `configuration_olmo.py` and `configuration_olmo2.py`; OLMo 1's epsilon, 1e-5, is in `modeling_olmo.py` only.

use crate::config::{
    Bias, Config, Moe, Names, NormPlacement, NormWeight, Normalization, QkNorm, RopeLayout, tensor,
};
use crate::family::keys::base::{
    BiasKey, Defaults, Family, HeadDim, NormKey, RopeDefaults, WindowKeys, base,
};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{experts_per_token, moe_in_all_layers};
use crate::family::keys::rope::{Partial, RopeFacts, rope_object, rope_of, ropes_by_kind};
use crate::family::keys::windows::{window, with_ropes, with_windows};
use ropechat_platform::error::Result;

pub(crate) static OLMO: Family = Family { model_types: &["olmo"], aliases: &[], config: olmo };

pub(crate) static OLMO2: Family = Family { model_types: &["olmo2"], aliases: &[], config: olmo2 };

pub(crate) static OLMO3: Family = Family { model_types: &["olmo3"], aliases: &[], config: olmo3 };

pub(crate) static OLMOE: Family =
    Family { model_types: &["olmoe"], aliases: &[("num_experts", "num_local_experts")], config: olmoe };

pub(crate) static FLEX_OLMO: Family = Family {
    model_types: &["flex_olmo"],
    aliases: &[("num_experts", "num_local_experts")],
    config: flex_olmo,
};

fn olmo(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        head_dim: HeadDim::FreeQuotient,
        norm: NormKey::Layer("layer_norm_eps", 1e-5),
        ..Defaults::LLAMA
    };
    let clip_qkv = metadata.number_if_any("clip_qkv", 1e-6..=1e9)?;
    Ok(Config {
        norm_weight: NormWeight::Absent,
        norm_bias: Bias::None,
        clip_qkv: clip_qkv.map(|limit| limit as f32),
        ..base(metadata, &defaults)?
    })
}

const AFTER: Defaults = Defaults {
    names: Names { attention_out_norm: tensor!("post_attention_layernorm"), ..Names::LLAMA },
    head_dim: HeadDim::FreeQuotient,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    ..Defaults::LLAMA
};

fn olmo2(metadata: &Metadata<'_>) -> Result<Config> {
    let config = base(metadata, &AFTER)?;
    Ok(Config { norm_placement: NormPlacement::After, qk_norm: QkNorm::FullWidth, ..config })
}

fn olmo3(metadata: &Metadata<'_>) -> Result<Config> {
    let config = base(metadata, &Defaults { rope: None, windows: WindowKeys::OfFamily, ..AFTER })?;
    let window = window(metadata, Some(4096))?;
    let config = with_windows(metadata, config, window, |layer| !(layer + 1).is_multiple_of(4))?;
    let facts = RopeFacts {
        theta: 500_000.0,
        head_dim: config.head_dim,
        partial: Partial::Whole,
        layout: RopeLayout::Neox,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &[],
    };
    let kinds = ["full_attention", "sliding_attention"];
    let parameters = rope_object(metadata)?;
    let nested = parameters.as_ref().is_some_and(|parameters| kinds.iter().any(|kind| parameters.has(kind)));
    let ropes = match nested {
        true => ropes_by_kind(metadata, kinds, ["rope_theta"; 2], [facts; 2])?,
        // Older files: the scaling is that of layers without a window.
        false => [
            Some(rope_of(metadata, parameters.as_ref(), "rope_theta", &facts)?),
            Some(rope_of(metadata, None, "rope_theta", &facts)?),
        ],
    };
    let config = with_ropes(config, ropes);
    Ok(Config { norm_placement: NormPlacement::After, qk_norm: QkNorm::FullWidth, ..config })
}

fn olmoe(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        max_position_embeddings: 4096,
        mlp_bias: BiasKey::Absent(Bias::None),
        names: Names::LLAMA,
        ..AFTER
    };
    let clip_qkv = metadata.number_if_any("clip_qkv", 1e-6..=1e9)?;
    let config = Config { clip_qkv: clip_qkv.map(|limit| limit as f32), ..base(metadata, &defaults)? };
    experts(metadata, config, 8)
}

fn flex_olmo(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        max_position_embeddings: 4096,
        norm: NormKey::Rms("rms_norm_eps", 1e-6),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: Some(RopeDefaults { theta: 500_000.0, ..RopeDefaults::WHOLE }),
        ..AFTER
    };
    let config = experts(metadata, base(metadata, &defaults)?, 5)?;
    Ok(Config { norm_placement: NormPlacement::After, ..config })
}

/// A mixture in every layer, and norms over all of q and of k.
fn experts(metadata: &Metadata<'_>, config: Config, per_token: usize) -> Result<Config> {
    let num_experts = metadata.integer("num_experts", 1..=1 << 16)?;
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(per_token))?;
    let normalization = Normalization::sum_if(metadata.flag_or("norm_topk_prob", false)?);
    let moe = Moe { normalization, ..Moe::plain(num_experts, per_token, config.intermediate_size) };
    Ok(moe_in_all_layers(Config { qk_norm: QkNorm::FullWidth, ..config }, moe))
}
