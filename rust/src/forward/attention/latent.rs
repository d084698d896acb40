//! Latent attention (MLA): queries, keys and values out of narrow latents (DeepSeek-V2, 2024, section 2.1).
//!
//! The cache holds whole keys and values of every head, not the latents: more memory, and the same attention for all.

use crate::compute::activations::{Activations, by_rows};
use crate::compute::weight::{Epilogue, Weight};
use crate::config::{Attention, Norm};
use crate::forward::{Compute, Workspace, norm};
use crate::model::{Latent, Model, NormWeights};

/// Fills `work.qkv` from the normed rows in `work.input`.  // work.qkv [rows, qkv_width]
pub(super) fn project(model: &Model, weights: &Latent, work: &mut Workspace, compute: Compute<'_>) {
    let config = &model.config;
    let Attention::Latent { q_lora_rank, kv_lora_rank, qk_rope_head_dim: rope, norm: kind } =
        config.attention
    else {
        return;
    };
    let (heads, dim, value_dim) = (config.num_attention_heads, config.head_dim, config.v_head_dim);
    let (queries, nope) = (heads * dim, dim - rope);
    let Workspace { input, latents: [down, q, kv], qkv, .. } = work;
    multiply(&weights.down, input, down, compute);
    let latent_q = q_lora_rank.unwrap_or(queries);
    let down = Rows { values: down, stride: weights.down.padded_out() };
    let q = match &weights.q {
        None => Rows { values: down.values, stride: down.stride },
        Some((norm, up)) => {
            Raise { from: down, first: 0, kind, norm, up }.raise(input, q, compute);
            Rows { values: q, stride: up.padded_out() }
        }
    };
    Raise { from: down, first: latent_q, kind, norm: &weights.kv_norm, up: &weights.kv }
        .raise(input, kv, compute);
    let kv = Rows { values: kv, stride: weights.kv.padded_out() };

    by_rows(compute.pool, qkv, config.qkv_width(), |row, out| {
        let (out_q, out) = out.split_at_mut(queries);
        out_q.copy_from_slice(&q.row(row)[..queries]);
        let (keys, values) = out.split_at_mut(queries);
        let rotating = &down.row(row)[latent_q + kv_lora_rank..][..rope];
        let (nope_keys, of_values) = kv.row(row).split_at(heads * nope);
        for (key, part) in keys.chunks_exact_mut(dim).zip(nope_keys.chunks_exact(nope)) {
            key[..rope].copy_from_slice(rotating);
            key[rope..].copy_from_slice(part);
        }
        values.copy_from_slice(&of_values[..heads * value_dim]);
    });
}

/// Rows of a matmul's output.
#[derive(Clone, Copy)]
struct Rows<'a> {
    values: &'a [f32],
    stride: usize,
}

impl Rows<'_> {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.stride..][..self.stride]
    }
}

/// A latent and its way up.
struct Raise<'a> {
    /// Rows that hold the latent.
    from: Rows<'a>,
    /// Where it begins.
    first: usize,
    kind: Norm,
    norm: &'a NormWeights,
    up: &'a Weight,
}

impl Raise<'_> {
    /// out = up(norm(latent)).
    fn raise(&self, input: &mut Activations, out: &mut Vec<f32>, compute: Compute<'_>) {
        let NormWeights { weight, bias } = self.norm;
        let (rows, rank) = (self.from.values.len() / self.from.stride, weight.len());
        input.fill(rows, rank, self.up.dtype(), compute.kernels, compute.pool, |row, out| {
            let latent = &self.from.row(row)[self.first..][..rank];
            norm(self.kind, latent, weight, bias, out, compute.kernels);
        });
        multiply(self.up, input, out, compute);
    }
}

fn multiply(weight: &Weight, input: &Activations, out: &mut Vec<f32>, compute: Compute<'_>) {
    out.resize(input.rows() * weight.padded_out(), 0.0);
    weight.matmul(input, compute.kernels, compute.pool, Epilogue::Store(out));
}
