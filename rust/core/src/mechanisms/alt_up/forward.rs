//! AltUp and LAuReL (Gemma 3n): several residual streams, of which a layer computes one and predicts and corrects the
//! others (Baykal et al. 2023, <https://arxiv.org/abs/2301.13310>), and a low-rank branch beside attention (Menghani et al.
//! 2024, <https://arxiv.org/abs/2411.07501>).

use super::parts::InLayer;
use crate::forward::residual::{BranchBuffers, dot, matmul, norm_or_copy};
use crate::forward::state::{Pass, Run};
use crate::forward::step::{Flow, Step};
use crate::parts::Layer;
use ropechat_kernels::compute::activations::{RowSource, by_rows};
use ropechat_kernels::compute::weight::Weight;
use ropechat_kernels::kernel::Kernels;

/// The streams between two layers; inside a layer `x` is the one that it computes.
#[derive(Default)]
pub(crate) struct Steps {
    all: Vec<Vec<f32>>, // [num_inputs][rows, hidden_size]
    laurel: Vec<f32>,   // [rows, hidden_size]
    delta: Vec<f32>,    // [rows, hidden_size]
}

impl Step for Steps {
    /// The embedding, and its projections at the same magnitude.
    fn start(&mut self, flow: &mut Flow<'_>) {
        let Flow { pass, model, x, branch, .. } = flow;
        let Some(outside) = &model.outside.mechanisms.alt_up else { return };
        let [projections, _] = &outside.projections;
        self.all.resize(projections.len() + 1, Vec::new());
        self.all[0].clear();
        self.all[0].extend_from_slice(x);
        for (projection, stream) in projections.iter().zip(&mut self.all[1..]) {
            project(*pass, projection, x, x, stream, branch);
        }
    }

    /// Predicts all streams; x is the one that the layer computes. The branch parallel to attention reads its norm.
    fn enter_layer(&mut self, flow: &mut Flow<'_>, layer: &Layer, _: &mut [Run<'_>]) {
        let Flow { pass, x, branch, .. } = flow;
        let pass = *pass;
        let (Some(weights), Some(alt_up)) = (&layer.mechanisms.alt_up, pass.config.mechanisms.alt_up) else {
            return;
        };
        let (hidden, kernels, active) = (pass.config.hidden_size, pass.kernels, alt_up.altup_active_idx);
        let inputs = self.all.len();
        for row in 0..self.all[0].len() / hidden {
            let at = row * hidden..(row + 1) * hidden;
            let modalities = weights.modalities(pass, &self.all[active][at.clone()]);
            let before: Vec<Vec<f32>> = self.all.iter().map(|stream| stream[at.clone()].to_vec()).collect();
            for (to, stream) in self.all.iter_mut().enumerate() {
                for (from, before) in before.iter().enumerate() {
                    let coefficient =
                        dot(&weights.prediction_coefs[(to * inputs + from) * inputs..], &modalities);
                    kernels.axpby(&mut stream[at.clone()], before, 1.0, coefficient);
                }
            }
        }
        x.clone_from(&self.all[active]);
        self.laurel(pass, layer, weights, x, branch);
    }

    /// x = (x + laurel) / sqrt 2, after attention was added.
    fn enter_mlp(&mut self, flow: &mut Flow<'_>, _: &Layer) {
        let half = std::f32::consts::FRAC_1_SQRT_2;
        flow.pass.kernels.axpby(flow.x, &self.laurel, half, half);
    }

    /// Corrects all streams by what the layer computed, and adds its part of the second embedding to all but the first.
    fn leave_layer(&mut self, flow: &mut Flow<'_>, layer: &Layer, _: bool) {
        let Flow { pass, model, x, per_layer, branch, .. } = flow;
        let pass = *pass;
        let (Some(weights), Some(alt_up)) = (&layer.mechanisms.alt_up, pass.config.mechanisms.alt_up) else {
            return;
        };
        let (hidden, kernels, active) = (pass.config.hidden_size, pass.kernels, alt_up.altup_active_idx);
        let count = self.all.len();
        for (row, x) in x.chunks_exact(hidden).enumerate() {
            let at = row * hidden..(row + 1) * hidden;
            let modalities = weights.modalities(pass, x);
            let mut innovation = x.to_vec();
            kernels.axpby(&mut innovation, &self.all[active][at.clone()], 1.0, -1.0);
            for (to, stream) in self.all.iter_mut().enumerate() {
                let coefficient = 1.0 + dot(&weights.correction_coefs[to * count..], &modalities);
                kernels.axpby(&mut stream[at.clone()], &innovation, 1.0, coefficient);
            }
        }
        let mut first = self.all[active].clone();
        if alt_up.altup_correct_scale {
            for row in first.chunks_exact_mut(hidden) {
                row.iter_mut().zip(&weights.correct_output_scale).for_each(|(x, scale)| *x *= scale);
            }
        }
        self.delta.clear();
        self.delta.resize(x.len(), 0.0);
        per_layer.add(pass, layer, Some(&first), branch, &mut self.delta);
        for stream in &mut self.all[1..] {
            kernels.add(stream, &self.delta);
        }
        x.clone_from(&self.all[active]);
        if let Some(outside) = &model.outside.mechanisms.alt_up
            && layer.index + 1 == model.layers.len()
        {
            self.finish(pass, &outside.projections[1], x, branch);
        }
    }

    fn adds_per_layer_inputs(&self) -> bool {
        true
    }
}

impl Steps {
    /// laurel = n + norm(right(left(n))) with n = norm(x).
    fn laurel(
        &mut self,
        pass: Pass<'_>,
        layer: &Layer,
        weights: &InLayer,
        x: &[f32],
        branch: &mut BranchBuffers,
    ) {
        let (hidden, kernels, pool) = (pass.config.hidden_size, pass.kernels, pass.pool);
        let rows = pass.rows(x);
        self.laurel.resize(x.len(), 0.0);
        by_rows(pool, &mut self.laurel, hidden, |row, out| {
            norm_or_copy(
                pass,
                &x[row * hidden..][..hidden],
                layer.attention.as_ref().and_then(|attention| attention.attention_norm.as_ref()),
                out,
            );
        });
        let normed = &self.laurel;
        let stored = |row: usize| &normed[row * hidden..][..hidden];
        let InLayer { laurel_left: left, laurel_right: right, .. } = weights;
        branch.input.quantize_rows(rows, hidden, left.dtype(), kernels, pool, RowSource::Stored(&stored));
        let mut narrow = Vec::new();
        matmul(pass, left, &branch.input, &mut narrow);
        let (stride, rank) = (left.padded_out(), right.in_features());
        let of_rank = |row: usize| &narrow[row * stride..][..rank];
        branch.input.quantize_rows(rows, rank, right.dtype(), kernels, pool, RowSource::Stored(&of_rank));
        matmul(pass, right, &branch.input, &mut branch.out);
        let (out, stride) = (&branch.out, right.padded_out());
        by_rows(pool, &mut self.laurel, hidden, |row, laurel| {
            let mut normed = vec![0.0; hidden];
            norm_or_copy(pass, &out[row * stride..][..hidden], Some(&weights.laurel_norm), &mut normed);
            kernels.add(laurel, &normed);
        });
    }

    /// x = the mean of the first stream and of the others' projections at its magnitude.
    fn finish(&self, pass: Pass<'_>, projections: &[Weight], x: &mut Vec<f32>, branch: &mut BranchBuffers) {
        x.clone_from(&self.all[0]);
        let mut projected = Vec::new();
        for (projection, stream) in projections.iter().zip(&self.all[1..]) {
            project(pass, projection, stream, &self.all[0], &mut projected, branch);
            pass.kernels.add(x, &projected);
        }
        pass.kernels.scale(x, 1.0 / self.all.len() as f32);
    }
}

impl InLayer {
    /// tanh(modality_router(norm(x) / hidden_size)).  // [num_inputs]
    fn modalities(&self, pass: Pass<'_>, x: &[f32]) -> Vec<f32> {
        let mut normed = vec![0.0; x.len()];
        norm_or_copy(pass, x, Some(&self.router_norm), &mut normed);
        self.modality_router.chunks_exact(x.len()).map(|row| dot(row, &normed).tanh()).collect()
    }
}

/// out = projection(from), with the magnitude that each row of `like` has.  // all [rows, hidden_size]
fn project(
    pass: Pass<'_>,
    projection: &Weight,
    from: &[f32],
    like: &[f32],
    out: &mut Vec<f32>,
    branch: &mut BranchBuffers,
) {
    let (hidden, kernels, pool): (usize, Kernels, _) = (pass.config.hidden_size, pass.kernels, pass.pool);
    let stored = |row: usize| &from[row * hidden..][..hidden];
    let rows = pass.rows(from);
    branch.input.quantize_rows(rows, hidden, projection.dtype(), kernels, pool, RowSource::Stored(&stored));
    matmul(pass, projection, &branch.input, &mut branch.out);
    let (projected, stride) = (&branch.out, projection.padded_out());
    let mean_square = |row: &[f32]| row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / row.len() as f64;
    out.resize(from.len(), 0.0);
    by_rows(pool, out, hidden, |row, out| {
        out.copy_from_slice(&projected[row * stride..][..hidden]);
        let target = mean_square(&like[row * hidden..][..hidden]).sqrt();
        // Not `max`, which would drop NaN.
        let own = mean_square(out);
        let own = if own < 1e-5 { 1e-5 } else { own };
        kernels.scale(out, (target / own.sqrt()) as f32);
    });
}
