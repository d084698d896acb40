//! Falcon H1: attention and Mamba-2 side by side in every layer, and a multiplier at every place.
//!
//! TII 2025. Defaults of absent keys: transformers 5.23, `configuration_falcon_h1.py`.

use super::bamba::NAMES;
use crate::config::{
    Bias, BranchFactors, Config, GatedOutput, LinearAttention, LinearRule, Mixer, Recurrent, ResidualFactors,
};
use crate::family::keys::base::{Defaults, Family, HeadDim, KvHeads, NormKey, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::mixers::mamba2;
use ropechat_platform::error::Result;

pub(crate) static FALCON_H1: Family = Family { model_types: &["falcon_h1"], aliases: &[], config };

const DEFAULTS: Defaults = Defaults {
    names: NAMES,
    vocab_size: Some(128_000),
    num_attention_heads: Some(32),
    intermediate_size: Some(14_336),
    num_key_value_heads: KvHeads::Usually(8),
    head_dim: HeadDim::FreeQuotient,
    max_position_embeddings: 8192,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let mut config = base(metadata, &DEFAULTS)?;
    let factor = |key: &str| -> Result<f32> { Ok(metadata.number_or(key, 1e-9..=1e9, 1.0)? as f32) };
    let [gate, down] = factors(metadata, "mlp_multipliers")?;
    // The factor of the gate is that of the MLP's input, whose other half the output's factor makes up for.
    let of_branches = [factor("attention_out_multiplier")?, down / gate]
        .map(|branch| ResidualFactors { branch, ..ResidualFactors::ONE });
    for layer in &mut config.layers {
        (layer.mixer, layer.residual_factors) = (Mixer::Both, of_branches);
    }
    let linear = mamba(metadata, &config)?;
    // Older names of what the layers are, and how training begins.
    for key in ["time_step_min", "time_step_max", "time_step_floor", "attn_layer_indices", "mamba_use_mlp"] {
        metadata.get(key);
    }
    Ok(Config {
        embedding_multiplier: factor("embedding_multiplier")?,
        attention_multiplier: config.attention_multiplier * factor("key_multiplier")?,
        attention_input_factor: factor("attention_in_multiplier")?,
        mlp_input_factor: gate,
        recurrent: Some(Recurrent::Linear(linear)),
        recurrent_factors: BranchFactors {
            input: factor("ssm_in_multiplier")?,
            output: factor("ssm_out_multiplier")?,
        },
        logit_scale: factor("lm_head_multiplier")?,
        ..config
    })
}

fn mamba(metadata: &Metadata<'_>, config: &Config) -> Result<LinearAttention> {
    let expand = metadata.integer_if_any("mamba_expand", 1..=256)?.unwrap_or(2);
    let width = match metadata.integer_if_any("mamba_d_ssm", 1..=1 << 22)? {
        Some(width) => width,
        None if metadata.has("mamba_d_ssm") => expand * config.hidden_size,
        None => 1024,
    };
    let eps = config.norm.eps();
    let linear = mamba2(metadata, width, eps)?;
    let group = width / linear.num_key_heads;
    let norm_first = metadata.flag_or("mamba_norm_before_gate", true)?;
    let output = match (metadata.flag_or("mamba_rms_norm", false)?, norm_first) {
        (false, _) => GatedOutput::Gate,
        (true, true) => GatedOutput::NormThenGate { eps, group, shared_weight: false },
        (true, false) => GatedOutput::GateThenNorm { eps, group },
    };
    let rule = match linear.rule {
        LinearRule::Mamba2 { time_step_limit, .. } => {
            LinearRule::Mamba2 { time_step_limit, multipliers: factors(metadata, "ssm_multipliers")? }
        }
        rule => rule,
    };
    let out_bias = if metadata.flag_or("projectors_bias", false)? { Bias::Added } else { Bias::None };
    Ok(LinearAttention { rule, output, out_bias, ..linear })
}

/// N factors; ones when absent.
fn factors<const N: usize>(metadata: &Metadata<'_>, key: &str) -> Result<[f32; N]> {
    let Some(stated) = metadata.numbers_if_any(key, 1e-9..=1e9)? else { return Ok([1.0; N]) };
    let numbers: Vec<f32> = stated.iter().map(|&number| number as f32).collect();
    let count = numbers.len();
    numbers.try_into().map_err(|_| metadata.bad(key, &format!("must be a list of {N} numbers (got {count})")))
}
