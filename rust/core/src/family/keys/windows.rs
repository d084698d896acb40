//! Sliding windows: `sliding_window`, and which layers have one.

use super::metadata::Metadata;
use crate::checkpoint::escape_for_terminal;
use crate::checkpoint::json::describe;
use crate::config::{Config, LayerRope, Mask, Rope};
use ropechat_platform::error::Result;

/// `sliding_window`: `null` says none (so does Qwen2-MoE's 0), an absent key says what the family's class says.
pub(crate) fn window(metadata: &Metadata<'_>, default: Option<usize>) -> Result<Option<usize>> {
    let stated = metadata.integer_if_any("sliding_window", 0..=1 << 40)?.filter(|&window| window > 0);
    Ok(if metadata.has("sliding_window") { stated } else { default })
}

/// Windows in the layers that `layer_types` names, or else `pattern`.
pub(crate) fn with_windows(
    metadata: &Metadata<'_>,
    mut config: Config,
    window: Option<usize>,
    pattern: impl Fn(usize) -> bool,
) -> Result<Config> {
    let types = layer_types(metadata, config.layers.len())?;
    for (index, layer) in config.layers.iter_mut().enumerate() {
        let slides = types.as_ref().map_or_else(|| pattern(index), |types| types[index]);
        layer.mask = match window {
            Some(window) if slides => Mask::Sliding(window),
            _ => Mask::Causal,
        };
    }
    Ok(config)
}

/// `layer_types`: which layers slide.
pub(crate) fn layer_types(metadata: &Metadata<'_>, layers: usize) -> Result<Option<Vec<bool>>> {
    let kinds = layer_kinds(metadata, layers, &["full_attention", "sliding_attention"])?;
    Ok(kinds.map(|kinds| kinds.into_iter().map(|kind| kind == 1).collect()))
}

/// `layer_types`: for each layer its place among the `known` kinds.
pub(crate) fn layer_kinds(
    metadata: &Metadata<'_>,
    layers: usize,
    known: &[&str],
) -> Result<Option<Vec<usize>>> {
    let Some(types) = metadata.texts_if_any("layer_types")? else {
        return Ok(None);
    };
    if types.len() != layers {
        let what = format!("must have one entry per layer, {layers} (got {})", types.len());
        return Err(metadata.bad("layer_types", &what));
    }
    let place = |kind: &&str| {
        known.iter().position(|known| known == kind).ok_or_else(|| {
            let (known, kind) = (known.join(" or "), escape_for_terminal(kind));
            metadata.unsupported("layer_types", &format!("must be {known} (got \"{kind}\")"))
        })
    };
    types.iter().map(place).collect::<Result<Vec<_>>>().map(Some)
}

/// `sliding_window_pattern`: every n-th layer sees everything. A text (cohere2 writes none) is refused.
pub(crate) fn pattern(metadata: &Metadata<'_>, default: usize) -> Result<usize> {
    // Newer files keep the old number in addition to `layer_types`, under another name.
    let kept = metadata.integer_if_any("_sliding_window_pattern", 1..=1 << 16)?;
    Ok(metadata.integer_if_any("sliding_window_pattern", 1..=1 << 16)?.or(kept).unwrap_or(default))
}

/// For families without windows: a window that a sequence could outgrow is refused.
pub(crate) fn refuse_window(metadata: &Metadata<'_>, max_position_embeddings: usize) -> Result<()> {
    let window = metadata.integer_if_any("sliding_window", 1..=1 << 40)?;
    let in_use = metadata.flag_or("use_sliding_window", true)?;
    match window {
        Some(window) if in_use && window < max_position_embeddings => Err(metadata.unsupported(
            "sliding_window",
            &format!("must be null, since this family is computed without a window (got {window})"),
        )),
        _ => Ok(()),
    }
}

/// A list of layer numbers.
pub(crate) fn layer_numbers(metadata: &Metadata<'_>, key: &str) -> Result<Vec<usize>> {
    let Some(value) = metadata.get(key) else {
        return Ok(Vec::new());
    };
    let numbers = value
        .as_array()
        .and_then(|list| list.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect());
    numbers.ok_or_else(|| metadata.bad(key, &format!("must be a list of layers (got {})", describe(value))))
}

/// The ropes of layers without and with a window ([`super::rope::ropes_by_kind`]), given to the layers.
pub(crate) fn with_ropes(mut config: Config, ropes: [Option<Rope>; 2]) -> Config {
    let mut place = [LayerRope::None; 2];
    config.ropes.clear();
    for (place, rope) in place.iter_mut().zip(ropes) {
        if let Some(rope) = rope {
            *place = LayerRope::Rotary(config.ropes.len());
            config.ropes.push(rope);
        }
    }
    for layer in &mut config.layers {
        layer.rope = place[usize::from(layer.mask != Mask::Causal)];
    }
    config
}

/// Rotation in windowed layers only.
pub(crate) fn rotate_in_windows(mut config: Config) -> Config {
    for layer in &mut config.layers {
        layer.rope = if layer.mask == Mask::Causal { LayerRope::None } else { LayerRope::Rotary(0) };
    }
    config
}
