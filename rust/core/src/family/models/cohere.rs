//! Command R (cohere) and Command R7B, A (cohere2): attention and MLP in parallel behind one LayerNorm without bias,
//! interleaved rotation, scaled logits.
//!
//! Cohere 2024, 2025 (Command A). Cohere 2 has a window in three layers of four, and rotates only there. Defaults of
//! absent keys: transformers 5.23, `configuration_cohere.py` (base 500000) and `configuration_cohere2.py`.

use super::deepseek;
use crate::config::{
    Bias, Config, LayerMlp, LayerRope, LmHead, Mask, Moe, Names, Normalization, QkNorm, Residual, RopeLayout,
    Scoring, SharedExpert, tensor,
};
use crate::family::keys::base::{
    BiasKey, Defaults, Family, HeadDim, NormKey, RopeDefaults, WindowKeys, base,
};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::moe::{experts_per_token, only_word, sparse_layers};
use crate::family::keys::rope::{Partial, RopeFacts, ropes_by_kind};
use crate::family::keys::windows::{pattern, rotate_in_windows, window, with_ropes, with_windows};
use ropechat_platform::error::Result;

pub(crate) static COHERE: Family = Family { model_types: &["cohere"], aliases: &[], config: cohere };

pub(crate) static COHERE2: Family = Family { model_types: &["cohere2"], aliases: &[], config: cohere2 };

pub(crate) static COHERE2_MOE: Family =
    Family { model_types: &["cohere2_moe"], aliases: &[], config: cohere2_moe };

pub(crate) static COHERE_COMPASS_TEXT: Family =
    Family { model_types: &["cohere_compass_text"], aliases: &[], config: compass };

const DEFAULTS: Defaults = Defaults {
    names: Names { mlp_norm: tensor!("input_layernorm"), ..Names::LLAMA },
    head_dim: HeadDim::FreeQuotient,
    max_position_embeddings: 8192,
    norm: NormKey::Layer("layer_norm_eps", 1e-5),
    lm_head: LmHead::Tied,
    rope: Some(RopeDefaults { theta: 500_000.0, layout: RopeLayout::Interleaved, ..RopeDefaults::WHOLE }),
    ..Defaults::LLAMA
};

fn common(metadata: &Metadata<'_>, defaults: &Defaults) -> Result<Config> {
    Ok(Config {
        residual: Residual::Parallel,
        norm_bias: Bias::None,
        logit_scale: metadata.number_or("logit_scale", 1e-9..=1e9, 0.0625)? as f32,
        ..base(metadata, defaults)?
    })
}

fn cohere(metadata: &Metadata<'_>) -> Result<Config> {
    let normed = metadata.flag_or("use_qk_norm", false)?;
    let qk_norm = if normed { QkNorm::PerHeadOwn } else { QkNorm::None };
    Ok(Config { qk_norm, ..common(metadata, &DEFAULTS)? })
}

fn cohere2(metadata: &Metadata<'_>) -> Result<Config> {
    let rope = RopeDefaults { layout: RopeLayout::Interleaved, ..RopeDefaults::WHOLE };
    let defaults = Defaults { rope: Some(rope), windows: WindowKeys::OfFamily, ..DEFAULTS };
    let config = common(metadata, &defaults)?;
    let every = pattern(metadata, 4)?;
    let window = window(metadata, Some(4096))?;
    let mut config = with_windows(metadata, config, window, |layer| !(layer + 1).is_multiple_of(every))?;
    for layer in &mut config.layers {
        layer.rope = if layer.mask == Mask::Causal { LayerRope::None } else { LayerRope::Rotary(0) };
    }
    // Words of the original code for what is computed here; other words are refused.
    for (key, word) in
        [("order_of_interleaved_layers", "local_attn_first"), ("position_embedding_type", "rope_gptj")]
    {
        if metadata.text_if_any(key)?.is_some_and(|stated| stated != word) {
            return Err(metadata.unsupported(key, &format!("must be \"{word}\"")));
        }
    }
    metadata.number_if_any("rotary_pct", 1.0..=1.0)?;
    metadata.flag_or("use_embedding_sharing", true)?;
    Ok(config)
}

fn cohere2_moe(metadata: &Metadata<'_>) -> Result<Config> {
    const RMS: &str = "rms_norm_eps";
    let rms = metadata.get(RMS).is_some();
    let dense_width = metadata.integer_if_any("prefix_dense_intermediate_size", 1..=1 << 24)?;
    let defaults = Defaults {
        names: Names { mlp_norm: tensor!("input_layernorm"), ..deepseek::NAMES },
        head_dim: HeadDim::Usually(128),
        norm: if rms { NormKey::Rms(RMS, 1e-5) } else { NormKey::Layer("layer_norm_eps", 1e-5) },
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: Some(RopeDefaults { layout: RopeLayout::Interleaved, ..RopeDefaults::WHOLE }),
        windows: WindowKeys::OfFamily,
        ..DEFAULTS
    };
    let config = common(metadata, &defaults)?;
    if rms {
        metadata.number_if_any("layer_norm_eps", 0.0..=1.0)?;
    }
    let number = |key: &str, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 0..=1 << 16)?.unwrap_or(default))
    };
    let prefix = number("first_k_dense_replace", 0)?;
    let (every, every_in_prefix) =
        (pattern(metadata, 4)?, number("prefix_dense_sliding_window_pattern", 1)?.max(1));
    let window = window(metadata, Some(4096))?;
    let slides = |layer: usize| match layer.checked_sub(prefix) {
        None => !(layer + 1).is_multiple_of(every_in_prefix),
        Some(layer) => !(layer + 1).is_multiple_of(every),
    };
    let config = with_windows(metadata, config, window, slides)?;
    let num_experts = metadata.integer("num_experts", 1..=1 << 16)?;
    let per_token = experts_per_token(metadata, "num_experts_per_tok", num_experts, Some(2))?;
    let normalized = metadata.flag_or("norm_topk_prob", true)?;
    let (scoring, normalization) = match metadata.text_if_any("expert_selection_fn")? {
        None | Some("softmax") => (Scoring::Softmax, Normalization::SUM),
        Some("sigmoid") => (Scoring::Sigmoid, Normalization::sum_if(normalized)),
        Some(_) => {
            return Err(metadata.unsupported("expert_selection_fn", "must be \"softmax\" or \"sigmoid\""));
        }
    };
    let shared = number("num_shared_experts", 0)?;
    const COMBINED: &str = "shared_expert_combination_strategy";
    let averaged = match metadata.text_if_any(COMBINED)? {
        None | Some("average") => shared > 0,
        _ => only_word(metadata, COMBINED, "sum").map(|()| false)?,
    };
    let width = config.intermediate_size;
    let moe = Moe {
        scoring,
        normalization,
        shared: match shared {
            0 => SharedExpert::None,
            count => SharedExpert::Added { intermediate_size: count * width },
        },
        output_factor: if averaged { 0.5 } else { 1.0 },
        ..Moe::plain(num_experts, per_token, width)
    };
    let config = Config { moe: Some(moe), intermediate_size: dense_width.unwrap_or(width), ..config };
    let mut config = sparse_layers(metadata, rotate_in_windows(config), prefix)?;
    // Dense layers rotate if their own pattern has no window in any layer.
    let forced = every_in_prefix == 1;
    for layer in config.layers.iter_mut().filter(|layer| forced && layer.mlp == LayerMlp::Dense) {
        layer.rope = LayerRope::Rotary(0);
    }
    Ok(config)
}

fn compass(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults =
        Defaults { rope: None, head_dim: HeadDim::FreeQuotient, windows: WindowKeys::OfFamily, ..DEFAULTS };
    let bases = &["model.", "model.language_model.", "language_model.model."];
    let defaults = Defaults { names: Names { bases, ..defaults.names }, ..defaults };
    let config = Config {
        residual: Residual::Parallel,
        norm_bias: Bias::None,
        logit_scale: metadata.number_if_any("logit_scale", 1e-9..=1e9)?.unwrap_or(1.0) as f32,
        ..base(metadata, &defaults)?
    };
    let window = window(metadata, Some(4096))?;
    let config = with_windows(metadata, config, window, |_| false)?;
    let facts = RopeFacts {
        theta: 10_000.0,
        head_dim: config.head_dim,
        partial: Partial::Whole,
        layout: RopeLayout::Neox,
        max_position_embeddings: config.max_position_embeddings,
        own_keys: &["mrope_section", "mrope_interleaved"], // of pictures: a text has one position per token
    };
    metadata.get("pooling");
    let ropes =
        ropes_by_kind(metadata, ["full_attention", "sliding_attention"], ["rope_theta"; 2], [facts; 2])?;
    Ok(with_ropes(config, ropes))
}
