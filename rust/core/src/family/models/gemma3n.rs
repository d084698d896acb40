//! Gemma 3n, text: several residual streams (AltUp) with a low-rank branch (LAuReL), a second embedding of which each layer
//! has a part, keys and values that layers share, gates of which most are cut to zero.
//!
//! Gemma Team 2025 (Gemma 3n). Defaults of absent keys: transformers 5.23, `configuration_gemma3n.py`. Norm weights are
//! stored as they are; scores have no factor.

use super::gemma::SANDWICH;
use super::gemma3::layer_ropes;
use super::gemma4::{per_layer_embedding, share_keys_and_values};
use crate::config::{Bias, Config, Mechanisms, NormPlacement, QkNorm, ValueNorm};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::windows::{layer_numbers, window, with_ropes, with_windows};
use crate::mechanisms::alt_up::config::{AltUp, AltUpNames};
use ropechat_platform::error::Result;

pub(crate) static GEMMA3N_TEXT: Family = Family { model_types: &["gemma3n_text"], aliases: &[], config };

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    const WIDTHS: &str = "intermediate_size";
    // One width for all layers, or a list.
    let listed = metadata.get(WIDTHS).is_some_and(serde_json::Value::is_array);
    let widths = if listed { layer_numbers(metadata, WIDTHS)? } else { Vec::new() };
    let defaults = Defaults {
        num_attention_heads: Some(8),
        num_key_value_heads: KvHeads::Usually(2),
        head_dim: HeadDim::Usually(256),
        max_position_embeddings: 32_768,
        intermediate_size: Some(16_384),
        mlp_bias: BiasKey::Absent(Bias::None),
        rope: None,
        ..SANDWICH
    };
    let mut config = base(metadata, &defaults)?;
    let layers = config.layers.len();
    let of_layers = |key: &str, count: usize| {
        metadata.bad(key, &format!("must have one entry per layer, {layers} (got {count})"))
    };
    if listed {
        if widths.len() != layers || widths.iter().any(|width| !(1..=1 << 24).contains(width)) {
            return Err(of_layers(WIDTHS, widths.len()));
        }
        config.intermediate_size = widths.iter().copied().max().unwrap_or_default();
        for (layer, &width) in config.layers.iter_mut().zip(&widths) {
            layer.intermediate_size = Some(width);
        }
    }
    let window = window(metadata, Some(512))?;
    let config = with_windows(metadata, config, window, |layer| !(layer + 1).is_multiple_of(5))?;
    let ropes = layer_ropes(metadata, &config)?;
    let mut config = with_ropes(config, ropes);

    let shared = metadata.integer_if_any("num_kv_shared_layers", 0..=1 << 16)?.unwrap_or(15);
    share_keys_and_values(metadata, &mut config, shared)?;
    const SPARSITY: &str = "activation_sparsity_pattern";
    let shares = match metadata.get(SPARSITY) {
        Some(value) if value.is_number() => vec![metadata.number(SPARSITY, 0.0..=0.9999999)?; layers],
        Some(_) => metadata.numbers_if_any(SPARSITY, 0.0..=0.9999999)?.unwrap_or_default(),
        None if layers > 10 => (0..layers).map(|layer| if layer < 10 { 0.95 } else { 0.0 }).collect(),
        None => vec![0.0; layers],
    };
    if shares.len() != layers {
        return Err(of_layers(SPARSITY, shares.len()));
    }
    for (layer, &share) in config.layers.iter_mut().zip(&shares) {
        layer.gate_cutoff = (share > 0.0).then(|| normal_quantile(share) as f32);
    }

    let number = |key: &str, least: u64, default: usize| -> Result<usize> {
        Ok(metadata.integer_if_any(key, least..=1 << 12)?.unwrap_or(default))
    };
    let alt_up = AltUp {
        altup_num_inputs: number("altup_num_inputs", 1, 4)?,
        altup_active_idx: number("altup_active_idx", 0, 0)?,
        altup_correct_scale: metadata.flag_or("altup_correct_scale", true)?,
        laurel_rank: number("laurel_rank", 1, 64)?,
        names: AltUpNames::HUB,
    };
    if alt_up.altup_active_idx >= alt_up.altup_num_inputs {
        return Err(metadata.bad("altup_active_idx", "must be less than altup_num_inputs"));
    }
    metadata.get("altup_coef_clip"); // of training
    const CAP: &str = "final_logit_softcapping";
    let cap = metadata.number_if_any(CAP, 1e-3..=1e6)?.or(if metadata.has(CAP) { None } else { Some(30.0) });
    Ok(Config {
        embedding_multiplier: (config.hidden_size as f32).sqrt(),
        norm_placement: NormPlacement::Around,
        attention_multiplier: 1.0,
        qk_norm: QkNorm::PerHead(Bias::None),
        value_norm: ValueNorm::PerHead,
        per_layer_embedding: per_layer_embedding(metadata, 256)?,
        mechanisms: Mechanisms { alt_up: Some(alt_up), ..config.mechanisms },
        final_logit_softcapping: cap.map(|cap| cap as f32),
        ..config
    })
}

/// The number that a standard normal variable exceeds with probability 1 - `share`, by bisection.
fn normal_quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-9.0f64, 9.0f64);
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        if normal_cdf(middle) < share { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// The standard normal distribution: 1/2 plus the density times the series x + x^3/3 + x^5/(3 5) + ...
fn normal_cdf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..300 {
        term *= x * x / f64::from(2 * n + 1);
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}

#[cfg(test)]
mod tests {
    use super::normal_quantile;

    #[test]
    fn quantiles_of_the_normal_distribution() {
        for (share, expected) in
            [(0.5, 0.0), (0.95, 1.6448536269514722), (0.9, 1.2815515655446004), (0.1, -1.2815515655446004)]
        {
            assert!((normal_quantile(share) - expected).abs() < 1e-12, "{share}");
        }
    }
}
