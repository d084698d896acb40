//! Mixers with a recurrent state: a projection, a causal convolution over the last positions, for linear attention a
//! matrix per head that every position updates, and the output projection back to the residual stream.
//!
//! Law 1: every position's operations and their order are its own, however the text is cut into runs. Work is shared over
//! rows where positions do not depend on each other, else over sequences and heads.

mod conv;
mod linear;

use super::residual::{BranchBuffers, add_residual, matmul, normed_input};
use super::state::{Pass, Run};
use crate::compute::activations::RowSource;
use crate::config::Recurrent;
use crate::model::RecurrentWeights;
use conv::{Rows, convolve};

/// Buffers of recurrent mixers.
#[derive(Default)]
pub(super) struct RecurrentBuffers {
    projected: Vec<f32>, // [rows, padded in_width]
    /// B * x of a short convolution.  // [rows, hidden_size]
    gated: Vec<f32>,
    mixed: Vec<f32>, // [rows, channels]
    /// Outputs of linear attention, per run: [heads, rows, value_dim].
    out: Vec<f32>,
}

/// Everything but the output projection, which [`add_mixed`] does: so that attention of the same layer can read x as it came.
pub(super) fn mix(
    pass: Pass<'_>,
    weights: &RecurrentWeights,
    runs: &mut [Run<'_>],
    x: &[f32],
    branch: &mut BranchBuffers,
    buffers: &mut RecurrentBuffers,
) {
    let Some(recurrent) = &pass.config.recurrent else { return };
    let RecurrentBuffers { projected, gated, mixed, out } = buffers;
    normed_input(pass, weights.input_norm.as_ref(), weights.in_proj.dtype(), x, &mut branch.input);
    matmul(pass, &weights.in_proj, &branch.input, projected);
    let (projected, stride) = (&projected[..], weights.in_proj.padded_out());
    match recurrent {
        Recurrent::ShortConv { .. } => {
            let width = pass.config.hidden_size;
            conv::gate_input(pass, projected, stride, width, gated);
            convolve(pass, weights, runs, Rows { values: gated, stride: width }, width, None, mixed);
        }
        Recurrent::Linear(linear) => {
            let input = Rows { values: projected, stride };
            let silu = Some(crate::config::Activation::Silu);
            convolve(pass, weights, runs, input, linear.conv_width(), silu, mixed);
            linear::attend(pass, linear, weights, runs, input, mixed, out);
        }
    }
}

/// x += out_proj(what [`mix`] left).  // x [rows, hidden_size]
pub(super) fn add_mixed(
    pass: Pass<'_>,
    weights: &RecurrentWeights,
    runs: &[Run<'_>],
    x: &mut [f32],
    branch: &mut BranchBuffers,
    buffers: &RecurrentBuffers,
) {
    let Some(recurrent) = &pass.config.recurrent else { return };
    let RecurrentBuffers { projected, mixed, out, .. } = buffers;
    let (rows, stride, dtype) = (pass.rows(x), weights.in_proj.padded_out(), weights.out_proj.dtype());
    let (kernels, pool) = (pass.kernels, pass.pool);
    let projected = Rows { values: projected, stride };
    match recurrent {
        Recurrent::ShortConv { .. } => {
            let width = pass.config.hidden_size;
            let source = |row: usize, out: &mut [f32]| {
                out.copy_from_slice(&mixed[row * width..][..width]);
                kernels.mul(out, &projected.row(row)[width..2 * width]);
            };
            branch.input.quantize_rows(rows, width, dtype, kernels, pool, RowSource::Computed(&source));
        }
        Recurrent::Linear(linear) => {
            let places = linear::places(runs);
            let source = |row: usize, into: &mut [f32]| {
                linear::gated_output(pass, linear, weights, places[row], out, projected.row(row), into);
            };
            let width = linear.values_width();
            branch.input.quantize_rows(rows, width, dtype, kernels, pool, RowSource::Computed(&source));
        }
    }
    add_residual(pass, &weights.out_proj, weights.out_norm.as_ref(), weights.factors, branch, x);
}
