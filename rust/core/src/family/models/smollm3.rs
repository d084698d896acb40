//! SmolLM 3: Llama with layers that do not rotate.
//!
//! Bakouch et al. 2025 (SmolLM3). Defaults of absent keys: transformers 5.23, `configuration_smollm3.py`: base 2e6, every
//! fourth layer without rotation (and with the window, when one is used).

use crate::config::{Config, LayerRope, LmHead};
use crate::family::keys::base::{Defaults, Family, HeadDim, KvHeads, RopeDefaults, WindowKeys, base};
use crate::family::keys::metadata::Metadata;
use crate::family::keys::windows::{layer_numbers, window, with_windows};
use ropechat_platform::error::Result;

pub(crate) static SMOLLM3: Family = Family { model_types: &["smollm3"], aliases: &[], config };

const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: KvHeads::Usually(4),
    head_dim: HeadDim::FreeQuotient,
    max_position_embeddings: 32_768,
    lm_head: LmHead::Tied,
    rope: Some(RopeDefaults { theta: 2e6, ..RopeDefaults::WHOLE }),
    windows: WindowKeys::OfFamily,
    ..Defaults::LLAMA
};

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let mut config = base(metadata, &DEFAULTS)?;
    let interval = metadata.integer_if_any("no_rope_layer_interval", 1..=1 << 16)?.unwrap_or(4);
    let rotates = match metadata.has("no_rope_layers") {
        true => layer_numbers(metadata, "no_rope_layers")?,
        false => Vec::new(),
    };
    if !rotates.is_empty() && rotates.len() < config.layers.len() {
        let what = format!("must have one entry per layer, {} (got {})", config.layers.len(), rotates.len());
        return Err(metadata.bad("no_rope_layers", &what));
    }
    for (index, layer) in config.layers.iter_mut().enumerate() {
        // The list says 1 where a layer rotates.
        let rotates = match rotates.get(index) {
            Some(&flag) => flag != 0,
            None => !(index + 1).is_multiple_of(interval),
        };
        layer.rope = if rotates { LayerRope::Rotary(0) } else { LayerRope::None };
    }
    let used = metadata.flag_or("use_sliding_window", false)?;
    // Written by the exporter after Qwen's fashion; nothing reads it.
    metadata.integer_if_any("max_window_layers", 0..=1 << 20)?;
    metadata.integer_if_any("pretraining_tp", 1..=1 << 16)?;
    let window = window(metadata, None)?.filter(|_| used);
    let nope: Vec<bool> = config.layers.iter().map(|layer| layer.rope == LayerRope::None).collect();
    with_windows(metadata, config, window, |layer| nope[layer])
}
