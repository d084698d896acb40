//! Mixers with a recurrent state: a projection, a causal convolution over the last positions, a state per head or channel
//! that every position updates, and the output projection back to the residual stream.
//!
//! Law 1: every position's operations and their order do not depend on how the text is split into runs. Work is shared
//! over rows where positions do not depend on each other, else over sequences and heads.

pub(crate) mod conv;
mod heads;
mod lightning;
mod linear;
mod rg_lru;
mod selective_scan;

use super::residual::{BranchBuffers, add_residual, matmul, normed_input};
use super::state::{Pass, Run};
use crate::config::{Activation, Recurrent};
use crate::parts::RecurrentWeights;
pub(crate) use conv::{Rows, Source, Window, convolve, keep_inputs};
use heads::HeadOutputs;
use ropechat_kernels::compute::activations::RowSource;

/// Buffers of recurrent mixers.
#[derive(Default)]
pub(crate) struct RecurrentBuffers {
    projected: Vec<f32>, // [rows, padded in_width]
    /// B * x of a short convolution.  // [rows, hidden_size]
    gated: Vec<f32>,
    mixed: Vec<f32>, // [rows, channels]
    /// Products of the matrices between the input and the output projection.
    inner: [Vec<f32>; 2],
    /// Outputs of heads with a state, per run: [heads, rows, width].
    out: Vec<f32>,
}

/// Everything but the output projection, which [`add_mixed`] does: so that attention of the same layer can read x as it came.
pub(crate) fn mix(
    pass: Pass<'_>,
    weights: &RecurrentWeights,
    runs: &mut [Run<'_>],
    x: &[f32],
    branch: &mut BranchBuffers,
    buffers: &mut RecurrentBuffers,
) {
    let Some(recurrent) = &pass.config.recurrent else { return };
    let RecurrentBuffers { projected, gated, mixed, inner, out } = buffers;
    normed_input(pass, weights.input_norm.as_ref(), weights.in_proj.dtype(), x, &mut branch.input);
    matmul(pass, &weights.in_proj, &branch.input, projected);
    let input = Rows { values: projected, stride: weights.in_proj.padded_out() };
    match recurrent {
        Recurrent::ShortConv { .. } => {
            let width = pass.config.hidden_size;
            conv::gate_input(pass, input.values, input.stride, width, gated);
            convolve(pass, weights.into(), runs, Rows { values: gated, stride: width }, width, None, mixed);
        }
        Recurrent::Window { .. } => {}
        Recurrent::Linear(linear) if linear.stored_block().is_some() => {
            lightning::attend(pass, linear, weights, runs, input, mixed, out);
        }
        Recurrent::Linear(linear) => {
            linear::expand_latents(pass, linear, weights, input, &mut branch.input, inner);
            let activation = Some(linear.conv_activation);
            convolve(pass, weights.into(), runs, input, linear.conv_width(), activation, mixed);
            linear::attend(
                pass,
                linear,
                weights,
                runs,
                linear::inputs(linear, weights, input, inner),
                mixed,
                out,
            );
        }
        Recurrent::SelectiveScan(scan) => {
            convolve(pass, weights.into(), runs, input, scan.width, Some(scan.conv_activation), mixed);
            selective_scan::prepare(pass, scan, weights, mixed, &mut branch.input, inner);
            selective_scan::scan(pass, scan, weights, runs, mixed, inner, out);
        }
        Recurrent::RgLru(unit) => {
            convolve(pass, weights.into(), runs, input, unit.width, None, mixed);
            rg_lru::gate(pass, unit, weights, runs, mixed, &mut branch.input, inner);
            rg_lru::scan(pass, unit, weights, runs, mixed, &inner[1], out);
        }
    }
}

/// x += out_proj(what [`mix`] left).  // x [rows, hidden_size]
pub(crate) fn add_mixed(
    pass: Pass<'_>,
    weights: &RecurrentWeights,
    runs: &[Run<'_>],
    x: &mut [f32],
    branch: &mut BranchBuffers,
    buffers: &RecurrentBuffers,
) {
    let Some(recurrent) = &pass.config.recurrent else { return };
    let RecurrentBuffers { projected, mixed, inner, out, .. } = buffers;
    let (rows, kernels) = (pass.rows(x), pass.kernels);
    let projected = Rows { values: projected, stride: weights.in_proj.padded_out() };
    let mut quantize = |width: usize, source: &(dyn Fn(usize, &mut [f32]) + Sync)| {
        let dtype = weights.out_proj.dtype();
        branch.input.quantize_rows(rows, width, dtype, kernels, pass.pool, RowSource::Computed(source));
    };
    // The output of channels by themselves, gated by the other half of the projection.
    let gate_channels = |outputs: &HeadOutputs<'_>, activation, row: usize, into: &mut [f32]| {
        outputs.gather(row, into);
        let (width, mut gated) = (into.len(), vec![0.0; into.len()]);
        kernels.gate(activation, &projected.row(row)[width..2 * width], into, &mut gated);
        into.copy_from_slice(&gated);
    };
    match recurrent {
        Recurrent::Window { .. } => return,
        Recurrent::ShortConv { .. } => {
            let width = pass.config.hidden_size;
            quantize(width, &|row, out| {
                out.copy_from_slice(&mixed[row * width..][..width]);
                kernels.mul(out, &projected.row(row)[width..2 * width]);
            });
        }
        Recurrent::Linear(linear) => {
            let outputs = HeadOutputs::new(runs, linear::sizes(linear), out);
            let inputs = linear::inputs(linear, weights, projected, inner);
            quantize(linear.values_width(), &|row, into| {
                linear::gated_output(pass, linear, weights, &outputs, row, inputs.gate(row), into);
            });
        }
        Recurrent::SelectiveScan(scan) => {
            let outputs = HeadOutputs::new(runs, selective_scan::sizes(scan), out);
            quantize(scan.width, &|row, into| gate_channels(&outputs, Activation::Silu, row, into));
        }
        Recurrent::RgLru(unit) => {
            let outputs = HeadOutputs::new(runs, rg_lru::sizes(unit), out);
            quantize(unit.width, &|row, into| gate_channels(&outputs, unit.activation, row, into));
        }
    }
    add_residual(pass, &weights.out_proj, weights.out_norm.as_ref(), weights.factors, branch, x);
}
