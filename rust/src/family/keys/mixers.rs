//! `layer_types` of hybrids: which layers have attention and which a recurrent mixer.

use super::metadata::Metadata;
use crate::checkpoint::escape_for_terminal;
use crate::config::{Bias, Config, GatedOutput, LinearAttention, LinearRule, Mixer};
use crate::error::Result;

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
        let what = format!("must be a multiple of linear_num_key_heads, {num_key_heads} (got {num_value_heads})");
        return Err(metadata.bad("linear_num_value_heads", &what));
    }
    Ok(LinearAttention {
        rule: LinearRule::GatedDelta { beta: 1.0 },
        num_key_heads,
        num_value_heads,
        key_dim,
        value_dim,
        conv_kernel_size: metadata.integer_if_any("linear_conv_kernel_dim", 1..=256)?.unwrap_or(4),
        conv_bias: Bias::None,
        proj_bias: Bias::None,
        output: GatedOutput::Gate,
    })
}
