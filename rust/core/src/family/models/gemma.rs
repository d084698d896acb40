//! Gemma 1 and 2, and VaultGemma (Gemma 2 without norms after attention and MLP): norm weights stored minus one, an embedding times sqrt(hidden_size), GELU by its tanh form.
//!
//! Gemma Team 2024. Gemma 2 adds norms after attention and MLP, soft caps on scores and logits, and a window in every
//! second layer. Defaults of absent keys: transformers 5.23, `configuration_gemma.py` (whose `hidden_act: "gelu"` means
//! the tanh form, and which never reads `hidden_activation`) and `configuration_gemma2.py`. The embedding's factor is
//! not rounded to the weights' type, as the originals do in bf16.

use crate::config::{Activation, Config, LmHead, Names, NormPlacement, NormWeight, tensor};
use crate::family::keys::base::{Defaults, Family, HeadDim, KvHeads, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::windows::{window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static GEMMA: Family = Family { model_types: &["gemma"], aliases: &[], config: gemma };

pub(crate) static GEMMA2: Family = Family { model_types: &["gemma2"], aliases: &[], config: gemma2 };

pub(crate) static VAULTGEMMA: Family = Family {
    model_types: &["vaultgemma"],
    aliases: &[],
    config: |metadata| Ok(Config { norm_placement: NormPlacement::Before, ..gemma2(metadata)? }),
};

/// Defaults of all Gemma models.
pub(crate) const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: KvHeads::Usually(16),
    head_dim: HeadDim::Usually(256),
    max_position_embeddings: 8192,
    activation: Activation::GeluTanh,
    lm_head: LmHead::Tied,
    ..Defaults::LLAMA
};

/// Defaults of Gemma 2 and 3.
pub(crate) const SANDWICH: Defaults = Defaults {
    names: Names { mlp_norm: tensor!("pre_feedforward_layernorm"), ..Names::LLAMA },
    num_key_value_heads: KvHeads::Usually(4),
    activation_key: "hidden_activation",
    windows: WindowKeys::OfFamily,
    ..DEFAULTS
};

fn gemma(metadata: &Metadata<'_>) -> Result<Config> {
    metadata.text_if_any("hidden_activation")?;
    let config = base(metadata, &DEFAULTS)?;
    let activation = match config.activation {
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    };
    Ok(Config { activation, ..scaled(config) })
}

fn gemma2(metadata: &Metadata<'_>) -> Result<Config> {
    let config = sandwich(metadata, base(metadata, &SANDWICH)?, Some(50.0), Some(30.0))?;
    let window = window(metadata, Some(4096))?;
    with_windows(metadata, config, window, |layer| layer.is_multiple_of(2))
}

fn scaled(config: Config) -> Config {
    let embedding_multiplier = (config.hidden_size as f32).sqrt();
    Config { embedding_multiplier, norm_weight: NormWeight::MinusOne, ..config }
}

/// Norms around, soft caps (with their defaults), the scale of scores.
pub(crate) fn sandwich(
    metadata: &Metadata<'_>,
    config: Config,
    attention_cap: Option<f64>,
    final_cap: Option<f64>,
) -> Result<Config> {
    let cap = |key: &str, default: Option<f64>| -> Result<Option<f32>> {
        let stated = metadata.number_if_any(key, 1e-3..=1e6)?;
        Ok(if metadata.has(key) { stated } else { default }.map(|cap| cap as f32))
    };
    // Gemma writes the older key too, and some exports only that one.
    metadata.text_if_any("hidden_act")?;
    let scalar = metadata.number_or("query_pre_attn_scalar", 1e-3..=1e6, 256.0)?;
    Ok(Config {
        norm_placement: NormPlacement::Around,
        attention_multiplier: (1.0 / scalar.sqrt()) as f32,
        attn_logit_softcapping: cap("attn_logit_softcapping", attention_cap)?,
        final_logit_softcapping: cap("final_logit_softcapping", final_cap)?,
        ..scaled(config)
    })
}
