//! `layer_types` of hybrids: which layers have attention and which have a recurrent mixer.

use super::base::activation;
use super::metadata::Metadata;
use crate::checkpoint::escape_for_terminal;
use crate::checkpoint::json::describe;
use crate::config::{Activation, Bias, Config, GatedOutput, KeyHeads, LinearAttention, LinearRule, Mixer};
use ropechat_platform::error::Result;

/// The mixer of each layer by `layer_types`, in which families use different words; None where the key is absent.
pub(crate) fn mixers(
    metadata: &Metadata<'_>,
    layers: usize,
    recurrent: &[&str],
    attention: &[&str],
) -> Result<Option<Vec<Mixer>>> {
    let Some(types) = metadata.texts_if_any("layer_types")? else { return Ok(None) };
    if types.len() != layers {
        let what = format!("must have one entry per layer, {layers} (got {})", types.len());
        return Err(metadata.bad("layer_types", &what));
    }
    let mixer = |kind: &&str| match *kind {
        kind if recurrent.contains(&kind) => Ok(Mixer::Recurrent),
        kind if attention.contains(&kind) => Ok(Mixer::Attention),
        other => Err(metadata.unsupported(
            "layer_types",
            &format!(
                "must be {} (got \"{}\")",
                [recurrent, attention].concat().join(" or "),
                escape_for_terminal(other)
            ),
        )),
    };
    types.iter().map(mixer).collect::<Result<Vec<_>>>().map(Some)
}

/// The config with these mixers.
pub(crate) fn with_mixers(mut config: Config, mixers: &[Mixer]) -> Config {
    for (layer, &mixer) in config.layers.iter_mut().zip(mixers) {
        layer.mixer = mixer;
    }
    config
}

/// The sizes of DeltaNet under their usual keys; defaults: key heads, value heads, and the widths of a key and a value.
pub(crate) fn delta_net(metadata: &Metadata<'_>, defaults: [Option<usize>; 4]) -> Result<LinearAttention> {
    let keys = [
        ("linear_num_key_heads", 1 << 16),
        ("linear_num_value_heads", 1 << 16),
        ("linear_key_head_dim", 1 << 13),
        ("linear_value_head_dim", 1 << 13),
    ];
    let mut sizes = [0; 4];
    for ((size, (key, most)), default) in sizes.iter_mut().zip(keys).zip(defaults) {
        let stated = metadata.integer_if_any(key, 1..=most)?;
        *size = match stated.or(default) {
            Some(size) => size,
            None => metadata.integer(key, 1..=most)?,
        };
    }
    let [num_key_heads, num_value_heads, key_dim, value_dim] = sizes;
    if !num_value_heads.is_multiple_of(num_key_heads) {
        let what =
            format!("must be a multiple of linear_num_key_heads, {num_key_heads} (got {num_value_heads})");
        return Err(metadata.bad("linear_num_value_heads", &what));
    }
    Ok(LinearAttention {
        rule: LinearRule::GatedDelta { beta: 1.0 },
        num_key_heads,
        num_value_heads,
        key_heads: KeyHeads::Grouped,
        key_dim,
        value_dim,
        conv_kernel_size: metadata.integer_if_any("linear_conv_kernel_dim", 1..=256)?.unwrap_or(4),
        conv_bias: Bias::None,
        conv_activation: activation(metadata, "hidden_act", Activation::Silu)?,
        in_bias: Bias::None,
        out_bias: Bias::None,
        output: GatedOutput::Gate,
        gate: Activation::Silu,
        gate_rank: None,
    })
}

/// The sizes of Mamba-2 under their usual keys (`mamba_...`) and defaults; `width`: its inner width, where the file does
/// not say it in heads.
pub(crate) fn mamba2(metadata: &Metadata<'_>, width: usize, eps: f32) -> Result<LinearAttention> {
    let stated = |key: &str, most: u64| metadata.integer_if_any(key, 1..=most);
    let bias = |key: &str, default: bool| -> Result<Bias> {
        Ok(if metadata.flag_or(key, default)? { Bias::Added } else { Bias::None })
    };
    let heads = stated("mamba_n_heads", 1 << 16)?.unwrap_or(128);
    let value_dim = match metadata.get("mamba_d_head").and_then(serde_json::Value::as_str) {
        Some("auto") => None,
        _ => stated("mamba_d_head", 1 << 13)?,
    };
    let value_dim = value_dim.unwrap_or(width / heads).max(1);
    if value_dim * heads != width {
        let what =
            format!("must make {width} values in all heads, the mixer's width (got {heads} of {value_dim})");
        return Err(metadata.bad("mamba_n_heads", &what));
    }
    let groups = stated("mamba_n_groups", 1 << 16)?.unwrap_or(1);
    let proj_bias = bias("mamba_proj_bias", false)?;
    for key in ["mamba_chunk_size", "mamba_expand", "use_mamba_kernels", "num_logits_to_keep"] {
        metadata.get(key); // how it is computed, or read by the family
    }
    let linear = LinearAttention {
        rule: LinearRule::Mamba2 { time_step_limit: time_step_limit(metadata)?, multipliers: [1.0; 5] },
        num_key_heads: groups,
        num_value_heads: heads,
        key_heads: KeyHeads::Grouped,
        key_dim: stated("mamba_d_state", 1 << 13)?.unwrap_or(256),
        value_dim,
        conv_kernel_size: stated("mamba_d_conv", 256)?.unwrap_or(4),
        conv_bias: bias("mamba_conv_bias", true)?,
        conv_activation: activation(metadata, "hidden_act", Activation::Silu)?,
        in_bias: proj_bias,
        out_bias: proj_bias,
        output: GatedOutput::GateThenNorm { eps, group: width / groups },
        gate: Activation::Silu,
        gate_rank: None,
    };
    check_groups(metadata, "mamba_n_groups", linear)
}

/// Refuses groups that do not divide the heads.
pub(crate) fn check_groups(
    metadata: &Metadata<'_>,
    key: &str,
    linear: LinearAttention,
) -> Result<LinearAttention> {
    let LinearAttention { num_key_heads: groups, num_value_heads: heads, .. } = linear;
    if !heads.is_multiple_of(groups) {
        let what = format!("must be a divisor of the number of heads, {heads} (got {groups})");
        return Err(metadata.bad(key, &what));
    }
    Ok(linear)
}

/// `time_step_limit`: two numbers, the second of which may be infinite, which transformers writes as an object.
fn time_step_limit(metadata: &Metadata<'_>) -> Result<[f32; 2]> {
    let Some(value) = metadata.get("time_step_limit") else { return Ok([0.0, f32::INFINITY]) };
    let number = |value: &serde_json::Value| match value.get("__float__").and_then(serde_json::Value::as_str)
    {
        Some("Infinity") => Some(f32::INFINITY),
        Some(_) => None,
        None => value.as_f64().map(|number| number as f32),
    };
    match value.as_array().map(Vec::as_slice) {
        Some([least, most]) => match (number(least), number(most)) {
            (Some(least), Some(most)) if 0.0 <= least && least <= most => Some([least, most]),
            _ => None,
        },
        _ => None,
    }
    .ok_or_else(|| {
        let what = format!("must be two numbers, the smaller one first (got {})", describe(value));
        metadata.bad("time_step_limit", &what)
    })
}
