//! Hyper-connections: several residual streams, of which each branch reads a weighted sum, and whose result is added to each.
//!
//! Inside a branch `x` is what it reads, then its result: the layers' residual factors keep nothing of the former.

use super::config::{HyperConnections, StreamWeights};
use super::parts::{HyperConnection, LowRank, Sigmoid};
use crate::forward::residual::{dot, matmul, norm_groups};
use crate::forward::state::Run;
use crate::forward::step::{Flow, Step};
use crate::parts::Layer;
use ropechat_kernels::compute::activations::{RowSource, by_rows};

/// How the branch that is computed is added to the streams.
#[derive(Default)]
pub(crate) struct Steps {
    written: Vec<f32>, // [rows, hc_mult]
    /// From each stream to each, where streams are mixed.  // [rows, hc_mult, hc_mult]
    mixing: Vec<f32>,
    normed: Vec<f32>, // [rows, hc_mult, hidden_size]
    /// Products of the projections to the low rank and back.
    products: [Vec<f32>; 2],
}

impl Step for Steps {
    /// Every stream is the embedding.
    fn start(&mut self, flow: &mut Flow<'_>) {
        let Some(hyper) = flow.pass.config.mechanisms.hyper else { return };
        flow.streams.clear();
        for x in flow.x.chunks_exact(flow.pass.config.hidden_size) {
            (0..hyper.hc_mult).for_each(|_| flow.streams.extend_from_slice(x));
        }
    }

    fn enter_layer(&mut self, flow: &mut Flow<'_>, layer: &Layer, _: &mut [Run<'_>]) {
        if let Some(weights) = &layer.mechanisms.hyper {
            self.read(flow, &weights.branches[0]);
        }
    }

    fn enter_mlp(&mut self, flow: &mut Flow<'_>, layer: &Layer) {
        if let Some(weights) = &layer.mechanisms.hyper {
            self.write(flow);
            self.read(flow, &weights.branches[1]);
        }
    }

    fn leave_layer(&mut self, flow: &mut Flow<'_>, _: &Layer, is_read: bool) {
        self.write(flow);
        if let Some(outside) = flow.model.outside.mechanisms.hyper.as_ref().filter(|_| is_read) {
            self.read(flow, &outside.head);
        }
    }
}

impl Steps {
    /// x = the sum of the streams that a branch reads.  // x [rows, hidden_size]
    fn read(&mut self, flow: &mut Flow<'_>, weights: &HyperConnection) {
        let Some(hyper) = flow.pass.config.mechanisms.hyper else { return };
        self.written.resize(flow.pass.rows(flow.x) * hyper.hc_mult, 0.0);
        match weights {
            HyperConnection::Sigmoid(weights) => self.read_by_sigmoids(flow, hyper, weights),
            HyperConnection::LowRank(weights) => self.read_by_channel(flow, hyper.hc_mult, weights),
        }
    }

    fn read_by_sigmoids(
        &mut self,
        flow: &mut Flow<'_>,
        hyper: HyperConnections,
        Sigmoid { matrix, base, scale }: &Sigmoid,
    ) {
        let Flow { pass, x, streams: all, .. } = flow;
        let pass = *pass;
        let (hc_magnitude, hc_eps, written_eps, sinkhorn_iters) = match hyper.weights {
            StreamWeights::Sigmoid { hc_magnitude, hc_eps } => (hc_magnitude, hc_eps, hc_eps, 0),
            StreamWeights::Sinkhorn { hc_sinkhorn_iters, hc_eps } => (2.0, hc_eps, 0.0, hc_sinkhorn_iters),
            StreamWeights::LowRank { .. } => return,
        };
        let (hidden, count) = (pass.config.hidden_size, hyper.hc_mult);
        let kinds = scale.len();
        // The head reads only, and leaves how the last branch was written.
        let squares = if kinds > 2 { count * count } else { 0 };
        if kinds > 2 {
            self.mixing.resize(pass.rows(x) * squares, 0.0);
        }
        let mut mixing = self.mixing.chunks_exact_mut(squares.max(1));
        let mixing = std::iter::repeat_with(|| if kinds > 2 { mixing.next() } else { None });
        let written = self.written.chunks_exact_mut(count).zip(mixing);
        let mut out: Vec<_> = x.chunks_exact_mut(hidden).zip(written).enumerate().collect();
        pass.pool.for_each(&mut out, |(row, (x, (written, mixing)))| {
            let streams = &all[*row * count * hidden..][..count * hidden];
            let square = dot(streams, streams) / streams.len() as f32;
            let inverse_rms = 1.0 / (square + pass.config.norm.eps()).sqrt();
            let logit = |kind: usize, index: usize| {
                let at = kind * count + index;
                dot(&matrix[at * streams.len()..], streams) * inverse_rms * scale[kind] + base[at]
            };
            let gate = |kind: usize, stream: usize| sigmoid(logit(kind, stream));
            x.fill(0.0);
            for (stream, values) in streams.chunks_exact(hidden).enumerate() {
                pass.kernels.axpby(x, values, 1.0, gate(0, stream) + hc_eps);
            }
            if kinds > 1 {
                for (stream, written) in written.iter_mut().enumerate() {
                    *written = hc_magnitude * gate(1, stream) + written_eps;
                }
            }
            if let Some(mixing) = mixing {
                for (index, weight) in mixing.iter_mut().enumerate() {
                    *weight = logit(2, index);
                }
                sinkhorn(mixing, count, sinkhorn_iters, hc_eps);
            }
        });
    }

    /// x = mean(sigmoid(up(silu(down(normed) / hc_mult))) * normed) over the streams, where normed is each stream's norm.
    fn read_by_channel(
        &mut self,
        flow: &mut Flow<'_>,
        count: usize,
        LowRank { norm: weights, down, up }: &LowRank,
    ) {
        let Flow { pass, x, streams: all, branch, .. } = flow;
        let pass = *pass;
        let (hidden, kernels, pool, input) =
            (pass.config.hidden_size, pass.kernels, pass.pool, &mut branch.input);
        let (rows, width, rank) = (pass.rows(x), count * hidden, up.in_features());
        let Self { written, normed, products: [narrow, wide], .. } = self;
        normed.resize(all.len(), 0.0);
        by_rows(pool, normed, width, |row, out| {
            norm_groups(pass, &all[row * width..][..width], weights, out);
        });
        let stored = |row: usize| &normed[row * width..][..width];
        input.quantize_rows(rows, width, down.dtype(), kernels, pool, RowSource::Stored(&stored));
        matmul(pass, down, input, narrow);
        let scaled =
            |row: usize| narrow[row * down.padded_out()..][..rank + count].iter().map(|x| x / count as f32);
        let latent = |row: usize, out: &mut [f32]| {
            for (out, x) in out.iter_mut().zip(scaled(row)) {
                *out = x * sigmoid(x);
            }
        };
        input.quantize_rows(rows, rank, up.dtype(), kernels, pool, RowSource::Computed(&latent));
        matmul(pass, up, input, wide);
        by_rows(pool, x, hidden, |row, x| {
            x.fill(0.0);
            let weights = wide[row * up.padded_out()..][..width].chunks_exact(hidden);
            for (stream, weights) in stored(row).chunks_exact(hidden).zip(weights) {
                for ((x, value), weight) in x.iter_mut().zip(stream).zip(weights) {
                    *x += sigmoid(*weight) * value;
                }
            }
            kernels.scale(x, 1.0 / count as f32);
        });
        by_rows(pool, written, count, |row, written| {
            for (written, logit) in written.iter_mut().zip(scaled(row).skip(rank)) {
                *written = 2.0 * sigmoid(logit);
            }
        });
    }

    /// Adds a branch's result x to every stream, after these were mixed where they are.
    fn write(&mut self, flow: &mut Flow<'_>) {
        let Flow { pass, x, streams, .. } = flow;
        let pass = *pass;
        let Some(hyper) = pass.config.mechanisms.hyper else { return };
        let (hidden, count) = (pass.config.hidden_size, hyper.hc_mult);
        let (written, mixing) = (&self.written, &self.mixing);
        let mixes = matches!(hyper.weights, StreamWeights::Sinkhorn { .. });
        by_rows(pass.pool, streams, count * hidden, |row, streams| {
            let x = &x[row * hidden..][..hidden];
            if mixes {
                let (before, mixing) = (streams.to_vec(), &mixing[row * count * count..][..count * count]);
                streams.fill(0.0);
                for (from, weights) in before.chunks_exact(hidden).zip(mixing.chunks_exact(count)) {
                    for (stream, weight) in streams.chunks_exact_mut(hidden).zip(weights) {
                        pass.kernels.axpby(stream, from, 1.0, *weight);
                    }
                }
            }
            for (stream, weight) in streams.chunks_exact_mut(hidden).zip(&written[row * count..]) {
                pass.kernels.axpby(stream, x, 1.0, *weight);
            }
        });
    }
}

/// A softmax of each row of logits, then columns and rows divided by their sums in turn, the columns last.
/// // weights [count, count]
fn sinkhorn(weights: &mut [f32], count: usize, iters: usize, eps: f32) {
    for row in weights.chunks_exact_mut(count) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|x| *x = (*x - max).exp());
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|x| *x = *x / sum + eps);
    }
    for iter in 0..iters {
        if iter > 0 {
            for row in weights.chunks_exact_mut(count) {
                let sum = row.iter().sum::<f32>() + eps;
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        for column in 0..count {
            let sum = weights.iter().skip(column).step_by(count).sum::<f32>() + eps;
            weights.iter_mut().skip(column).step_by(count).for_each(|x| *x /= sum);
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::sinkhorn;

    #[test]
    fn rows_and_columns_of_the_mixing_weights_sum_to_one() {
        let mut weights = [0.3, -2.0, 1.0, 0.0, 4.0, -1.0, 2.5, 0.1, 0.2];
        sinkhorn(&mut weights, 3, 50, 1e-6);
        for index in 0..3 {
            let row: f32 = weights[index * 3..][..3].iter().sum();
            let column: f32 = weights.iter().skip(index).step_by(3).sum();
            assert!((row - 1.0).abs() < 1e-4 && (column - 1.0).abs() < 1e-4, "{weights:?}");
        }
        let mut once = [0.0, 0.0, 0.0, 3f32.ln()];
        sinkhorn(&mut once, 2, 1, 0.0);
        // Rows of 1/2, 1/2 and 1/4, 3/4, divided by the columns' sums 3/4 and 5/4.
        for (x, expected) in once.iter().zip([2.0 / 3.0, 0.4, 1.0 / 3.0, 0.6]) {
            assert!((x - expected).abs() < 1e-6, "{once:?}");
        }
    }
}
