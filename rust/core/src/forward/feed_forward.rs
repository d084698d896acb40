//! The MLP of a layer, in two parts: dense, a mixture of experts, or both.
//!
//! The first part reads the residual stream, the second adds to it. Where attention and the MLP are parallel branches,
//! attention is computed between the two.

use super::mlp::{down_proj, down_proj_result, gate_up_proj};
use super::moe::{MoeBuffers, dense_and_moe, experts};
use super::recurrent::Rows;
use super::residual::{BranchBuffers, add_result, add_scaled, normed_input};
use super::state::{Pass, Run};
use super::step::{Branch, Steps};
use crate::config::ResidualFactors;
use crate::model::Model;
use crate::parts::{DenseMlp, Layer, Mlp};
use ropechat_kernels::compute::phases::{Phase, lap};

/// What the first part leaves for the second.
#[derive(Default)]
pub(super) struct FeedForwardBuffers {
    gated: Vec<f32>, // [rows, intermediate_size]
    moe: MoeBuffers,
}

/// The gated rows of a dense MLP, the sum of the experts of a mixture.  // x [rows, hidden_size]
pub(super) fn start_feed_forward(
    pass: Pass<'_>,
    layer: &Layer,
    x: &[f32],
    branch: &mut BranchBuffers,
    buffers: &mut FeedForwardBuffers,
) {
    let FeedForwardBuffers { gated, moe } = buffers;
    let norm = layer.mlp_norm.as_ref();
    let mut dense = |mlp: &DenseMlp, branch: &mut BranchBuffers| {
        normed_input(pass, norm, mlp.gate_up_proj.input_type(), x, &mut branch.input);
        gate_up_proj(pass, mlp, &branch.input, gated);
    };
    match &layer.mlp {
        None => {}
        Some(Mlp::Dense(mlp)) => dense(mlp, branch),
        Some(Mlp::Moe(mlp)) => experts(pass, mlp, norm, x, branch, moe),
        Some(Mlp::DenseAndMoe(both)) => dense_and_moe(pass, both, norm, x, branch, moe),
        Some(Mlp::DenseAndMoeForNext(both)) => {
            experts(pass, &both.1, norm, x, branch, moe);
            lap(Phase::Experts);
            dense(&both.0, branch);
        }
    }
}

/// x += what the first part left, through down_proj where the MLP is dense.  // x [rows, hidden_size]
pub(super) fn finish_feed_forward(
    (pass, model): (Pass<'_>, &Model),
    layer: &Layer,
    runs: &mut [Run<'_>],
    branch: &mut BranchBuffers,
    (buffers, steps): (&mut FeedForwardBuffers, &mut Steps<'_>),
    x: &mut [f32],
) {
    let FeedForwardBuffers { gated, moe } = buffers;
    let (out_norm, factors) = (layer.mlp_out_norm.as_ref(), layer.spec.residual_factors[1]);
    let adding = steps.iter_mut().find(|step| step.adds_results(layer));
    let scales = layer.mlp_residual_scales.as_ref();
    let is_plain = scales.is_none() && adding.is_none();
    let result = match &layer.mlp {
        None => None,
        Some(Mlp::Dense(mlp)) if is_plain => {
            down_proj(pass, mlp, out_norm, factors, gated, branch, x);
            None
        }
        Some(Mlp::DenseAndMoeForNext(both)) => {
            down_proj(pass, &both.0, out_norm, factors, gated, branch, x);
            None
        }
        Some(Mlp::Dense(mlp)) => {
            let stride = down_proj_result(pass, mlp, gated, branch);
            Some(Rows { values: &branch.out, stride })
        }
        Some(Mlp::Moe(_) | Mlp::DenseAndMoe(_)) => {
            Some(Rows { values: moe.sum(), stride: pass.config.hidden_size })
        }
    };
    if let Some(result) = result {
        match (scales, adding) {
            (Some(scales), _) => add_scaled(pass, scales, result.values, result.stride, x),
            (None, Some(step)) => step.add_result(pass, layer, Branch::Mlp, runs, result, x),
            (None, None) => add_result(pass, out_norm, factors, result.values, result.stride, x),
        }
        lap(if let Some(Mlp::Dense(_)) = layer.mlp { Phase::DownProj } else { Phase::Experts });
    }
    let before = layer.index.checked_sub(1).and_then(|before| model.layers[before].mlp.as_ref());
    if let Some(Mlp::DenseAndMoeForNext(_)) = before {
        add_result(pass, None, ResidualFactors::ONE, moe.sum(), pass.config.hidden_size, x);
    }
}
