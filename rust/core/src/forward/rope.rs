//! Rotary position embedding: the angles of a step's rows, and the rotation of a row's heads by them.

use super::state::Run;
use crate::config::{Config, EmbeddingPosition, RopeLayout};
use ropechat_kernels::kernel::Kernels;

/// cos and sin of the angles of one rope at every row's position; computed once per step, for all layers.
pub(crate) struct RopeAngles {
    pub layout: RopeLayout,
    pairs: usize,
    cos: Vec<f32>, // [rows, rotary_dim / 2]
    sin: Vec<f32>, // [rows, rotary_dim / 2]
}

impl RopeAngles {
    /// The angles of each of the model's ropes.
    pub fn of_ropes(config: &Config, runs: &[Run<'_>]) -> Vec<RopeAngles> {
        let first = match config.position {
            EmbeddingPosition::Rotated { first_position } => first_position,
            EmbeddingPosition::None | EmbeddingPosition::Learned => 0,
        };
        let rows: usize = runs.iter().map(|run| run.ids.len()).sum();
        let of_rope = |(index, rope): (usize, &crate::config::Rope)| {
            let pairs = rope.rotary_dim / 2;
            let (mut cos, mut sin) = (vec![0.0; rows * pairs], vec![0.0; rows * pairs]);
            let positions = runs.iter().flat_map(|run| {
                let start = run.position() + first;
                (start..start + run.ids.len()).map(|position| (&run.frequencies[index], position))
            });
            let angles = cos.chunks_exact_mut(pairs).zip(sin.chunks_exact_mut(pairs));
            for ((frequencies, position), (cos, sin)) in positions.zip(angles) {
                frequencies.angles(position, cos, sin);
            }
            RopeAngles { layout: rope.layout, pairs, cos, sin }
        };
        config.ropes.iter().enumerate().map(of_rope).collect()
    }

    /// cos and sin of one row.  // [rotary_dim / 2] each
    pub fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let part = row * self.pairs..(row + 1) * self.pairs;
        (&self.cos[part.clone()], &self.sin[part])
    }
}

/// Rotates the leading dimensions of every head by the angles of a row.  // heads [n * head_dim]
pub(crate) fn apply_rope(
    angles: &RopeAngles,
    row: usize,
    heads: &mut [f32],
    head_dim: usize,
    kernels: Kernels,
) {
    let (cos, sin) = angles.row(row);
    for head in heads.chunks_exact_mut(head_dim) {
        rotate(angles.layout, head, cos, sin, kernels);
    }
}

/// Rotates the leading dimensions of a head by the angles of a position.  // cos, sin [rotary_dim / 2]
pub(crate) fn rotate(layout: RopeLayout, head: &mut [f32], cos: &[f32], sin: &[f32], kernels: Kernels) {
    let rotary = &mut head[..2 * cos.len()];
    match layout {
        RopeLayout::Neox => kernels.rope_neox(rotary, cos, sin),
        RopeLayout::Interleaved => kernels.rope_interleaved(rotary, cos, sin),
    }
}
