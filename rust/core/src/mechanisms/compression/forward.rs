//! Attention of one key for all heads, which is the value too: queries through a latent, and outputs by groups of heads through
//! a latent of each group. Each window of positions gives one more key when it is complete, which later queries read in
//! addition to those of their own window (DeepSeek-V4; DeepSeek-AI 2026, section 2.3).
//!
//! A compressed key is kept in the cache with the last position of its window, as that of one more head. What its positions
//! project stays in the recurrent state until then, in f32, so that a key does not depend on how its positions were split into
//! runs (law 1).

use super::config::{CompressedAttention, Compression};
use super::parts::{CompressedKeys, InLayer, KeyIndexer};
use crate::config::{LayerRope, Norm, QueryLatent, RopeFrequencies};
use crate::forward::attention::choices::{Choices, for_highest};
use crate::forward::attention::columns::Columns;
use crate::forward::attention::group_products::GroupProducts;
use crate::forward::attention::mla::Latent;
use crate::forward::attention::observed::FurtherKeys;
use crate::forward::recurrent::conv::{Rows, Source, Window, keep_inputs};
use crate::forward::residual::{BranchBuffers, add_residual, matmul, norm};
use crate::forward::rope::{RopeAngles, apply_rope, rotate};
use crate::forward::state::{Pass, Run};
use crate::forward::step::Step;
use crate::kv_cache::{BLOCK, KvSequence};
use crate::mechanisms::indexer::config::IndexHeads;
use crate::mechanisms::indexer::forward::{Choice, Scoring};
use crate::parts::{AttentionLayer, Layer, NormWeights};
use ropechat_kernels::compute::activations::{Activations, RowSource, by_rows};

/// Buffers of attention with compressed keys.
#[derive(Default)]
pub(crate) struct Steps {
    /// The inputs of compressed keys, the latent of queries, the key, and the weights of the indexer's heads.
    projected: Vec<f32>, // [rows, padded]
    q: Vec<f32>,       // [rows, padded q of all heads]
    index_q: Vec<f32>, // [rows, padded queries of the indexer]
    scores: Vec<f32>,
    /// The latents of groups of heads.
    latents: GroupProducts,
}

/// A layer's attention: the model's facts, the mechanism's part, and the rest.
fn parts<'a>(
    pass: Pass<'a>,
    whole: &'a Layer,
) -> Option<(&'a CompressedAttention, &'a InLayer, &'a AttentionLayer)> {
    let facts = pass.config.mechanisms.compression.as_ref()?;
    Some((facts, whole.mechanisms.compression.as_deref()?, whole.attention.as_ref()?))
}

impl Step for Steps {
    /// The normed rows are in `input`, which is then used for the latent.
    fn project(
        &mut self,
        pass: Pass<'_>,
        whole: &Layer,
        _: &[f32],
        input: &mut Activations,
        qkv: &mut [f32],
    ) {
        let Some((facts, weights, layer)) = parts(pass, whole) else { return };
        let Self { projected, q, index_q, .. } = self;
        let a_proj = layer.projection.input_matrix();
        matmul(pass, a_proj, input, projected);
        let rows = Rows { values: projected, stride: a_proj.padded_out() };
        let first = weights.compressed.as_ref().map_or(0, |keys| keys.window.0);
        let (kind, norm) = (pass.config.norm, &weights.q_a_layernorm);
        let rest = first + norm.weight.len();
        let latent = Latent { rows, first, kind, norm, rest };
        latent.project(pass, QueryLatent::Normed, &weights.q_b_proj, input, q);
        let of_indexer = weights.compressed.as_ref().and_then(|keys| keys.indexer.as_ref());
        let index_proj = of_indexer.map(|weights| &weights.q_proj);
        if let Some(q_proj) = index_proj {
            latent.project(pass, QueryLatent::Normed, q_proj, input, index_q);
        }
        let (queries, dim, q_stride) =
            (layer.heads.q_width(), layer.heads.head_dim, weights.q_b_proj.padded_out());
        by_rows(pass.pool, qkv, layer.stride(pass.config), |row, out| {
            let (key, index_weights) = rows.row(row)[rest..].split_at(dim);
            out[..queries].copy_from_slice(&q[row * q_stride..][..queries]);
            out[queries..queries + dim].copy_from_slice(key);
            if let (Some(q_proj), Some(indexer)) = (index_proj, facts.indexer_of(layer.index)) {
                let (index_queries, weights) = out[queries + dim..].split_at_mut(indexer.heads.q_width());
                index_queries.copy_from_slice(&index_q[row * q_proj.padded_out()..][..index_queries.len()]);
                weights.copy_from_slice(&index_weights[..weights.len()]);
            }
        });
    }

    /// Writes the keys of the windows that these rows complete, and rotates the queries of the indexer.
    fn after_store(
        &mut self,
        pass: Pass<'_>,
        whole: &Layer,
        runs: &mut [Run<'_>],
        angles: &[RopeAngles],
        (qkv, stride): (&mut [f32], usize),
    ) {
        let Some((facts, InLayer { compressed: Some(keys), .. }, layer)) = parts(pass, whole) else { return };
        let heads = facts.indexer_of(layer.index).map(|indexer| indexer.heads);
        if let Some(heads) = heads {
            let columns = Columns::of(pass.config, layer).of_mechanism;
            by_rows(pass.pool, qkv, stride, |row, qkv| {
                let (queries, weights) = qkv[columns.clone()].split_at_mut(heads.q_width());
                apply_rope(&angles[heads.rope], row, queries, heads.index_head_dim, pass.kernels);
                heads.scale_weights(weights, pass.kernels);
            });
        }
        let stride = layer.projection.input_matrix().padded_out();
        write_keys(pass, layer, keys, heads, runs, Rows { values: &self.projected, stride });
    }

    fn further_keys<'a>(&self, layer: &'a Layer) -> Option<&'a dyn FurtherKeys> {
        Some(layer.mechanisms.compression.as_ref()?.compressed.as_ref()?)
    }

    fn chooses(&self, layer: &Layer) -> bool {
        self.further_keys(layer).is_some()
    }

    /// Rows read the compressed keys of complete windows: those that the indexer scores highest, or all.
    fn choose(
        &mut self,
        pass: Pass<'_>,
        whole: &Layer,
        caches: &[(&KvSequence, usize)],
        qkv: &[f32],
        choices: &mut Choices,
    ) {
        let Some((facts, InLayer { compressed: Some(keys), .. }, layer)) = parts(pass, whole) else { return };
        let highest = |index_topk| HighestKeys { compression: keys.spec, index_topk };
        if let Some(indexer) = facts.indexer_of(layer.index) {
            let (heads, kv_index) = (indexer.heads, layer.kv_index);
            let scoring = Scoring { heads, weights_at: heads.q_width(), each_chooses: false, kv_index };
            let columns = Columns::of(pass.config, layer).of_mechanism;
            let values = qkv.chunks_exact(layer.stride(pass.config)).map(|row| &row[columns.clone()]);
            let choice = highest(indexer.index_topk);
            return scoring.choose(pass, &choice, caches, values, (&mut self.scores, choices));
        }
        let places: Vec<usize> =
            caches.iter().flat_map(|&(cache, rows)| cache.len()..cache.len() + rows).collect();
        let tiles = places.iter().map(|place| place / BLOCK + 1).max().unwrap_or_default();
        let all = highest(usize::MAX);
        choices.set(pass, [places.len(), 1, tiles], |row, _, words| all.mark(places[row], |_| 0.0, words));
    }

    /// x += o_proj(the latents of groups of heads). The heads are rotated back by the row's position, and their rotated part comes
    /// last, as the file has it.
    fn add_outputs(
        &mut self,
        pass: Pass<'_>,
        whole: &Layer,
        angles: &[RopeAngles],
        write_heads: &(dyn Fn(usize, usize, &mut [f32]) + Sync),
        branch: &mut BranchBuffers,
        x: &mut [f32],
    ) -> bool {
        let Some((_, InLayer { o_a_proj, o_proj, .. }, layer)) = parts(pass, whole) else { return false };
        let (groups, rows, dim) = (o_a_proj.len(), pass.rows(x), layer.heads.head_dim);
        let of_group = layer.heads.num_attention_heads / groups;
        let write = |group: usize, row: usize, out: &mut [f32]| {
            write_heads(row, group * of_group, out);
            if let LayerRope::Rotary(rope) = layer.spec.rope {
                let (cos, sin) = angles[rope].row(row);
                let back: Vec<f32> = sin.iter().map(|sin| -sin).collect();
                for head in out.chunks_exact_mut(dim) {
                    rotate(angles[rope].layout, head, cos, &back, pass.kernels);
                    head.rotate_left(2 * cos.len());
                }
            }
        };
        let latents = &mut self.latents;
        latents.multiply(pass, o_a_proj, rows, &write, &mut branch.input);
        let of_row = |row: usize, out: &mut [f32]| {
            let width = out.len() / groups;
            for (group, out) in out.chunks_exact_mut(width).enumerate() {
                out.copy_from_slice(&latents.of(group, row)[..width]);
            }
        };
        let (width, source) = (o_proj.in_features(), RowSource::Computed(&of_row));
        branch.input.quantize_rows(rows, width, o_proj.dtype(), pass.kernels, pass.pool, source);
        let (norm, factors) = (layer.attention_out_norm.as_ref(), layer.spec.residual_factors[0]);
        add_residual(pass, o_proj, norm, factors, branch, x);
        true
    }
}

/// The compressed keys with the highest scores.
struct HighestKeys {
    compression: Compression,
    index_topk: usize,
}

impl Choice for HighestKeys {
    fn is_all(&self, place: usize) -> bool {
        self.compression.complete(place) <= self.index_topk
    }

    fn mark(&self, place: usize, score: impl Fn(usize) -> f32, words: &mut [u32]) {
        let places: Vec<usize> =
            (0..self.compression.complete(place)).map(|window| self.compression.place_of(window)).collect();
        let mut set = |window: usize| words[places[window] / BLOCK] |= 1 << (places[window] % BLOCK);
        if self.is_all(place) {
            return (0..places.len()).for_each(set);
        }
        let scores: Vec<f32> = places.iter().map(|&place| score(place)).collect();
        for_highest(&scores, self.index_topk, &mut set);
    }
}

/// A window that a row completes.
struct Task<'a> {
    run: usize,
    /// The window's last position in its sequence, and its row.
    place: usize,
    row: usize,
    /// Where the rows before it are.
    source: &'a Source<'a>,
    /// cos and sin of the window's first position, of each rope.
    angles: Vec<[Vec<f32>; 2]>,
    /// The key of attention, and that of its indexer.
    keys: [Vec<f32>; 2],
}

/// Some columns of the projected rows: what is summed up, then as many logits of weights.
struct WindowColumns<'a> {
    first: usize,
    /// Width of a key.
    dim: usize,
    position_bias: &'a [f32], // [compress_rate, series * dim]
}

/// Writes the keys of the windows that these rows complete into the caches.  // projected [rows, stride]
fn write_keys(
    pass: Pass<'_>,
    layer: &AttentionLayer,
    keys: &CompressedKeys,
    heads: Option<IndexHeads>,
    runs: &mut [Run<'_>],
    projected: Rows<'_>,
) {
    let LayerRope::Rotary(rope) = layer.spec.rope else { return };
    let CompressedKeys { spec, state_layer, window: (channels, positions), .. } = *keys;
    let (dim, kernels) = (layer.heads.head_dim, pass.kernels);
    let windows = complete_windows(spec, runs);
    let angles_of = |&(run, place, _): &(usize, usize, usize)| -> Vec<[Vec<f32>; 2]> {
        let run: &Run<'_> = &runs[run];
        let position = run.start_position + place + 1 - spec.compress_rate;
        let of_rope = |frequencies: &RopeFrequencies| {
            let pairs = frequencies.inv_freq().len();
            let (mut cos, mut sin) = (vec![0.0; pairs], vec![0.0; pairs]);
            frequencies.angles(position, &mut cos, &mut sin);
            [cos, sin]
        };
        run.frequencies.iter().map(of_rope).collect()
    };
    let angles: Vec<_> = windows.iter().map(angles_of).collect();
    let window = Window { state_layer, start: 0 };
    let sources = keep_inputs(window, runs, projected, channels, positions);
    let mut tasks: Vec<Task<'_>> = windows
        .into_iter()
        .zip(angles)
        .map(|((run, place, row), angles)| Task {
            run,
            place,
            row,
            source: &sources[run].1,
            angles,
            keys: Default::default(),
        })
        .collect();
    let first_of_indexer = 2 * spec.series() * dim;
    pass.pool.for_each(&mut tasks, |task| {
        let summed = |columns: &WindowColumns<'_>| {
            let row_of = |back: usize| task.source.input(projected, task.row, back, channels, positions);
            compressed(spec, columns, task.place, row_of)
        };
        let finished = |sum: &[f32], kind: Norm, weights: &NormWeights, rope: usize| {
            let mut key = vec![0.0; sum.len()];
            norm(kind, sum, &weights.weight, &weights.bias, &mut key, kernels);
            let [cos, sin] = &task.angles[rope];
            rotate(pass.config.ropes[rope].layout, &mut key, cos, sin, kernels);
            key
        };
        let sum = summed(&WindowColumns { first: 0, dim, position_bias: &keys.position_bias });
        let key = finished(&sum, pass.config.norm, &keys.norm, rope);
        let index_key = match (heads, &keys.indexer) {
            (Some(heads), Some(KeyIndexer { position_bias, k_norm, .. })) => {
                let (first, dim) = (first_of_indexer, heads.index_head_dim);
                let sum = summed(&WindowColumns { first, dim, position_bias });
                finished(&sum, heads.norm, k_norm, heads.rope)
            }
            _ => Vec::new(),
        };
        task.keys = [key, index_key];
    });
    let keys: Vec<(usize, usize, [Vec<f32>; 2])> =
        tasks.into_iter().map(|task| (task.run, task.place, task.keys)).collect();
    let head = layer.heads.num_key_value_heads;
    for (run, place, [key, index_key]) in keys {
        let cache = &mut runs[run].cache;
        let block = place / BLOCK - cache.len() / BLOCK;
        if let Some(block) = cache.writable().nth(block) {
            block.write(layer.kv_index, head, place % BLOCK, &key, &[], kernels);
            if !index_key.is_empty() {
                block.write_index_key(layer.kv_index, place % BLOCK, &index_key, kernels);
            }
        }
    }
}

/// Run, place in its sequence and row of the last position of each window that ends in these rows.
fn complete_windows(spec: Compression, runs: &[Run<'_>]) -> Vec<(usize, usize, usize)> {
    let (mut windows, mut first) = (Vec::new(), 0);
    for (index, run) in runs.iter().enumerate() {
        let (start, rows) = (run.cache.len(), run.ids.len());
        let ends = (0..rows).filter(|row| (start + row + 1).is_multiple_of(spec.compress_rate));
        windows.extend(ends.map(|row| (index, start + row, first + row)));
        first += rows;
    }
    windows
}

/// The sum of a window's projections, channel by channel, weighted by a softmax of their gates; with those of the window before
/// where windows overlap. `row_of` gives the row so many positions before the window's last one.
fn compressed<'a>(
    spec: Compression,
    &WindowColumns { first, dim, position_bias }: &WindowColumns<'_>,
    place: usize,
    row_of: impl Fn(usize) -> Option<&'a [f32]>,
) -> Vec<f32> {
    let (rate, width) = (spec.compress_rate, spec.series() * dim);
    let (mut max, mut sum, mut total) = (vec![f32::NEG_INFINITY; dim], vec![0.0; dim], vec![0.0; dim]);
    // From the earliest position on; the first window has none before it.
    let span = spec.span().min(place + 1);
    let parts: Vec<(&[f32], Vec<f32>)> = (0..span)
        .rev()
        .filter_map(|back| {
            // The last series belongs to the position's own window, the one before to the next.
            let series = spec.series() - 1 - back / rate;
            let (row, at) = (row_of(back)?, first + series * dim);
            let bias = &position_bias[(rate - 1 - back % rate) * width + series * dim..][..dim];
            let gates = row[at + width..][..dim].iter().zip(bias).map(|(gate, bias)| gate + bias).collect();
            Some((&row[at..][..dim], gates))
        })
        .collect();
    for (_, gates) in &parts {
        max.iter_mut().zip(gates).for_each(|(max, gate)| *max = max.max(*gate));
    }
    for (values, gates) in &parts {
        for (d, (value, gate)) in values.iter().zip(gates).enumerate() {
            let weight = (gate - max[d]).exp();
            sum[d] += weight * value;
            total[d] += weight;
        }
    }
    sum.iter_mut().zip(&total).for_each(|(sum, total)| *sum /= total);
    sum
}

impl FurtherKeys for CompressedKeys {
    /// Each compressed key counts for the positions of its window, in equal parts: e^score + e^compressed / positions.
    fn spread(&self, compressed: &[f32], scores: &mut [f32]) {
        spread_over_windows(self.spec, compressed, scores);
    }
}

fn spread_over_windows(spec: Compression, compressed: &[f32], scores: &mut [f32]) {
    let part = (spec.compress_rate as f32).ln();
    let windows =
        scores.chunks_exact_mut(spec.compress_rate).zip(compressed.chunks_exact(spec.compress_rate));
    for (scores, compressed) in windows {
        let Some(key) = compressed.last().filter(|score| **score != f32::NEG_INFINITY) else { continue };
        for score in scores {
            let (low, high) = if *score < key - part { (*score, key - part) } else { (key - part, *score) };
            *score = high + (low - high).exp().ln_1p();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of one channel: projections, then gates.
    fn of_rows(spec: Compression, rows: &[Vec<f32>], bias: &[f32]) -> f32 {
        let place = rows.len() - 1;
        let columns = WindowColumns { first: 0, dim: 1, position_bias: bias };
        compressed(spec, &columns, place, |back| rows.get(place - back).map(Vec::as_slice))[0]
    }

    #[test]
    fn a_window_is_weighted_by_its_gates_and_their_biases() {
        let spec = Compression { compress_rate: 2, overlapping: false };
        let rows = [vec![9.0, 9.0], vec![9.0, 9.0], vec![1.0, 0.0], vec![5.0, 3f32.ln() - 1.0]];
        assert!((of_rows(spec, &rows, &[0.0, 1.0]) - (1.0 + 3.0 * 5.0) / 4.0).abs() < 1e-6);
    }

    #[test]
    fn overlapping_windows_read_the_first_series_of_the_window_before() {
        let spec = Compression { compress_rate: 2, overlapping: true };
        // Each row: projections for the next window and for its own, then both gates.
        let row = |next: f32, own: f32| vec![next, own, 0.0, 0.0];
        let rows = [row(1.0, 2.0), row(3.0, 4.0), row(5.0, 6.0), row(7.0, 8.0)];
        let bias = [0.0; 4];
        assert!((of_rows(spec, &rows[..2], &bias) - 3.0).abs() < 1e-6);
        assert!((of_rows(spec, &rows, &bias) - (1.0 + 3.0 + 6.0 + 8.0) / 4.0).abs() < 1e-6);
        // The biases by place in the window and series; only the last row's own projection is used.
        let bias = [-99.0, -99.0, -99.0, 99.0];
        assert!((of_rows(spec, &rows, &bias) - 8.0).abs() < 1e-6);
    }

    #[test]
    fn a_compressed_key_counts_for_the_positions_of_its_window() {
        let spec = Compression { compress_rate: 2, overlapping: false };
        let mut scores = [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 1.0, 2.0];
        let compressed = [9.0, 3.0, 9.0, f32::NEG_INFINITY, 9.0];
        spread_over_windows(spec, &compressed, &mut scores);
        assert_eq!(scores[2..], [0.0, 1.0, 2.0]);
        for score in &scores[..2] {
            assert!((score.exp() - 3f32.exp() / 2.0).abs() < 1e-4);
        }
        spread_over_windows(spec, &[0.0, 0.0, 0.0, 0.0, 0.0], &mut scores);
        assert!((scores[3].exp() - (1f32.exp() + 0.5)).abs() < 1e-5);
    }

    #[test]
    fn compressed_keys_are_chosen_by_the_last_positions_of_their_windows() {
        let mut scores = vec![0.0; 50];
        (scores[6], scores[13], scores[19], scores[49]) = (1.0, 3.0, 9.0, 9.0);
        let compression = Compression { compress_rate: 7, overlapping: true };
        let marked = |index_topk, scores: &[f32]| {
            let mut words = vec![0; scores.len().div_ceil(BLOCK)];
            HighestKeys { compression, index_topk }.mark(scores.len() - 1, |at| scores[at], &mut words);
            (0..scores.len()).filter(|at| words[at / BLOCK] >> (at % BLOCK) & 1 == 1).collect::<Vec<_>>()
        };
        assert_eq!(marked(1, &scores), [13]);
        assert_eq!(marked(3, &scores), [6, 13, 20]);
        assert_eq!(marked(7, &scores), [6, 13, 20, 27, 34, 41, 48]);
        assert_eq!(marked(usize::MAX, &scores), [6, 13, 20, 27, 34, 41, 48]);
        assert!(marked(1, &scores[..6]).is_empty());
    }
}
