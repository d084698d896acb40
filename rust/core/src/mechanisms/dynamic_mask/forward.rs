//! Dynamic mask attention: a number exp(A softplus(dt_proj(v))) per key and key/value head, which is added to the key's
//! scores, and the highest of which select the keys to read. The numbers are cached with keys and values, in the same
//! type.
//!
//! Law 1: a choice depends on the keys that the row sees. Of equal numbers the later position wins.

use super::config::DynamicMask;
use super::parts::InLayer;
use crate::forward::attention::choices::{Choices, for_highest};
use crate::forward::attention::score_bias::{AddedScores, ScoredQuery};
use crate::forward::attention::segments::segments;
use crate::forward::rope::RopeAngles;
use crate::forward::state::{Pass, Run};
use crate::forward::step::Step;
use crate::kv_cache::{BLOCK, Block, KvSequence};
use crate::parts::{AttentionLayer, Layer};
use ropechat_kernels::compute::activations::by_rows;
use ropechat_kernels::kernel::{Kernels, Panels, Rows};
use std::cell::RefCell;

/// The numbers of a key with these values of all heads.  // [num_kv_heads]
fn numbers(weights: &InLayer, values: &[f32]) -> Vec<f32> {
    let InLayer { a, dt_proj, dt_bias } = weights;
    let number = |((a, row), bias): ((&f32, &[f32]), &f32)| {
        let dt = row.iter().zip(values).map(|(weight, value)| weight * value).sum::<f32>() + bias;
        let softplus = dt.max(0.0) + (-dt.abs()).exp().ln_1p() + 0.0 * dt; // NaN stays
        (a * softplus).exp()
    };
    a.iter().zip(dt_proj.chunks_exact(values.len())).zip(dt_bias).map(number).collect()
}

/// The numbers of all keys in the caches of a pass.
#[derive(Default)]
pub(crate) struct Steps {
    values: Vec<f32>, // [tiles of all runs, num_kv_heads, 32]
    /// For each row the first tile of its run.
    first_tiles: Vec<usize>,
    /// Key/value heads, and query heads of each.
    heads: usize,
    group: usize,
}

impl Step for Steps {
    /// Writes the numbers of the rows' keys into the cache.
    fn after_store(
        &mut self,
        pass: Pass<'_>,
        layer: &Layer,
        runs: &mut [Run<'_>],
        _: &[RopeAngles],
        (qkv, stride): (&mut [f32], usize),
    ) {
        let (Some(weights), Some(attention)) = (&layer.mechanisms.dynamic_mask, &layer.attention) else {
            return;
        };
        let values = attention.heads.qk_width()..attention.heads.qkv_width();
        pass.pool.for_each(&mut segments(runs, qkv, stride), |segment| {
            for (row, qkv) in segment.qkv.chunks_exact(stride).enumerate() {
                let (numbers, offset) = (numbers(weights, &qkv[values.clone()]), segment.offset + row);
                segment.block.write_index_key(attention.kv_index, offset, &numbers, pass.kernels);
            }
        });
    }

    fn chooses(&self, layer: &Layer) -> bool {
        layer.mechanisms.dynamic_mask.is_some()
    }

    fn choose(
        &mut self,
        pass: Pass<'_>,
        layer: &Layer,
        caches: &[(&KvSequence, usize)],
        _: &[f32],
        choices: &mut Choices,
    ) {
        if let (Some(mask), Some(attention)) = (pass.config.mechanisms.dynamic_mask, &layer.attention) {
            self.read(pass, attention, caches);
            self.choose_highest(pass, attention, mask, caches, choices);
        }
    }

    fn added_scores(&self, layer: &Layer) -> Option<&dyn AddedScores> {
        self.chooses(layer).then_some(self)
    }
}

impl AddedScores for Steps {
    fn add(&self, kernels: Kernels, query: ScoredQuery, scale: f32, scores: &mut [f32]) {
        let (mut place, mut scores) = (query.first, scores);
        while !scores.is_empty() {
            let (tile, offset) = (place / BLOCK, place % BLOCK);
            let count = scores.len().min(BLOCK - offset);
            let (head, tail) = std::mem::take(&mut scores).split_at_mut(count);
            let of_tile = self.of_tile(query.row, query.head, tile);
            kernels.axpby(head, &of_tile[offset..][..count], scale, 1.0);
            (place, scores) = (place + count, tail);
        }
    }
}

impl Steps {
    /// Reads the numbers of all keys out of the caches.
    fn read(&mut self, pass: Pass<'_>, layer: &AttentionLayer, caches: &[(&KvSequence, usize)]) {
        let heads = layer.heads.num_key_value_heads;
        (self.heads, self.group) = (heads, layer.heads.group_size());
        self.first_tiles.clear();
        let mut blocks: Vec<&Block> = Vec::new();
        for &(cache, rows) in caches {
            self.first_tiles.resize(self.first_tiles.len() + rows, blocks.len());
            let tiles = (cache.len() + rows).div_ceil(BLOCK);
            blocks.extend(cache.blocks()[..tiles].iter().map(|block| &**block));
        }
        // Products with unit vectors read the values of any type.
        let mut units = vec![0.0f32; heads * heads];
        units.iter_mut().step_by(heads + 1).for_each(|unit| *unit = 1.0);
        let units = Rows { bytes: bytemuck::cast_slice(&units), stride: heads * 4, count: heads };
        self.values.resize(blocks.len() * heads * BLOCK, 0.0);
        by_rows(pass.pool, &mut self.values, heads * BLOCK, |tile, out| {
            SCRATCH.with_borrow_mut(|scratch| {
                let (format, keys) = blocks[tile].index_key_panels(layer.kv_index, scratch, pass.kernels);
                let panels =
                    Panels { format, bytes: keys, panel_bytes: keys.len() / 2, count: 2, steps: heads };
                pass.kernels.matmul(panels, units, out, BLOCK);
            });
        });
    }

    /// Chooses what every row reads, where a row sees more keys than it reads.
    fn choose_highest(
        &self,
        pass: Pass<'_>,
        layer: &AttentionLayer,
        DynamicMask { keep_window_size: kept }: DynamicMask,
        caches: &[(&KvSequence, usize)],
        choices: &mut Choices,
    ) {
        let mask = layer.spec.mask;
        let places: Vec<usize> =
            caches.iter().flat_map(|&(cache, rows)| cache.len()..cache.len() + rows).collect();
        if places.iter().all(|&place| place + 1 - mask.first(place) <= kept) {
            return choices.set(pass, [0; 3], |_, _, _| {});
        }
        let tiles = places.iter().map(|place| place / BLOCK + 1).max().unwrap_or_default();
        choices.set(pass, [places.len(), self.heads, tiles], |row, head, words| {
            let (first, place) = (mask.first(places[row]), places[row]);
            let mut set = |at: usize| words[at / BLOCK] |= 1 << (at % BLOCK);
            if place + 1 - first <= kept {
                return (first..=place).for_each(set);
            }
            let number = |at: usize| self.of_tile(row, head * self.group, at / BLOCK)[at % BLOCK];
            let from_last: Vec<f32> = (first..=place).rev().map(number).collect();
            for_highest(&from_last, kept, |back| set(place - back));
        });
    }

    /// What is added to the scores of a tile's keys for a query head of a row.  // [32]
    fn of_tile(&self, row: usize, query_head: usize, tile: usize) -> &[f32] {
        let at = (self.first_tiles[row] + tile) * self.heads + query_head / self.group;
        &self.values[at * BLOCK..][..BLOCK]
    }
}

thread_local! {
    /// A tile's numbers where the cache holds bytes.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: softplus(0) = ln 2, so exp(ln 2) = 2 and exp(-ln 2) = 1/2; softplus(x) is x far above 0.
    #[test]
    fn numbers_of_keys() {
        let weights = InLayer {
            a: vec![1.0, -1.0, 0.1],
            dt_proj: vec![1.0, -1.0, 2.0, -2.0, 5.0, 5.0],
            dt_bias: vec![0.0, 0.0, 20.0],
        };
        let found = numbers(&weights, &[3.0, 3.0]);
        for (found, expected) in found.iter().zip([2.0, 0.5, 5f32.exp()]) {
            assert!((found - expected).abs() < 1e-5 * expected, "{found} is not {expected}");
        }
        assert!(numbers(&weights, &[f32::NAN, 0.0]).iter().all(|number| number.is_nan()));
    }
}
