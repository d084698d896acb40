//! A block of attention and an MLP that layers share: it reads the stream concatenated with the embedding, and its
//! output is added to what the layer's recurrent mixer reads (Zamba 2; Glorioso et al. 2024,
//! <https://arxiv.org/abs/2411.15242>).

use super::parts::Adapter;
use crate::forward::mlp::{gate_panels, quantize_gated};
use crate::forward::residual::{BranchBuffers, matmul, norm, normed_input};
use crate::forward::state::{Pass, Run};
use crate::forward::step::{Attend, Flow, Step};
use crate::parts::{Layer, NormWeights};
use ropechat_kernels::compute::activations::{Activations, RowSource, by_rows};
use ropechat_kernels::compute::weight::Epilogue;
use std::cell::RefCell;

/// Buffers of a shared block.
#[derive(Default)]
pub(crate) struct Steps {
    /// The embeddings of the rows, which every block reads.  // [rows, hidden_size]
    embedded: Vec<f32>,
    /// What the recurrent mixer reads.  // [rows, hidden_size]
    sum: Vec<f32>,
    product: Vec<f32>, // [rows, padded gate and up]
    gated: Vec<f32>,   // [rows, intermediate_size]
}

impl Step for Steps {
    fn start(&mut self, flow: &mut Flow<'_>) {
        self.embedded.clone_from(flow.x);
    }

    /// sum = x + linear(mlp(norm(attention(norm([x, embedded]))))).
    fn attend_elsewhere(
        &mut self,
        pass: Pass<'_>,
        layer: &Layer,
        runs: &mut [Run<'_>],
        x: &[f32],
        branch: &mut BranchBuffers,
        attend: &mut Attend<'_>,
    ) -> Option<&[f32]> {
        let (block, attention) = (layer.mechanisms.shared_block.as_deref()?, layer.attention.as_ref()?);
        let Self { embedded, sum, product, gated } = self;
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
        let mut steps: Vec<Box<dyn Step + '_>> =
            adapter.map(|adapter| Box::new(Adapt(adapter)) as _).into_iter().collect();
        attend(runs, sum, branch, &mut steps);

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
        Some(sum)
    }
}

/// Corrects queries, keys and values.
struct Adapt<'a>(&'a Adapter);

impl Step for Adapt<'_> {
    fn after_projection(
        &mut self,
        pass: Pass<'_>,
        _: &Layer,
        _: &mut [Run<'_>],
        (qkv, stride): (&mut [f32], usize),
        input: &mut Activations,
    ) {
        adapt(pass, self.0, input, qkv, stride);
    }
}

/// product += up(down(input)), part by part; `input` is used for the latents.  // product [rows, stride]
fn adapt(pass: Pass<'_>, adapter: &Adapter, input: &mut Activations, product: &mut [f32], stride: usize) {
    let (rows, rank, latent_stride) = (input.rows(), adapter.rank, adapter.down.padded_out());
    let (mut latents, mut added, mut first) = (Vec::new(), Vec::new(), 0);
    matmul(pass, &adapter.down, input, &mut latents);
    for (part, (columns, up)) in adapter.columns.iter().zip(&adapter.ups).enumerate() {
        let columns = columns.unwrap_or(up.padded_out());
        let latent = |row: usize| &latents[row * latent_stride + part * rank..][..rank];
        input.quantize_rows(rows, rank, up.dtype(), pass.kernels, pass.pool, RowSource::Stored(&latent));
        matmul(pass, up, input, &mut added);
        by_rows(pass.pool, product, stride, |row, product| {
            pass.kernels.add(&mut product[first..][..columns], &added[row * up.padded_out()..][..columns]);
        });
        first += columns;
    }
}

thread_local! {
    /// One row of the stream and its embedding.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}
