//! From rows of the residual stream to logits.

use super::residual::{BranchBuffers, norm, norm_or_copy};
use super::state::{Compute, Pass};
use super::workspace::Workspace;
use crate::config::HeadTransform;
use crate::model::Model;
use crate::parts::NormWeights;
use ropechat_kernels::compute::activations::{RowSource, by_rows};
use ropechat_kernels::compute::phases::{Phase, lap};
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::compute::weight::Epilogue;
use ropechat_kernels::kernel::Kernels;
use std::ops::Range;

/// The logits of some rows of the residual stream.  // logits [rows.len(), model.padded_vocab()]
pub fn lm_head(
    model: &Model,
    rows: &[usize],
    work: &mut Workspace,
    logits: &mut Vec<f32>,
    compute: Compute<'_>,
) {
    let (pass, weight) = (Pass::new(model, compute, &[]), model.lm_head());
    let Workspace { x, branch: BranchBuffers { input, out: transformed, .. }, .. } = work;
    let hidden_size = model.config.hidden_size;
    let final_norm = model.config.final_norm.unwrap_or(model.config.norm);
    let normed = |r: usize, out: &mut [f32]| {
        let x = &x[rows[r] * hidden_size..][..hidden_size];
        match &model.outside.norm {
            None => out.copy_from_slice(x),
            Some(NormWeights { weight, bias, .. }) => norm(final_norm, x, weight, bias, out, pass.kernels),
        }
    };
    let stride = match (&model.outside.head_transform, model.config.head_transform) {
        (Some((dense, _)), HeadTransform::DenseAndNorm { activation, .. }) => {
            let (kernels, pool) = (pass.kernels, pass.pool);
            input.quantize_rows(
                rows.len(),
                hidden_size,
                dense.dtype(),
                kernels,
                pool,
                RowSource::Computed(&normed),
            );
            transformed.resize(rows.len() * dense.padded_out(), 0.0);
            let epilogue = Epilogue::Activate(activation, transformed, dense.padded_out());
            dense.matmul(input, kernels, pool, epilogue);
            dense.padded_out()
        }
        _ => 0,
    };
    input.quantize_rows(
        rows.len(),
        hidden_size,
        weight.dtype(),
        pass.kernels,
        pass.pool,
        RowSource::Computed(&|r, out| match &model.outside.head_transform {
            None => normed(r, out),
            Some((_, norm)) => norm_or_copy(pass, &transformed[r * stride..][..hidden_size], Some(norm), out),
        }),
    );
    lap(Phase::Norm);
    logits.resize(rows.len() * model.padded_vocab(), 0.0);
    weight.matmul(input, pass.kernels, pass.pool, Epilogue::Store(logits));
    scale_and_cap(pass, logits, model.padded_vocab());
    lap(Phase::LmHead);
}

/// The hidden states that the layer for multi-token prediction reads: rows of the residual stream after the final
/// norm.  // [rows.len(), hidden_size]
pub fn hidden_states(
    model: &Model,
    rows: Range<usize>,
    work: &Workspace,
    kernels: Kernels,
    pool: &Pool,
) -> Vec<f32> {
    let (width, final_norm) =
        (model.config.hidden_size, model.config.final_norm.unwrap_or(model.config.norm));
    let mut hidden = work.x[rows.start * width..rows.end * width].to_vec();
    if let Some(NormWeights { weight, bias, .. }) = &model.outside.norm {
        by_rows(pool, &mut hidden, width, |row, out| {
            let x = &work.x[(rows.start + row) * width..][..width];
            norm(final_norm, x, weight, bias, out, kernels);
        });
    }
    hidden
}

/// logits = cap * tanh(scale * logits / cap); a model may have both, either or none.  // logits [rows, stride]
fn scale_and_cap(pass: Pass<'_>, logits: &mut [f32], stride: usize) {
    let (scale, kernels) = (pass.config.logit_scale, pass.kernels);
    match pass.config.final_logit_softcapping {
        None if scale == 1.0 => {}
        None => by_rows(pass.pool, logits, stride, |_, row| kernels.scale(row, scale)),
        Some(cap) => by_rows(pass.pool, logits, stride, |_, row| kernels.softcap(row, scale, cap)),
    }
}
