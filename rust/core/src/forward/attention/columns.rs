//! Where values are in a row of queries, keys and values, behind those.

use crate::config::Config;
use crate::parts::AttentionLayer;
use std::ops::Range;

/// Columns of a row.
pub(crate) struct Columns {
    /// The gates of attention's output.
    pub gates: Range<usize>,
    /// What a mechanism has.
    pub of_mechanism: Range<usize>,
    /// What mixes learned scores by distance.
    pub relative: Range<usize>,
}

impl Columns {
    pub fn of(config: &Config, layer: &AttentionLayer) -> Self {
        let start = layer.qkv_width();
        let gates = start..start + config.attention_gate.rows(config.heads(&layer.spec));
        let of_mechanism = gates.end..gates.end + layer.columns;
        let d_rel = config.relative_scores.map_or(0, |relative| relative.d_rel);
        let relative = of_mechanism.end..of_mechanism.end + layer.heads.num_attention_heads * d_rel;
        Self { gates, of_mechanism, relative }
    }
}
