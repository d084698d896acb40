//! Which positions a query reads, where an indexer chooses them: its heads score every key in the cache, and a choice is a
//! bit per position. The indexer's keys are cached with keys and values, in the same type.
//!
//! Law 1: a choice depends on the row's own query and on the keys up to it. Of equal scores the earlier position wins; of
//! equal blocks of a mean, which few heads often score zero, those that transformers takes.

use super::nth_element::highest;
use crate::config::{Compression, Config, IndexChoice, Indexer};
use crate::forward::residual::norm;
use crate::forward::rope::{RopeAngles, apply_rope, rotate};
use crate::forward::state::{Pass, Run};
use crate::kv_cache::{BLOCK, Block, KvSequence};
use crate::parts::{AttentionLayer, IndexerWeights, NormWeights};
use ropechat_kernels::compute::activations::by_rows;
use ropechat_kernels::kernel::{Panels, Rows};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Where values are in a row of queries, keys and values, behind those.
pub(super) struct Columns {
    /// The gates of attention's output.
    pub gates: Range<usize>,
    /// Queries, key and weights of the indexer.
    pub indexer: Range<usize>,
    /// What mixes learned scores by distance.
    pub relative: Range<usize>,
}

impl Columns {
    pub fn of(config: &Config, layer: &AttentionLayer) -> Self {
        let start = layer.qkv_width();
        let gates = start..start + config.attention_gate.rows(config.heads(&layer.spec));
        let width = layer.indexer.as_ref().map_or(0, |indexer| indexer.spec.width());
        let indexer = gates.end..gates.end + width;
        let d_rel = config.relative_scores.map_or(0, |relative| relative.d_rel);
        let relative = indexer.end..indexer.end + layer.heads.num_attention_heads * d_rel;
        Self { gates, indexer, relative }
    }
}

/// Scores that are kept at once, unless one row has more: 16 MB.
const SCORES: usize = 1 << 22;
/// Tiles of a row that one task scores.
const TILES_PER_TASK: usize = 32;

/// The choices of all rows, as the last layer with an indexer made them.
#[derive(Default)]
pub(crate) struct Choices {
    /// A bit per position, a word per tile.  // [rows, count, tiles]
    words: Vec<u32>,
    /// Choices per row.
    count: usize,
    /// Words per choice.
    tiles: usize,
    scores: Vec<f32>, // [rows, tiles, count, 32]
}

/// Some tiles of a row's cache, to be scored.
struct ScoreTask<'a> {
    /// The row's queries, key and weights.
    values: &'a [f32],
    blocks: &'a [Arc<Block>],
    out: &'a mut [f32], // [tiles, count, 32]
}

impl Choices {
    /// A row's words for one of `heads` key/value heads.  // [tiles]
    pub fn of(&self, row: usize, head: usize, heads: usize) -> &[u32] {
        let choice = head * self.count / heads;
        &self.words[(row * self.count + choice) * self.tiles..][..self.tiles]
    }

    /// Whether every row reads all that it sees.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Sets `count` choices of each row, of so many tiles, with `mark`, which is given row, choice and words.
    pub fn set(
        &mut self,
        pass: Pass<'_>,
        [rows, count, tiles]: [usize; 3],
        mark: impl Fn(usize, usize, &mut [u32]) + Sync,
    ) {
        (self.count, self.tiles) = (count, tiles);
        self.words.clear();
        self.words.resize(rows * count * tiles, 0);
        by_rows(pass.pool, &mut self.words, (count * tiles).max(1), |row, words| {
            for (choice, words) in words.chunks_exact_mut(tiles).enumerate() {
                mark(row, choice, words);
            }
        });
    }

    /// Every row reads the compressed keys of all windows that are complete.
    pub fn choose_all_compressed(
        &mut self,
        pass: Pass<'_>,
        compression: Compression,
        caches: &[(&KvSequence, usize)],
    ) {
        let places: Vec<usize> =
            caches.iter().flat_map(|&(cache, rows)| cache.len()..cache.len() + rows).collect();
        let tiles = places.iter().map(|place| place / BLOCK + 1).max().unwrap_or_default();
        let all = IndexChoice::CompressedKeys { compression, index_topk: usize::MAX };
        self.set(pass, [places.len(), 1, tiles], |row, _, words| all.mark(places[row], |_| 0.0, words));
    }

    /// Makes the choice of every row.  // qkv [rows, stride]
    pub fn choose(
        &mut self,
        pass: Pass<'_>,
        layer: &AttentionLayer,
        indexer: &Indexer,
        caches: &[(&KvSequence, usize)],
        qkv: &[f32],
    ) {
        let columns = Columns::of(pass.config, layer).indexer;
        let stride = layer.projection.stride(pass.config, layer);
        let values = qkv.chunks_exact(stride).map(|row| &row[columns.clone()]);
        let places = caches.iter().flat_map(|&(cache, rows)| {
            (cache.len()..cache.len() + rows).map(move |place| (cache.blocks(), place))
        });
        let rows: Vec<_> =
            places.zip(values).map(|((blocks, place), values)| (blocks, place, values)).collect();
        let count = indexer.num_choices();
        let tiles = rows.iter().map(|(_, place, _)| place / BLOCK + 1).max().unwrap_or_default();
        (self.count, self.tiles) = (count, tiles);
        self.words.clear();
        if rows.is_empty() {
            return;
        }
        self.words.resize(rows.len() * count * tiles, 0);
        let scores_of_row = tiles * count * BLOCK;
        let together = (SCORES / scores_of_row).max(1);
        for (rows, words) in rows.chunks(together).zip(self.words.chunks_mut(together * count * tiles)) {
            self.scores.resize(rows.len() * scores_of_row, 0.0);
            let mut tasks = Vec::new();
            for (&(blocks, place, values), out) in
                rows.iter().zip(self.scores.chunks_exact_mut(scores_of_row))
            {
                let scored = if indexer.choice.is_all(place) { 0 } else { place / BLOCK + 1 };
                let blocks = blocks[..scored].chunks(TILES_PER_TASK);
                let outs = out.chunks_mut(TILES_PER_TASK * count * BLOCK);
                tasks.extend(blocks.zip(outs).map(|(blocks, out)| ScoreTask { values, blocks, out }));
            }
            pass.pool.for_each(&mut tasks, |task| score(pass, layer, indexer, task));
            let scores = &self.scores;
            by_rows(pass.pool, words, count * tiles, |row, words| {
                let scores = &scores[row * scores_of_row..][..scores_of_row];
                for (choice, words) in words.chunks_exact_mut(tiles).enumerate() {
                    let score =
                        |place: usize| scores[(place / BLOCK * count + choice) * BLOCK + place % BLOCK];
                    indexer.choice.mark(rows[row].1, score, words);
                }
            });
        }
    }
}

/// Scores of all positions of some tiles for each choice; of positions behind the row too, which nobody reads.
fn score(pass: Pass<'_>, layer: &AttentionLayer, indexer: &Indexer, task: &mut ScoreTask<'_>) {
    let (dim, heads) = (indexer.index_head_dim, indexer.index_n_heads);
    let (queries, rest) = task.values.split_at(indexer.q_width());
    let queries = Rows { bytes: bytemuck::cast_slice(queries), stride: dim * 4, count: heads };
    SCRATCH.with_borrow_mut(|Scratch { tile, scores }| {
        scores.resize(heads * BLOCK, 0.0);
        let outs = task.out.chunks_exact_mut(indexer.num_choices() * BLOCK);
        for (block, out) in task.blocks.iter().zip(outs) {
            let (format, keys) = block.index_key_panels(layer.kv_index, tile, pass.kernels);
            let keys = Panels { format, bytes: keys, panel_bytes: keys.len() / 2, count: 2, steps: dim };
            match indexer.choice {
                IndexChoice::Blocks { .. } => pass.kernels.matmul(keys, queries, out, BLOCK),
                IndexChoice::Positions { .. }
                | IndexChoice::MeanBlocks { .. }
                | IndexChoice::CompressedKeys { .. } => {
                    pass.kernels.matmul(keys, queries, scores, BLOCK);
                    out.fill(0.0);
                    for (head, scores) in scores.chunks_exact(BLOCK).enumerate() {
                        // Without weights all heads count the same.
                        let weight = rest[indexer.key_width()..].get(head).unwrap_or(&1.0);
                        for (out, score) in out.iter_mut().zip(scores) {
                            *out += weight * score.max(0.0);
                        }
                    }
                }
            }
        }
    });
}

#[derive(Default)]
struct Scratch {
    /// A tile's keys where the cache holds bytes.
    tile: Vec<f32>,
    scores: Vec<f32>, // [heads, 32]
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
    /// Heads before their norm.
    static NORMED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// With this many scores for each that is chosen, `torch.topk` chooses in another way, and the first of equal ones are taken.
const MANY: usize = 64;

impl IndexChoice {
    /// Whether a row at `place` reads every position up to it, or every compressed key, with any scores.
    fn is_all(self, place: usize) -> bool {
        match self {
            IndexChoice::Positions { index_topk } => place < index_topk,
            IndexChoice::Blocks { index_block_size, index_topk_blocks, .. } => {
                place / index_block_size < index_topk_blocks
            }
            IndexChoice::MeanBlocks { compress_ratio, topk_blocks } => {
                (place + 1) / compress_ratio <= topk_blocks
            }
            IndexChoice::CompressedKeys { compression, index_topk } => {
                compression.complete(place) <= index_topk
            }
        }
    }

    /// Sets the bits of the positions that a row at `place` reads, or whose compressed keys it reads.  // words [tiles], zeros
    pub(crate) fn mark(self, place: usize, score: impl Fn(usize) -> f32, words: &mut [u32]) {
        let mut set = |range: Range<usize>| range.for_each(|at| words[at / BLOCK] |= 1 << (at % BLOCK));
        match self {
            IndexChoice::CompressedKeys { compression, index_topk } => {
                let windows = 0..compression.complete(place);
                let mut set =
                    |window: usize| set(compression.place_of(window)..compression.place_of(window) + 1);
                if self.is_all(place) {
                    return windows.for_each(set);
                }
                let scores: Vec<f32> = windows.map(|window| score(compression.place_of(window))).collect();
                for_highest(&scores, index_topk, &mut set);
            }
            _ if self.is_all(place) => set(0..place + 1),
            IndexChoice::Positions { index_topk } => {
                let scores: Vec<f32> = (0..=place).map(score).collect();
                for_highest(&scores, index_topk, |at| set(at..at + 1));
            }
            IndexChoice::Blocks { index_block_size: size, index_topk_blocks, index_local_blocks } => {
                let own = place / size;
                let range = |block: usize| block * size..((block + 1) * size).min(place + 1);
                let score_of = |block: usize| match own - block < index_local_blocks {
                    true => f32::INFINITY,
                    false => range(block).map(&score).fold(f32::NEG_INFINITY, f32::max),
                };
                let scores: Vec<f32> = (0..=own).map(score_of).collect();
                for_highest(&scores, index_topk_blocks, |block| set(range(block)));
            }
            IndexChoice::MeanBlocks { compress_ratio: size, topk_blocks } => {
                let complete = (place + 1) / size;
                // A block's key is kept with its last position.
                let scores: Vec<f32> = (1..=complete).map(|end| score(end * size - 1)).collect();
                let range = |block: usize| block * size..(block + 1) * size;
                match topk_blocks * MANY <= complete {
                    true => for_highest(&scores, topk_blocks, |block| set(range(block))),
                    false => highest(&scores, topk_blocks).into_iter().for_each(|block| set(range(block))),
                }
                set(complete * size..place + 1);
            }
        }
    }
}

/// Calls `each` for the `n` highest of more than `n` scores, in ascending order; of equal ones the first are taken.
pub(crate) fn for_highest(scores: &[f32], n: usize, mut each: impl FnMut(usize)) {
    let mut sorted = scores.to_vec();
    let (_, &mut least, _) = sorted.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a));
    let is_higher = |score: &f32| score.total_cmp(&least).is_gt();
    let mut equal = n - scores.iter().filter(|score| is_higher(score)).count();
    for (at, score) in scores.iter().enumerate() {
        let is_equal = score.total_cmp(&least).is_eq() && equal > 0;
        equal -= usize::from(is_equal);
        if is_equal || is_higher(score) {
            each(at);
        }
    }
}

/// Norms and rotates a row's queries and key of the indexer, and scales the weights of its heads.  // values [width]
pub(super) fn prepare(
    pass: Pass<'_>,
    weights: &IndexerWeights,
    angles: &[RopeAngles],
    row: usize,
    values: &mut [f32],
) {
    let IndexerWeights { spec, q_norm, k_norm, .. } = weights;
    let dim = spec.index_head_dim;
    let (queries, rest) = values.split_at_mut(spec.q_width());
    let (key, head_weights) = rest.split_at_mut(spec.key_width());
    let norm_heads = |heads: &mut [f32], NormWeights { weight, bias, .. }: &NormWeights| {
        NORMED.with_borrow_mut(|copy| {
            copy.clear();
            copy.extend_from_slice(heads);
            for (head, out) in copy.chunks_exact(dim).zip(heads.chunks_exact_mut(dim)) {
                norm(spec.norm, head, weight, bias, out, pass.kernels);
            }
        });
    };
    if let Some(q_norm) = q_norm {
        norm_heads(queries, q_norm);
    }
    apply_rope(&angles[spec.rope], row, queries, dim, pass.kernels);
    if matches!(spec.choice, IndexChoice::MeanBlocks { .. }) {
        return; // keys are normed and rotated when their block is complete
    }
    if !key.is_empty() {
        norm_heads(key, k_norm);
        apply_rope(&angles[spec.rope], row, key, dim, pass.kernels);
    }
    // The factors of scores and heads: relu(a x) = a relu(x).
    pass.kernels.scale(head_weights, 1.0 / ((spec.index_n_heads * dim) as f32).sqrt());
}

/// Replaces the key of the last position of each block that these rows complete by the block's key.
///
/// The keys of its positions are read from the cache, also those of this pass, so that a block's key does not depend on
/// how its positions were split into runs.
pub(super) fn write_block_keys(pass: Pass<'_>, layer: &AttentionLayer, runs: &mut [Run<'_>]) {
    let Some(IndexerWeights { spec, k_norm, .. }) = &layer.indexer else { return };
    let IndexChoice::MeanBlocks { compress_ratio: size, .. } = spec.choice else { return };
    let (dim, kernels) = (spec.index_head_dim, pass.kernels);
    let pairs = pass.config.ropes[spec.rope].rotary_dim / 2;
    let (mut scratch, mut key) = (Vec::new(), vec![0.0; dim]);
    let (mut cos, mut sin) = (vec![0.0; pairs], vec![0.0; pairs]);
    for run in runs {
        let (len, end) = (run.cache.len(), run.cache.len() + run.ids.len());
        for last in (len..end).filter(|place| (place + 1).is_multiple_of(size)) {
            let first = last + 1 - size;
            let mut mean = vec![0.0; dim];
            for place in first..=last {
                let block = &run.cache.blocks()[place / BLOCK];
                block.read_index_key(layer.kv_index, place % BLOCK, &mut scratch, &mut key, kernels);
                kernels.add(&mut mean, &key);
            }
            kernels.scale(&mut mean, 1.0 / size as f32);
            norm(spec.norm, &mean, &k_norm.weight, &k_norm.bias, &mut key, kernels);
            run.frequencies[spec.rope].angles(run.start_position + first, &mut cos, &mut sin);
            rotate(pass.config.ropes[spec.rope].layout, &mut key, &cos, &sin, kernels);
            if let Some(block) = run.cache.writable().nth(last / BLOCK - len / BLOCK) {
                block.write_index_key(layer.kv_index, last % BLOCK, &key, kernels);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(choice: IndexChoice, scores: &[f32]) -> Vec<usize> {
        let mut words = vec![0; scores.len().div_ceil(BLOCK)];
        choice.mark(scores.len() - 1, |at| scores[at], &mut words);
        (0..scores.len()).filter(|at| words[at / BLOCK] >> (at % BLOCK) & 1 == 1).collect()
    }

    #[test]
    fn the_highest_positions_are_read_and_of_equal_ones_the_first() {
        let mut scores = vec![0.0; 70];
        (scores[3], scores[40], scores[69]) = (1.0, 2.0, -1.0);
        let of = |index_topk| marked(IndexChoice::Positions { index_topk }, &scores);
        assert_eq!(of(1), [40]);
        assert_eq!(of(2), [3, 40]);
        assert_eq!(of(5), [0, 1, 2, 3, 40]);
        assert_eq!(of(69), (0..69).collect::<Vec<_>>());
        assert_eq!(of(70), (0..70).collect::<Vec<_>>());
        let nan = [f32::NAN, 1.0, 0.0];
        assert_eq!(marked(IndexChoice::Positions { index_topk: 1 }, &nan).len(), 1);
    }

    #[test]
    fn the_blocks_at_the_query_are_read_whatever_their_scores() {
        let mut scores = vec![0.0; 50];
        (scores[12], scores[49]) = (3.0, -9.0);
        let of = |index_topk_blocks, index_local_blocks| {
            marked(
                IndexChoice::Blocks { index_block_size: 7, index_topk_blocks, index_local_blocks },
                &scores,
            )
        };
        assert_eq!(of(1, 1), [49]);
        assert_eq!(of(1, 0), (7..14).collect::<Vec<_>>());
        assert_eq!(of(2, 1), (7..14).chain(49..50).collect::<Vec<_>>());
        assert_eq!(of(3, 2), (7..14).chain(42..50).collect::<Vec<_>>());
        assert_eq!(of(8, 1), (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn compressed_keys_are_chosen_by_the_last_positions_of_their_windows() {
        let mut scores = vec![0.0; 50];
        (scores[6], scores[13], scores[19], scores[49]) = (1.0, 3.0, 9.0, 9.0);
        let compression = crate::config::Compression { compress_rate: 7, overlapping: true };
        let of = |index_topk| marked(IndexChoice::CompressedKeys { compression, index_topk }, &scores);
        assert_eq!(of(1), [13]);
        assert_eq!(of(3), [6, 13, 20]);
        assert_eq!(of(7), [6, 13, 20, 27, 34, 41, 48]);
        let first = marked(IndexChoice::CompressedKeys { compression, index_topk: 1 }, &scores[..6]);
        assert!(first.is_empty());
    }

    #[test]
    fn complete_blocks_are_chosen_by_their_last_position_and_the_rest_is_read() {
        let mut scores = vec![0.0; 50];
        (scores[6], scores[13], scores[19], scores[49]) = (1.0, 3.0, 9.0, 9.0);
        let of = |topk_blocks| marked(IndexChoice::MeanBlocks { compress_ratio: 7, topk_blocks }, &scores);
        assert_eq!(of(1), (7..14).chain(49..50).collect::<Vec<_>>());
        assert_eq!(of(2), (0..14).chain(49..50).collect::<Vec<_>>());
        assert_eq!(of(7), (0..50).collect::<Vec<_>>());
    }
}
