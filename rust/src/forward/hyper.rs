//! Hyper-connections: several residual streams, of which each branch reads a weighted sum, and whose result is added to each.
//!
//! Inside a branch `x` is what it reads, then its result: the layers' residual factors keep nothing of the former.

use super::alt_up::dot;
use super::residual::{BranchBuffers, matmul, norm};
use super::state::Pass;
use crate::compute::activations::{RowSource, by_rows};
use crate::compute::weight::Weight;
use crate::config::{HyperConnections, StreamWeights};
use crate::model::{HyperWeights, Layer, NormWeights};

/// The streams, and how the branch that is computed is added to them.
#[derive(Default)]
pub(super) struct HyperStreams {
    pub all: Vec<f32>, // [rows, hc_mult, hidden_size]
    written: Vec<f32>, // [rows, hc_mult]
    normed: Vec<f32>,  // [rows, hc_mult, hidden_size]
    /// Products of the projections to the low rank and back.
    products: [Vec<f32>; 2],
}

impl HyperStreams {
    /// Every stream is the embedding.  // x [rows, hidden_size]
    pub fn start(&mut self, pass: Pass<'_>, x: &[f32]) {
        let Some(hyper) = pass.config.hyper_connections else { return };
        self.all.clear();
        for x in x.chunks_exact(pass.config.hidden_size) {
            (0..hyper.hc_mult).for_each(|_| self.all.extend_from_slice(x));
        }
    }

    /// x = the sum of the streams that a branch reads.  // x [rows, hidden_size]
    pub fn read(
        &mut self,
        pass: Pass<'_>,
        weights: Option<&HyperWeights>,
        x: &mut [f32],
        branch: &mut BranchBuffers,
    ) {
        let (Some(weights), Some(hyper)) = (weights, pass.config.hyper_connections) else { return };
        self.written.resize(pass.rows(x) * hyper.hc_mult, 0.0);
        match weights {
            HyperWeights::Sigmoid { matrix, base, scale } => {
                self.read_by_sigmoids(pass, hyper, [matrix, base, scale], x);
            }
            HyperWeights::LowRank { norm, down, up } => {
                self.read_by_channel(pass, hyper.hc_mult, norm, [down, up], x, branch);
            }
        }
    }

    fn read_by_sigmoids(
        &mut self,
        pass: Pass<'_>,
        hyper: HyperConnections,
        [matrix, base, scale]: [&[f32]; 3],
        x: &mut [f32],
    ) {
        let StreamWeights::Sigmoid { hc_magnitude, hc_eps } = hyper.weights else { return };
        let (hidden, count) = (pass.config.hidden_size, hyper.hc_mult);
        let (all, kinds) = (&self.all, scale.len());
        let mut out: Vec<_> =
            x.chunks_exact_mut(hidden).zip(self.written.chunks_exact_mut(count)).enumerate().collect();
        pass.pool.for_each(&mut out, |(row, (x, written))| {
            let streams = &all[*row * count * hidden..][..count * hidden];
            let square = dot(streams, streams) / streams.len() as f32;
            let inverse_rms = 1.0 / (square + pass.config.norm.eps()).sqrt();
            let gate = |kind: usize, stream: usize| {
                let at = kind * count + stream;
                let logit = dot(&matrix[at * streams.len()..], streams) * inverse_rms;
                sigmoid(logit * scale[kind] + base[at])
            };
            x.fill(0.0);
            for (stream, values) in streams.chunks_exact(hidden).enumerate() {
                pass.kernels.axpby(x, values, 1.0, gate(0, stream) + hc_eps);
            }
            if kinds > 1 {
                for (stream, written) in written.iter_mut().enumerate() {
                    *written = hc_magnitude * gate(1, stream) + hc_eps;
                }
            }
        });
    }

    /// x = mean(sigmoid(up(silu(down(normed) / hc_mult))) * normed) over the streams, where normed is each stream's norm.
    fn read_by_channel(
        &mut self,
        pass: Pass<'_>,
        count: usize,
        weights: &NormWeights,
        [down, up]: [&Weight; 2],
        x: &mut [f32],
        branch: &mut BranchBuffers,
    ) {
        let (hidden, kernels, pool, input) =
            (pass.config.hidden_size, pass.kernels, pass.pool, &mut branch.input);
        let (rows, width, rank) = (pass.rows(x), count * hidden, up.in_features());
        let Self { all, written, normed, products: [narrow, wide] } = self;
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

    /// Between a layer's two branches: adds the result of the first one, and x is what the second one reads.
    pub fn join(&mut self, pass: Pass<'_>, layer: &Layer, x: &mut [f32], buffers: &mut BranchBuffers) {
        let [attention, mlp] = branches(layer);
        self.write(pass, attention, x);
        self.read(pass, mlp, x, buffers);
    }

    /// Adds a branch's result to every stream.  // x [rows, hidden_size]
    pub fn write(&mut self, pass: Pass<'_>, weights: Option<&HyperWeights>, x: &[f32]) {
        let (Some(_), Some(hyper)) = (weights, pass.config.hyper_connections) else { return };
        let (hidden, count) = (pass.config.hidden_size, hyper.hc_mult);
        let written = &self.written;
        by_rows(pass.pool, &mut self.all, count * hidden, |row, streams| {
            let x = &x[row * hidden..][..hidden];
            for (stream, weight) in streams.chunks_exact_mut(hidden).zip(&written[row * count..]) {
                pass.kernels.axpby(stream, x, 1.0, *weight);
            }
        });
    }
}

/// The hyper-connections of a layer's two branches.
pub(super) fn branches(layer: &Layer) -> [Option<&HyperWeights>; 2] {
    let [attention, mlp] = match layer.hyper.as_deref() {
        None => return [None; 2],
        Some(both) => both,
    };
    [Some(attention), Some(mlp)]
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// out = the norm of each part of a row of the streams.  // streams, out [hc_mult * hidden_size]
pub(super) fn norm_groups(pass: Pass<'_>, streams: &[f32], weights: &NormWeights, out: &mut [f32]) {
    let hidden = pass.config.hidden_size;
    let parts = streams.chunks_exact(hidden).zip(out.chunks_exact_mut(hidden));
    for (stream, (values, out)) in parts.enumerate() {
        let at = stream * hidden..(stream + 1) * hidden;
        let (weight, bias) = (&weights.weight[at.clone()], &weights.bias[at]);
        norm(pass.config.norm, values, weight, bias, out, pass.kernels);
    }
}
