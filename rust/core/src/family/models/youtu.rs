//! Youtu-LLM, MiniCPM 3 and A.X K1: latent attention; the first two without experts.
//!
//! Tencent 2025 (Youtu-LLM), OpenBMB 2024 (MiniCPM 3: rotation by halves, four multipliers), SK Telecom 2026 (A.X K1: a
//! norm after mixtures). Defaults of absent keys: transformers 5.23, `configuration_youtu.py`,
//! `configuration_minicpm3.py`, `configuration_axk1.py`.

use super::deepseek::{NAMES, config as latent_mixture};
use crate::config::{Config, LmHead, Names, NormPlacement, RopeLayout, tensor};
use crate::family::keys::base::{Defaults, Family, NormKey};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mla::{MlaDefaults, Rotation, latent};
use crate::family::keys::moe::Routing;
use ropechat_platform::error::Result;

pub(crate) static YOUTU: Family = Family {
    model_types: &["youtu"],
    aliases: &[],
    config: |metadata| {
        let defaults =
            Defaults { max_position_embeddings: 131_072, lm_head: LmHead::Tied, ..Defaults::LLAMA };
        metadata.get("embedding_initializer_range");
        metadata.get("head_dim");
        latent(metadata, &defaults, &MlaDefaults::DEEPSEEK)
    },
};

pub(crate) static MINICPM3: Family = Family { model_types: &["minicpm3"], aliases: &[], config: minicpm3 };

pub(crate) static AXK1: Family = Family {
    model_types: &["axk1"],
    aliases: &[],
    config: |metadata| {
        let defaults = Defaults {
            names: Names { mlp_out_norm: tensor!("post_mlp_layernorm"), ..NAMES },
            max_position_embeddings: 32_768,
            ..Defaults::LLAMA
        };
        let routing =
            Routing { groups: Some((8, 4)), scaling: ("routed_scaling_factor", 2.5), ..Routing::DEEPSEEK };
        let config = latent_mixture(metadata, &defaults, &MlaDefaults::DEEPSEEK, &routing, 1)?;
        Ok(Config { norm_placement: NormPlacement::BeforeAndAfterMoe, ..config })
    },
};

fn minicpm3(metadata: &Metadata<'_>) -> Result<Config> {
    let defaults = Defaults {
        max_position_embeddings: 32_768,
        norm: NormKey::Rms("rms_norm_eps", 1e-5),
        lm_head: LmHead::Tied,
        ..Defaults::LLAMA
    };
    let mla = MlaDefaults {
        q_lora_rank: Some(768),
        kv_lora_rank: 256,
        qk_nope_head_dim: 64,
        qk_rope_head_dim: 32,
        v_head_dim: None,
        rotation: Rotation::Fixed(RopeLayout::Neox),
        ..MlaDefaults::DEEPSEEK
    };
    let config = latent(metadata, &defaults, &mla)?;
    let layers = config.layers.len() as f64;
    let multiplier = |key: &str, default: f64, of_null: f64| -> Result<f64> {
        let stated = metadata.number_if_any(key, 1e-6..=1e9)?;
        Ok(stated.unwrap_or(if metadata.has(key) { of_null } else { default }))
    };
    let depth = multiplier("scale_depth", 1.4, layers.sqrt())?;
    let width = multiplier("dim_model_base", 256.0, config.hidden_size as f64)?;
    metadata.get("head_dim");
    Ok(Config {
        embedding_multiplier: multiplier("scale_emb", 12.0, 1.0)? as f32,
        residual_multiplier: (depth / layers.sqrt()) as f32,
        logit_scale: (width / config.hidden_size as f64) as f32,
        ..config
    })
}
