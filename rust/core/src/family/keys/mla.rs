//! Keys of multi-head latent attention.

use super::base::{Defaults, HeadDim, RopeDefaults, base};
use super::metadata::Metadata;
use super::rope::{Partial, rope_object};
use crate::config::{Attention, Config, Norm, QueryLatent, RopeLayout};
use ropechat_platform::error::Result;

/// What absent keys mean.
#[derive(Clone, Copy)]
pub(crate) struct MlaDefaults {
    /// `q_lora_rank`; null always means none.
    pub q_lora_rank: Option<usize>,
    pub kv_lora_rank: usize,
    pub qk_nope_head_dim: usize,
    pub qk_rope_head_dim: usize,
    /// None: hidden_size / num_attention_heads.
    pub v_head_dim: Option<usize>,
    pub rotation: Rotation,
    /// Epsilon of the latents' norms; None: that of the other norms.
    pub latent_eps: Option<f32>,
}

/// Which two dimensions make a pair.
#[derive(Clone, Copy)]
pub(crate) enum Rotation {
    /// Keys and queries are not rotated, or the family reads the keys of the rotation itself.
    None,
    Fixed(RopeLayout),
    /// `rope_interleave`, by default true.
    Key,
}

impl MlaDefaults {
    /// DeepSeek V3's.
    pub const DEEPSEEK: MlaDefaults = MlaDefaults {
        q_lora_rank: Some(1536),
        kv_lora_rank: 512,
        qk_nope_head_dim: 128,
        qk_rope_head_dim: 64,
        v_head_dim: Some(128),
        rotation: Rotation::Key,
        latent_eps: Some(1e-6),
    };
}

/// A decoder with latent attention: `defaults` without heads' width and pairs, which `mla` states.
pub(crate) fn latent(metadata: &Metadata<'_>, defaults: &Defaults, mla: &MlaDefaults) -> Result<Config> {
    let width = |key: &str, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, 1..=1 << 16)?.unwrap_or(default))
    };
    let nope = width("qk_nope_head_dim", mla.qk_nope_head_dim)?;
    let rope = width("qk_rope_head_dim", mla.qk_rope_head_dim)?;
    let layout = match mla.rotation {
        Rotation::None => None,
        Rotation::Fixed(layout) => Some(layout),
        Rotation::Key if metadata.flag_or("rope_interleave", true)? => Some(RopeLayout::Interleaved),
        Rotation::Key => Some(RopeLayout::Neox),
    };
    let defaults = Defaults {
        head_dim: HeadDim::Always(nope + rope),
        rope: defaults.rope.zip(layout).map(|(usual, layout)| RopeDefaults {
            partial: Partial::Dimensions(rope),
            layout,
            ..usual
        }),
        ..*defaults
    };
    let base = base(metadata, &defaults)?;
    if base.num_key_value_heads != base.num_attention_heads {
        return Err(metadata.bad("num_key_value_heads", "latent attention has as many as query heads"));
    }
    let q_lora_rank = metadata.integer_if_any("q_lora_rank", 1..=1 << 16)?;
    let q_lora_rank = if metadata.has("q_lora_rank") { q_lora_rank } else { mla.q_lora_rank };
    if metadata.integer_if_any("qk_head_dim", 1..=1 << 17)?.is_some_and(|width| width != nope + rope) {
        return Err(
            metadata.bad("qk_head_dim", "it is not qk_nope_head_dim + qk_rope_head_dim; they must agree")
        );
    }
    let quotient = base.hidden_size / base.num_attention_heads;
    let v_head_dim = metadata.integer_if_any("v_head_dim", 1..=1 << 16)?;
    let v_head_dim = if metadata.has("v_head_dim") { v_head_dim } else { mla.v_head_dim };
    let attention = Attention::Mla {
        q_lora_rank,
        kv_lora_rank: width("kv_lora_rank", mla.kv_lora_rank)?,
        qk_rope_head_dim: rope,
        norm: match mla.latent_eps {
            Some(eps) => Norm::RmsNorm { eps },
            None => base.norm,
        },
        latent_factors: [1.0; 2],
        q_latent: QueryLatent::Normed,
        k_rope_norm: None,
    };
    let attention_multiplier = base.attention_multiplier * score_scale(metadata)?;
    Ok(Config { attention, attention_multiplier, v_head_dim: v_head_dim.unwrap_or(quotient), ..base })
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
