//! Hyper-connections: several residual streams, of which each branch reads a weighted sum, and whose result is added to each.
//!
//! Inside a branch `x` is what it reads, then its result: the layers' residual factors keep nothing of the former.

use super::alt_up::dot;
use super::state::Pass;
use crate::compute::activations::by_rows;
use crate::model::{HyperWeights, Layer};

/// The streams, and how the branch that is computed is added to them.
#[derive(Default)]
pub(super) struct HyperStreams {
    all: Vec<f32>,     // [rows, hc_mult, hidden_size]
    written: Vec<f32>, // [rows, hc_mult]
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
    pub fn read(&mut self, pass: Pass<'_>, weights: Option<&HyperWeights>, x: &mut [f32]) {
        let (Some(weights), Some(hyper)) = (weights, pass.config.hyper_connections) else { return };
        let (hidden, count) = (pass.config.hidden_size, hyper.hc_mult);
        let rows = pass.rows(x);
        let (all, kinds) = (&self.all, weights.scale.len());
        self.written.resize(rows * count, 0.0);
        let mut out: Vec<_> =
            x.chunks_exact_mut(hidden).zip(self.written.chunks_exact_mut(count)).enumerate().collect();
        pass.pool.for_each(&mut out, |(row, (x, written))| {
            let streams = &all[*row * count * hidden..][..count * hidden];
            let square = dot(streams, streams) / streams.len() as f32;
            let inverse_rms = 1.0 / (square + pass.config.norm.eps()).sqrt();
            let gate = |kind: usize, stream: usize| {
                let at = kind * count + stream;
                let logit = dot(&weights.matrix[at * streams.len()..], streams) * inverse_rms;
                1.0 / (1.0 + (-(logit * weights.scale[kind] + weights.base[at])).exp())
            };
            x.fill(0.0);
            for (stream, values) in streams.chunks_exact(hidden).enumerate() {
                pass.kernels.axpby(x, values, 1.0, gate(0, stream) + hyper.hc_eps);
            }
            if kinds > 1 {
                for (stream, written) in written.iter_mut().enumerate() {
                    *written = hyper.hc_magnitude * gate(1, stream) + hyper.hc_eps;
                }
            }
        });
    }

    /// Between a layer's two branches: adds the result of the first one, and x is what the second one reads.
    pub fn join(&mut self, pass: Pass<'_>, layer: &Layer, x: &mut [f32]) {
        let [attention, mlp] = branches(layer);
        self.write(pass, attention, x);
        self.read(pass, mlp, x);
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
