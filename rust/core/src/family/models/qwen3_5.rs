//! Qwen 3 Next and Qwen 3.5: Gated DeltaNet, with gated attention in every fourth layer; dense, and as a mixture of
//! experts.
//!
//! Qwen Team 2025 and 2026; Yang et al. 2024 (Gated DeltaNet). Defaults of absent keys: transformers 5.23,
//! `configuration_qwen3_next.py`, `configuration_qwen3_5.py` and `configuration_qwen3_5_moe.py`. The vision tower of a
//! composite file is not computed.

use crate::config::{
    AttentionGate, Bias, Config, GateWidth, GatedOutput, InProj, LayerMlp, LinearAttention, LinearRule,
    Mixer, MtpNames, Names, NormWeight, QkNorm, Qkv, Recurrent, RecurrentNames, SharedExpert, tensor,
};
use crate::family::keys::base::{Defaults, Family, HeadDim, KvHeads, RopeDefaults, base};
use crate::family::keys::head::lm_head;
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mixers::{delta_net, mixers, with_mixers};
use crate::family::keys::moe::{moe_in_all_layers, moe_layers, qwen_moe};
use crate::family::keys::quantization::scheme;
use crate::family::keys::rope::Partial;
use ropechat_platform::error::Result;

pub(crate) static QWEN3_NEXT: Family = Family { model_types: &["qwen3_next"], aliases: &[], config: next };

pub(crate) static QWEN3_5: Family = Family { model_types: &["qwen3_5_text"], aliases: &[], config: dense };

pub(crate) static QWEN3_5_MOE: Family =
    Family { model_types: &["qwen3_5_moe_text"], aliases: &[], config: mixture };

pub(crate) static QWEN3_5_COMPOSITE: Family =
    Family { model_types: &["qwen3_5", "qwen3_5_moe"], aliases: &[], config: composite };

pub(super) const NAMES: Names = Names {
    bases: &["model.", "model.language_model.", "language_model.model."],
    qkv: Qkv::GatedQueries([
        tensor!("self_attn.q_proj"),
        tensor!("self_attn.k_proj"),
        tensor!("self_attn.v_proj"),
    ]),
    ..Names::LLAMA
};

pub(super) const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    num_attention_heads: Some(16),
    num_key_value_heads: KvHeads::Usually(4),
    head_dim: HeadDim::Usually(256),
    max_position_embeddings: 32_768,
    rope: Some(RopeDefaults {
        partial: Partial::Usually(0.25),
        // Sections of the pairs for the axes of an image: text has the same position on all of them.
        own_keys: &["mrope_section", "mrope_interleaved"],
        ..RopeDefaults::WHOLE
    }),
    ..Defaults::LLAMA
};

/// What all of them share: the mixers of the layers, and gated attention with norms on q and k. `attention`: what
/// `layer_types` calls it.
pub(super) fn hybrid(metadata: &Metadata<'_>, config: Config, attention: &[&str]) -> Result<Config> {
    let every = metadata.integer_if_any("full_attention_interval", 1..=1 << 16)?.unwrap_or(4);
    let layers = config.layers.len();
    let types = mixers(metadata, layers, &["linear_attention"], attention)?.unwrap_or_else(|| {
        let mixer = |layer: usize| {
            if (layer + 1).is_multiple_of(every) { Mixer::Attention } else { Mixer::Recurrent }
        };
        (0..layers).map(mixer).collect()
    });
    let linear = LinearAttention {
        rule: LinearRule::GatedDelta { beta: 1.0 },
        ..delta_net(metadata, [Some(16), Some(32), Some(128), Some(128)])?
    };
    let eps = config.norm.eps();
    let output = GatedOutput::NormThenGate { eps, group: linear.value_dim, shared_weight: true };
    Ok(Config {
        recurrent: Some(Recurrent::Linear(LinearAttention { output, ..linear })),
        norm_weight: NormWeight::MinusOne,
        qk_norm: QkNorm::PerHead(Bias::None),
        attention_gate: AttentionGate::Sigmoid(GateWidth::PerChannel),
        ..with_mixers(config, &types)
    })
}

fn next(metadata: &Metadata<'_>) -> Result<Config> {
    let names = Names {
        recurrent: RecurrentNames {
            in_proj: InProj::ByKeyHead([
                tensor!("linear_attn.in_proj_qkvz"),
                tensor!("linear_attn.in_proj_ba"),
            ]),
            ..NAMES.recurrent
        },
        ..NAMES
    };
    let defaults = Defaults {
        names,
        intermediate_size: Some(5632),
        num_key_value_heads: KvHeads::Usually(2),
        ..DEFAULTS
    };
    let config = hybrid(metadata, base(metadata, &defaults)?, &["full_attention"])?;
    let moe = qwen_moe(metadata, 10, shared_expert(metadata)?, true)?;
    Ok(moe_layers(metadata, Config { moe: Some(moe), ..config })?.with_mtp(MtpNames::OWN_BASE))
}

fn dense(metadata: &Metadata<'_>) -> Result<Config> {
    ignore_other_parts(metadata);
    let config = hybrid(metadata, base(metadata, &DEFAULTS)?, &["full_attention"])?;
    Ok(config.with_mtp(MtpNames::OWN_BASE))
}

fn mixture(metadata: &Metadata<'_>) -> Result<Config> {
    ignore_other_parts(metadata);
    // The dense width is not used: every layer is a mixture.
    let defaults =
        Defaults { num_key_value_heads: KvHeads::Usually(2), intermediate_size: Some(1), ..DEFAULTS };
    let config = hybrid(metadata, base(metadata, &defaults)?, &["full_attention"])?;
    let moe = qwen_moe(metadata, 8, shared_expert(metadata)?, true)?;
    let config = moe_in_all_layers(config, moe);
    debug_assert!(config.layers.iter().all(|layer| layer.mlp == LayerMlp::Moe));
    Ok(config.with_mtp(MtpNames::OWN_BASE))
}

pub(super) fn shared_expert(metadata: &Metadata<'_>) -> Result<SharedExpert> {
    let width = metadata.integer_if_any("shared_expert_intermediate_size", 1..=1 << 24)?;
    Ok(SharedExpert::Gated { intermediate_size: width.unwrap_or(512) })
}

/// Keys that change nothing here. The tensors say whether there is a layer for multi-token prediction.
pub(super) fn ignore_other_parts(metadata: &Metadata<'_>) {
    for key in
        ["mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "attn_output_gate", "mamba_ssm_dtype"]
    {
        metadata.get(key);
    }
}

fn composite(metadata: &Metadata<'_>) -> Result<Config> {
    let is_mixture = metadata.text_if_any("model_type")? == Some("qwen3_5_moe");
    text_part(metadata, if is_mixture { mixture } else { dense })
}

/// A file with a vision tower, whose text model is computed; `text` reads its config.
pub(super) fn text_part(
    metadata: &Metadata<'_>,
    text: impl Fn(&Metadata<'_>) -> Result<Config>,
) -> Result<Config> {
    let Some(inner) = metadata.object_if_any("text_config")? else {
        return Err(metadata.bad("text_config", "it is missing; the text model's config is needed"));
    };
    let model_type = metadata.text_if_any("model_type")?.unwrap_or_default();
    let quantization = scheme(&inner)?;
    let config = text(&inner)?;
    crate::family::keys::known::refuse_unknown(&inner)?;
    for key in [
        "vision_config",
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
        "language_model_only",
    ] {
        metadata.get(key);
    }
    let lm_head = lm_head(metadata, config.lm_head, false)?;
    let eos_token_id = metadata.token_ids("eos_token_id", config.vocab_size)?;
    let bos_token_id = metadata.token_ids("bos_token_id", config.vocab_size)?.first().copied();
    Ok(Config {
        model_type: model_type.to_owned(),
        quantization,
        eos_token_id: if eos_token_id.is_empty() { config.eos_token_id } else { eos_token_id },
        bos_token_id: bos_token_id.or(config.bos_token_id),
        lm_head,
        ..config
    })
}
