//! The two ends of a branch of the residual stream: the norm before it, and the addition of its result.

use super::state::Pass;
use crate::config::{Norm, ResidualFactors};
use crate::parts::{NormGate, NormWeights, ResidualScales};
use ropechat_kernels::compute::activations::{Activations, InputType, RowSource, by_rows};
use ropechat_kernels::compute::phases::{Phase, lap};
use ropechat_kernels::compute::weight::{Epilogue, Weight};
use ropechat_kernels::kernel::Kernels;
use std::cell::RefCell;

/// The buffers between a branch and the residual stream; every branch of every layer uses the same.
#[derive(Default)]
pub(crate) struct BranchBuffers {
    /// The next matmul's input.
    pub input: Activations,
    /// The branch's result where it is not added right away.  // [rows, hidden_size up to whole panels]
    pub out: Vec<f32>,
}

/// input = norm(x), made for such weights.  // x [rows, hidden_size]
pub(crate) fn normed_input(
    pass: Pass<'_>,
    weights: Option<&NormWeights>,
    input_type: impl Into<InputType>,
    x: &[f32],
    input: &mut Activations,
) {
    let hidden_size = pass.config.hidden_size;
    input.quantize_rows(
        pass.rows(x),
        hidden_size,
        input_type,
        pass.kernels,
        pass.pool,
        RowSource::Computed(&|row, out| {
            norm_or_copy(pass, &x[row * hidden_size..][..hidden_size], weights, out);
        }),
    );
    lap(Phase::Norm);
}

/// x = norm(x), where the layer has a norm of the stream.  // x [rows, hidden_size]
pub(crate) fn norm_stream(pass: Pass<'_>, weights: Option<&NormWeights>, x: &mut [f32]) {
    let Some(NormWeights { weight, bias, .. }) = weights else { return };
    by_rows(pass.pool, x, pass.config.hidden_size, |_, x| {
        SCRATCH.with_borrow_mut(|row| {
            row.clear();
            row.extend_from_slice(x);
            norm(pass.config.norm, row, weight, bias, x, pass.kernels);
        });
    });
}

/// x += residual_multiplier * norm(weight(branch.input)), and the layer's factors.  // x [rows, hidden_size]
pub(crate) fn add_residual(
    pass: Pass<'_>,
    weight: &Weight,
    out_norm: Option<&NormWeights>,
    factors: ResidualFactors,
    branch: &mut BranchBuffers,
    x: &mut [f32],
) {
    let BranchBuffers { input, out } = branch;
    if out_norm.is_none() && pass.config.residual_multiplier == 1.0 && factors == ResidualFactors::ONE {
        return weight.matmul(input, pass.kernels, pass.pool, Epilogue::AddTo(x, pass.config.hidden_size));
    }
    matmul(pass, weight, input, out);
    add_result(pass, out_norm, factors, out, weight.padded_out(), x);
}

/// x += residual_multiplier * norm(result), and the layer's factors.  // result [rows, stride], x [rows, hidden_size]
pub(crate) fn add_result(
    pass: Pass<'_>,
    out_norm: Option<&NormWeights>,
    factors: ResidualFactors,
    result: &[f32],
    stride: usize,
    x: &mut [f32],
) {
    let hidden_size = pass.config.hidden_size;
    let branch = factors.branch * pass.config.residual_multiplier;
    by_rows(pass.pool, x, hidden_size, |row, x| {
        SCRATCH.with_borrow_mut(|normed| {
            normed.resize(hidden_size, 0.0);
            norm_or_copy(pass, &result[row * stride..][..hidden_size], out_norm, normed);
            pass.kernels.axpby(x, normed, factors.stream, branch);
        });
    });
}

/// x = stream * x + branch * result + bias, by channel.  // result [rows, stride], x [rows, hidden_size]
pub(crate) fn add_scaled(
    pass: Pass<'_>,
    scales: &ResidualScales,
    result: &[f32],
    stride: usize,
    x: &mut [f32],
) {
    let hidden_size = pass.config.hidden_size;
    by_rows(pass.pool, x, hidden_size, |row, x| {
        pass.kernels.mul(x, &scales.stream);
        pass.kernels.mul_add(x, &scales.branch, &result[row * stride..][..hidden_size]);
        pass.kernels.add(x, &scales.bias);
    });
}

thread_local! {
    /// One row of a branch's result, normed.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// out = weight(input).  // out [rows, padded_out]
pub(crate) fn matmul(pass: Pass<'_>, weight: &Weight, input: &Activations, out: &mut Vec<f32>) {
    out.resize(input.rows() * weight.padded_out(), 0.0);
    weight.matmul(input, pass.kernels, pass.pool, Epilogue::Store(out));
}

/// out = norm(x), or x where the model has no norm.  // [hidden_size]
pub(crate) fn norm_or_copy(pass: Pass<'_>, x: &[f32], weights: Option<&NormWeights>, out: &mut [f32]) {
    match weights {
        None => out.copy_from_slice(x),
        Some(NormWeights { weight, bias, gate }) => {
            norm(pass.config.norm, x, weight, bias, out, pass.kernels);
            if let Some(gate) = gate {
                apply_norm_gate(gate, out);
            }
        }
    }
}

/// row *= sigmoid(up(silu(down(row)))).  // row [n]
fn apply_norm_gate(gate: &NormGate, row: &mut [f32]) {
    let dot = |weights: &[f32], x: &[f32]| weights.iter().zip(x).map(|(weight, x)| weight * x).sum::<f32>();
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let narrow: Vec<f32> = gate.down.chunks_exact(row.len()).map(|weights| dot(weights, row)).collect();
    let narrow: Vec<f32> = narrow.into_iter().map(|x| x * sigmoid(x)).collect();
    for (x, weights) in row.iter_mut().zip(gate.up.chunks_exact(narrow.len())) {
        *x *= sigmoid(dot(weights, &narrow));
    }
}

/// The normalization of one row.  // all [n]
pub(crate) fn norm(kind: Norm, x: &[f32], weight: &[f32], bias: &[f32], out: &mut [f32], kernels: Kernels) {
    match kind {
        Norm::RmsNorm { eps } => kernels.rms_norm(x, weight, eps, out),
        Norm::LayerNorm { eps } => kernels.layer_norm(x, weight, bias, eps, out),
    }
}

/// out = the norm of each part of a row of the streams.  // streams, out [hc_mult * hidden_size]
pub(crate) fn norm_groups(pass: Pass<'_>, streams: &[f32], weights: &NormWeights, out: &mut [f32]) {
    let hidden = pass.config.hidden_size;
    let parts = streams.chunks_exact(hidden).zip(out.chunks_exact_mut(hidden));
    for (stream, (values, out)) in parts.enumerate() {
        let at = stream * hidden..(stream + 1) * hidden;
        let (weight, bias) = (&weights.weight[at.clone()], &weights.bias[at]);
        norm(pass.config.norm, values, weight, bias, out, pass.kernels);
    }
}

/// The product of the leading values.
pub(crate) fn dot(row: &[f32], x: &[f32]) -> f32 {
    row.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}
