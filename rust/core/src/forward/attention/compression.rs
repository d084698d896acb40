//! Compressed keys: each window of positions gives one more key when it is complete, which later queries read in
//! addition to those of their own window (DeepSeek-V4; DeepSeek-AI 2026, section 2.3).
//!
//! A key is kept in the cache with the last position of its window, as that of one more head. What its positions project stays
//! in the recurrent state until then, in f32, so that a key does not depend on how its positions were split into runs (law 1).

use crate::config::{Compression, LayerRope, Norm, RopeFrequencies};
use crate::forward::recurrent::conv::{Rows, Source, Window, keep_inputs};
use crate::forward::residual::norm;
use crate::forward::rope::rotate;
use crate::forward::state::{Pass, Run};
use crate::kv_cache::BLOCK;
use crate::parts::{AttentionLayer, CompressionWeights, NormWeights};

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
struct Columns<'a> {
    first: usize,
    /// Width of a key.
    dim: usize,
    position_bias: &'a [f32], // [compress_rate, series * dim]
}

/// Writes the keys of the windows that these rows complete into the caches.  // projected [rows, stride]
pub(super) fn write_keys(pass: Pass<'_>, layer: &AttentionLayer, runs: &mut [Run<'_>], projected: Rows<'_>) {
    let (Some(weights), LayerRope::Rotary(rope)) = (&layer.compression, layer.spec.rope) else { return };
    let CompressionWeights { spec, state_layer, position_biases, norm: key_norm } = &**weights;
    let (channels, positions) = pass.config.compression_window(&layer.spec);
    let (dim, kernels) = (layer.heads.head_dim, pass.kernels);
    let windows = complete_windows(*spec, runs);
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
    let window = Window { state_layer: *state_layer, start: 0 };
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
    let of_indexer = layer.indexer.as_ref().map(|indexer| (indexer.spec.index_head_dim, indexer));
    let first_of_indexer = 2 * spec.series() * dim;
    pass.pool.for_each(&mut tasks, |task| {
        let summed = |columns: &Columns<'_>| {
            let row_of = |back: usize| task.source.input(projected, task.row, back, channels, positions);
            compressed(*spec, columns, task.place, row_of)
        };
        let finished = |sum: &[f32], kind: Norm, weights: &NormWeights, rope: usize| {
            let mut key = vec![0.0; sum.len()];
            norm(kind, sum, &weights.weight, &weights.bias, &mut key, kernels);
            let [cos, sin] = &task.angles[rope];
            rotate(pass.config.ropes[rope].layout, &mut key, cos, sin, kernels);
            key
        };
        let sum = summed(&Columns { first: 0, dim, position_bias: &position_biases[0] });
        let key = finished(&sum, pass.config.norm, key_norm, rope);
        let index_key = match (of_indexer, &position_biases[1..]) {
            (Some((dim, indexer)), [position_bias]) => {
                let sum = summed(&Columns { first: first_of_indexer, dim, position_bias });
                finished(&sum, indexer.spec.norm, &indexer.k_norm, indexer.spec.rope)
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
    &Columns { first, dim, position_bias }: &Columns<'_>,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of one channel: projections, then gates.
    fn of_rows(spec: Compression, rows: &[Vec<f32>], bias: &[f32]) -> f32 {
        let place = rows.len() - 1;
        let columns = Columns { first: 0, dim: 1, position_bias: bias };
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
}
