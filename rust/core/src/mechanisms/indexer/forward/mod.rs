//! Which positions a query reads, where an indexer chooses them: its heads score every key in the cache. The indexer's keys
//! are cached with keys and values, in the same type.
//!
//! Law 1: a choice depends on the row's own query and on the keys up to it. Of equal scores the earlier position wins; of
//! equal blocks of a mean, which few heads often score zero, those that transformers takes.

mod nth_element;

use super::config::{IndexChoice, IndexHeads, Indexer};
use super::parts::IndexerWeights;
use crate::config::QueryLatent;
use crate::forward::attention::choices::{Choices, for_highest};
use crate::forward::attention::columns::Columns;
use crate::forward::attention::mla::Latent;
use crate::forward::attention::segments::segments;
use crate::forward::residual::norm;
use crate::forward::rope::{RopeAngles, apply_rope, rotate};
use crate::forward::state::{Pass, Run};
use crate::forward::step::Step;
use crate::kv_cache::{BLOCK, Block, KvSequence};
use crate::parts::{AttentionLayer, Layer, NormWeights};
use nth_element::highest;
use ropechat_kernels::compute::activations::{Activations, by_rows};
use ropechat_kernels::kernel::{Kernels, Panels, Rows};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Buffers of an indexer.
#[derive(Default)]
pub(crate) struct Steps {
    queries: Vec<f32>, // [rows, padded queries]
    scores: Vec<f32>,
}

/// A layer's own indexer.
fn own<'a>(
    pass: Pass<'a>,
    whole: &'a Layer,
) -> Option<(&'a Indexer, &'a IndexerWeights, &'a AttentionLayer)> {
    let weights = whole.mechanisms.indexer.as_ref()?.own.as_ref()?;
    Some((pass.config.mechanisms.indexer.as_ref()?, weights, whole.attention.as_ref()?))
}

impl Step for Steps {
    /// Queries from the latent; key and weights of the heads are behind it.
    fn after_latent(
        &mut self,
        pass: Pass<'_>,
        whole: &Layer,
        latent: &Latent<'_>,
        input: &mut Activations,
        qkv: &mut [f32],
    ) {
        let Some((indexer, IndexerWeights { q_proj: Some(q_proj), .. }, layer)) = own(pass, whole) else {
            return;
        };
        latent.project(pass, QueryLatent::Normed, q_proj, input, &mut self.queries);
        let (columns, width) = (Columns::of(pass.config, layer).of_mechanism, indexer.heads.q_width());
        by_rows(pass.pool, qkv, layer.stride(pass.config), |row, out| {
            let (queries, rest) = out[columns.clone()].split_at_mut(width);
            queries.copy_from_slice(&self.queries[row * q_proj.padded_out()..][..width]);
            rest.copy_from_slice(&latent.rows.row(row)[latent.rest..][..rest.len()]);
        });
    }

    /// Norms and rotates the rows' queries and keys, scales the weights of the heads, and writes the keys into the cache.
    fn after_store(
        &mut self,
        pass: Pass<'_>,
        whole: &Layer,
        runs: &mut [Run<'_>],
        angles: &[RopeAngles],
        (qkv, stride): (&mut [f32], usize),
    ) {
        let Some((indexer, weights, layer)) = own(pass, whole) else { return };
        let (heads, columns) = (&indexer.heads, Columns::of(pass.config, layer).of_mechanism);
        pass.pool.for_each(&mut segments(runs, qkv, stride), |segment| {
            for (row, qkv) in segment.qkv.chunks_exact_mut(stride).enumerate() {
                let values = &mut qkv[columns.clone()];
                prepare(indexer, weights, &angles[heads.rope], segment.row + row, values, pass.kernels);
                let key = &values[heads.q_width()..][..heads.index_head_dim];
                segment.block.write_index_key(layer.kv_index, segment.offset + row, key, pass.kernels);
            }
        });
        if let IndexChoice::MeanBlocks { compress_ratio, .. } = indexer.choice {
            write_block_keys(pass, layer, heads, &weights.k_norm, compress_ratio, runs);
        }
    }

    fn chooses(&self, layer: &Layer) -> bool {
        layer.mechanisms.indexer.is_some()
    }

    fn choose(
        &mut self,
        pass: Pass<'_>,
        whole: &Layer,
        caches: &[(&KvSequence, usize)],
        qkv: &[f32],
        choices: &mut Choices,
    ) {
        let Some((indexer, _, layer)) = own(pass, whole) else { return };
        let scoring = Scoring {
            heads: indexer.heads,
            weights_at: indexer.heads.q_width() + indexer.heads.index_head_dim,
            each_chooses: matches!(indexer.choice, IndexChoice::Blocks { .. }),
            kv_index: layer.kv_index,
        };
        let columns = Columns::of(pass.config, layer).of_mechanism;
        let values = qkv.chunks_exact(layer.stride(pass.config)).map(|row| &row[columns.clone()]);
        scoring.choose(pass, &indexer.choice, caches, values, (&mut self.scores, choices));
    }
}

/// How scores become a choice.
pub(crate) trait Choice: Sync {
    /// Whether a row at `place` reads all that there is up to it, with any scores.
    fn is_all(&self, place: usize) -> bool;

    /// Sets the bits of the positions whose keys a row at `place` reads.  // words [tiles], zeros
    fn mark(&self, place: usize, score: impl Fn(usize) -> f32, words: &mut [u32]);
}

/// Scores that are kept at once, unless one row has more: 16 MB.
const SCORES: usize = 1 << 22;
/// Tiles of a row that one task scores.
const TILES_PER_TASK: usize = 32;

/// Some tiles of a row's cache, to be scored.
struct ScoreTask<'a> {
    /// The row's queries, key and weights.
    values: &'a [f32],
    blocks: &'a [Arc<Block>],
    out: &'a mut [f32], // [tiles, count, 32]
}

/// Heads that score the index keys of a layer.
pub(crate) struct Scoring {
    pub heads: IndexHeads,
    /// Where the weights of the heads are in a row's values; they are ones where its values end there.
    pub weights_at: usize,
    /// Whether each head chooses by itself; the sum of all heads does otherwise.
    pub each_chooses: bool,
    pub kv_index: usize,
}

impl Scoring {
    /// Makes the choice of every row; `values` has a row's queries, key and weights.
    pub fn choose<'v>(
        &self,
        pass: Pass<'_>,
        choice: &impl Choice,
        caches: &[(&KvSequence, usize)],
        values: impl Iterator<Item = &'v [f32]>,
        (scores, choices): (&mut Vec<f32>, &mut Choices),
    ) {
        let places = caches.iter().flat_map(|&(cache, rows)| {
            (cache.len()..cache.len() + rows).map(move |place| (cache.blocks(), place))
        });
        let rows: Vec<_> =
            places.zip(values).map(|((blocks, place), values)| (blocks, place, values)).collect();
        let count = if self.each_chooses { self.heads.index_n_heads } else { 1 };
        let tiles = rows.iter().map(|(_, place, _)| place / BLOCK + 1).max().unwrap_or_default();
        let words = choices.reset([rows.len(), count, tiles]);
        if rows.is_empty() {
            return;
        }
        let scores_of_row = tiles * count * BLOCK;
        let together = (SCORES / scores_of_row).max(1);
        for (rows, words) in rows.chunks(together).zip(words.chunks_mut(together * count * tiles)) {
            scores.resize(rows.len() * scores_of_row, 0.0);
            let mut tasks = Vec::new();
            for (&(blocks, place, values), out) in rows.iter().zip(scores.chunks_exact_mut(scores_of_row)) {
                let scored = if choice.is_all(place) { 0 } else { place / BLOCK + 1 };
                let blocks = blocks[..scored].chunks(TILES_PER_TASK);
                let outs = out.chunks_mut(TILES_PER_TASK * count * BLOCK);
                tasks.extend(blocks.zip(outs).map(|(blocks, out)| ScoreTask { values, blocks, out }));
            }
            pass.pool.for_each(&mut tasks, |task| self.score(count, task, pass.kernels));
            by_rows(pass.pool, words, count * tiles, |row, words| {
                let scores = &scores[row * scores_of_row..][..scores_of_row];
                for (index, words) in words.chunks_exact_mut(tiles).enumerate() {
                    let score =
                        |place: usize| scores[(place / BLOCK * count + index) * BLOCK + place % BLOCK];
                    choice.mark(rows[row].1, score, words);
                }
            });
        }
    }

    /// Scores of all positions of some tiles for each choice; of positions behind the row too, which nobody reads.
    fn score(&self, count: usize, task: &mut ScoreTask<'_>, kernels: Kernels) {
        let (dim, heads) = (self.heads.index_head_dim, self.heads.index_n_heads);
        let queries = &task.values[..self.heads.q_width()];
        let queries = Rows { bytes: bytemuck::cast_slice(queries), stride: dim * 4, count: heads };
        SCRATCH.with_borrow_mut(|Scratch { tile, scores }| {
            scores.resize(heads * BLOCK, 0.0);
            for (block, out) in task.blocks.iter().zip(task.out.chunks_exact_mut(count * BLOCK)) {
                let (format, keys) = block.index_key_panels(self.kv_index, tile, kernels);
                let keys = Panels { format, bytes: keys, panel_bytes: keys.len() / 2, count: 2, steps: dim };
                if self.each_chooses {
                    kernels.matmul(keys, queries, out, BLOCK);
                    continue;
                }
                kernels.matmul(keys, queries, scores, BLOCK);
                out.fill(0.0);
                for (head, scores) in scores.chunks_exact(BLOCK).enumerate() {
                    // Without weights all heads count the same.
                    let weight = task.values[self.weights_at..].get(head).unwrap_or(&1.0);
                    for (out, score) in out.iter_mut().zip(scores) {
                        *out += weight * score.max(0.0);
                    }
                }
            }
        });
    }
}

impl IndexHeads {
    /// Scales the weights of the heads by the factors of scores and heads: relu(a x) = a relu(x).
    pub fn scale_weights(&self, weights: &mut [f32], kernels: Kernels) {
        kernels.scale(weights, 1.0 / (self.q_width() as f32).sqrt());
    }
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

impl Choice for IndexChoice {
    fn is_all(&self, place: usize) -> bool {
        match *self {
            IndexChoice::Positions { index_topk } => place < index_topk,
            IndexChoice::Blocks { index_block_size, index_topk_blocks, .. } => {
                place / index_block_size < index_topk_blocks
            }
            IndexChoice::MeanBlocks { compress_ratio, topk_blocks } => {
                (place + 1) / compress_ratio <= topk_blocks
            }
        }
    }

    fn mark(&self, place: usize, score: impl Fn(usize) -> f32, words: &mut [u32]) {
        let mut set = |range: Range<usize>| range.for_each(|at| words[at / BLOCK] |= 1 << (at % BLOCK));
        match *self {
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

/// Norms and rotates a row's queries and key, and scales the weights of its heads.  // values: queries, key, weights
fn prepare(
    Indexer { heads: spec, choice, .. }: &Indexer,
    IndexerWeights { q_norm, k_norm, .. }: &IndexerWeights,
    angles: &RopeAngles,
    row: usize,
    values: &mut [f32],
    kernels: Kernels,
) {
    let dim = spec.index_head_dim;
    let (queries, rest) = values.split_at_mut(spec.q_width());
    let (key, weights) = rest.split_at_mut(dim);
    let norm_heads = |heads: &mut [f32], NormWeights { weight, bias, .. }: &NormWeights| {
        NORMED.with_borrow_mut(|copy| {
            copy.clear();
            copy.extend_from_slice(heads);
            for (head, out) in copy.chunks_exact(dim).zip(heads.chunks_exact_mut(dim)) {
                norm(spec.norm, head, weight, bias, out, kernels);
            }
        });
    };
    if let Some(q_norm) = q_norm {
        norm_heads(queries, q_norm);
    }
    apply_rope(angles, row, queries, dim, kernels);
    if matches!(choice, IndexChoice::MeanBlocks { .. }) {
        return; // keys are normed and rotated when their block is complete
    }
    norm_heads(key, k_norm);
    apply_rope(angles, row, key, dim, kernels);
    spec.scale_weights(weights, kernels);
}

/// Replaces the key of the last position of each block that these rows complete by the block's key.
///
/// The keys of its positions are read from the cache, also those of this pass, so that a block's key does not depend on
/// how its positions were split into runs.
fn write_block_keys(
    pass: Pass<'_>,
    layer: &AttentionLayer,
    spec: &IndexHeads,
    k_norm: &NormWeights,
    size: usize,
    runs: &mut [Run<'_>],
) {
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
    fn complete_blocks_are_chosen_by_their_last_position_and_the_rest_is_read() {
        let mut scores = vec![0.0; 50];
        (scores[6], scores[13], scores[19], scores[49]) = (1.0, 3.0, 9.0, 9.0);
        let of = |topk_blocks| marked(IndexChoice::MeanBlocks { compress_ratio: 7, topk_blocks }, &scores);
        assert_eq!(of(1), (7..14).chain(49..50).collect::<Vec<_>>());
        assert_eq!(of(2), (0..14).chain(49..50).collect::<Vec<_>>());
        assert_eq!(of(7), (0..50).collect::<Vec<_>>());
    }
}
