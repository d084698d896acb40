//! EXAONE 4: Llama with norms after attention and MLP, a norm on every head of q and k, and windows in three layers of
//! four, of which only the windowed ones rotate; models without windows rotate in all.
//!
//! LG AI Research 2025 (EXAONE 4.0, <https://arxiv.org/abs/2507.11407>). Defaults of absent keys: transformers 5.23,
//! `configuration_exaone4.py`; that the heads' width may be stated, and what rotates, is in `modeling_exaone4.py`.

use crate::config::{Bias, Config, LayerRope, Mask, Names, NormPlacement, QkNorm, tensor};
use crate::family::keys::base::{BiasKey, Defaults, Family, HeadDim, KvHeads, NormKey, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::windows::{pattern, window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static EXAONE4: Family = Family { model_types: &["exaone4"], aliases: &[], config };

const DEFAULTS: Defaults = Defaults {
    names: Names { attention_out_norm: tensor!("post_attention_layernorm"), ..Names::LLAMA },
    num_key_value_heads: KvHeads::Usually(32),
    head_dim: HeadDim::FreeQuotient,
    norm: NormKey::Rms("rms_norm_eps", 1e-5),
    attention_bias: BiasKey::Fixed(Bias::None),
    attention_out_bias: BiasKey::Absent(Bias::None),
    mlp_bias: BiasKey::Absent(Bias::None),
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let config = windowed(metadata, base(metadata, &DEFAULTS)?)?;
    Ok(Config { norm_placement: NormPlacement::After, qk_norm: QkNorm::PerHead(Bias::None), ..config })
}

/// Windows in three layers of four, which alone rotate.
pub(crate) fn windowed(metadata: &Metadata<'_>, config: Config) -> Result<Config> {
    let window = window(metadata, Some(4096))?;
    const PATTERN: &str = "sliding_window_pattern";
    // With `layer_types` it does nothing: published files say "LLLG" there.
    let listed = metadata.texts_if_any("layer_types")?.is_some();
    let every = match metadata.get(PATTERN) {
        _ if listed || window.is_none() => 1,
        None if metadata.has(PATTERN) => {
            return Err(metadata.bad(PATTERN, "null with a window; a whole number or layer_types is needed"));
        }
        _ => pattern(metadata, 4)?,
    };
    let mut config = with_windows(metadata, config, window, |layer| !(layer + 1).is_multiple_of(every))?;
    for layer in &mut config.layers {
        let still = window.is_some() && layer.mask == Mask::Causal;
        layer.rope = if still { LayerRope::None } else { LayerRope::Rotary(0) };
    }
    Ok(config)
}
