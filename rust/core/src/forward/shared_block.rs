//! A block of attention and an MLP that layers share: it reads the stream concatenated with the embedding, and its
//! output is added to what the layer's recurrent mixer reads (Zamba 2; Glorioso et al. 2024,
//! <https://arxiv.org/abs/2411.15242>).

use super::attention::{AttentionBuffers, attend_input};
use super::mlp::{gate_panels, quantize_gated};
use super::residual::{BranchBuffers, adapt, matmul, norm, normed_input};
use super::rope::RopeAngles;
use super::state::{Pass, Run};
use crate::parts::{AttentionLayer, NormWeights, SharedBlockWeights};
use ropechat_kernels::compute::activations::{RowSource, by_rows};
use ropechat_kernels::compute::weight::Epilogue;
use std::cell::RefCell;

/// Buffers of a shared block.
#[derive(Default)]
pub(super) struct SharedBlockBuffers {
    /// The embeddings of the rows, which every block reads.  // [rows, hidden_size]
    pub embedded: Vec<f32>,
    /// What the recurrent mixer reads.  // [rows, hidden_size]
    pub sum: Vec<f32>,
    product: Vec<f32>, // [rows, padded gate and up]
    gated: Vec<f32>,   // [rows, intermediate_size]
}

/// sum = x + linear(mlp(norm(attention(norm([x, embedded]))))).  // x [rows, hidden_size]
pub(super) fn shared_block(
    pass: Pass<'_>,
    (block, attention): (&SharedBlockWeights, &AttentionLayer),
    runs: &mut [Run<'_>],
    angles: &[RopeAngles],
    x: &[f32],
    branch: &mut BranchBuffers,
    buffers: (&mut SharedBlockBuffers, &mut AttentionBuffers),
) {
    let (SharedBlockBuffers { embedded, sum, product, gated }, of_attention) = buffers;
    let (rows, hidden, kernels, pool) = (pass.rows(x), pass.config.hidden_size, pass.kernels, pass.pool);
    let NormWeights { weight, bias, .. } = &block.norm;
    let both = |row: usize, out: &mut [f32]| {
        let at = row * hidden..(row + 1) * hidden;
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            scratch.extend_from_slice(&x[at.clone()]);
            scratch.extend_from_slice(&embedded[at]);
            norm(pass.config.norm, scratch, weight, bias, out, kernels);
        });
    };
    let dtype = attention.projection.dtype();
    branch.input.quantize_rows(rows, 2 * hidden, dtype, kernels, pool, RowSource::Computed(&both));
    sum.clear();
    sum.resize(rows * hidden, 0.0);
    let adapter = block.attention_adapter.as_ref();
    attend_input(pass, attention, adapter, runs, angles, sum, branch, of_attention);

    let mlp = &block.mlp;
    let BranchBuffers { input, out } = branch;
    normed_input(pass, Some(&block.mlp_norm), mlp.gate_up_proj.dtype(), sum, input);
    matmul(pass, &mlp.gate_up_proj, input, product);
    let stride = mlp.gate_up_proj.padded_out();
    adapt(pass, &block.mlp_adapter, input, product, stride);
    gated.resize(rows * mlp.intermediate_size, 0.0);
    by_rows(pool, gated, mlp.intermediate_size, |row, gated| {
        gate_panels(kernels, mlp.activation(), &product[row * stride..][..stride], gated);
    });
    quantize_gated(pass, mlp, rows, gated, input);
    matmul(pass, &mlp.down_proj, input, out);
    let stored = |row: usize| &out[row * mlp.down_proj.padded_out()..][..hidden];
    input.quantize_rows(rows, hidden, block.linear.dtype(), kernels, pool, RowSource::Stored(&stored));
    sum.copy_from_slice(x);
    block.linear.matmul(input, kernels, pool, Epilogue::AddTo(sum, hidden));
}

thread_local! {
    /// One row of the stream and its embedding.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}
