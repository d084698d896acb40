//! Multi-head latent attention (MLA): queries, keys and values out of narrow latents (DeepSeek-V2, 2024, section 2.1).
//!
//! The cache holds whole keys and values of every head, not the latents: more memory, and the same attention for all.

use crate::compute::activations::{Activations, RowSource, by_rows};
use crate::compute::weight::Weight;
use crate::config::{Attention, Norm};
use crate::forward::residual::{matmul, norm};
use crate::forward::state::Pass;
use crate::model::{AttentionLayer, MlaWeights, NormWeights};

/// Outputs of the projections.
#[derive(Default)]
pub(super) struct MlaBuffers {
    a: Vec<f32>,  // [rows, q or its latent | latent of k and v | rotated part of k]
    q: Vec<f32>,  // [rows, q of all heads]
    kv: Vec<f32>, // [rows, unrotated part of k of all heads | v of all heads]
}

/// Fills `qkv` from the normed rows in `input`, which it then uses for the latents.  // qkv [rows, qkv_width]
pub(super) fn project(
    pass: Pass<'_>,
    layer: &AttentionLayer,
    weights: &MlaWeights,
    input: &mut Activations,
    buffers: &mut MlaBuffers,
    qkv: &mut [f32],
) {
    let config = pass.config;
    let Attention::Mla { q_lora_rank, kv_lora_rank, qk_rope_head_dim: rope, norm: kind, .. } =
        config.attention
    else {
        return;
    };
    let (heads, dim, value_dim) =
        (layer.heads.num_attention_heads, layer.heads.head_dim, layer.heads.v_head_dim);
    let (queries, nope) = (heads * dim, dim - rope);
    let gates = config.attention_gate.rows(layer.heads);
    let MlaBuffers { a, q, kv } = buffers;
    matmul(pass, &weights.a_proj, input, a);
    let q_width = q_lora_rank.unwrap_or(queries);
    let a = Rows { values: a, stride: weights.a_proj.padded_out() };
    let q = match &weights.q_b {
        None => Rows { values: a.values, stride: a.stride },
        Some((norm, q_b_proj)) => {
            Latent { rows: a, first: 0, kind, norm }.project(pass, q_b_proj, input, q);
            Rows { values: q, stride: q_b_proj.padded_out() }
        }
    };
    Latent { rows: a, first: q_width, kind, norm: &weights.kv_a_layernorm }.project(
        pass,
        &weights.kv_b_proj,
        input,
        kv,
    );
    let kv = Rows { values: kv, stride: weights.kv_b_proj.padded_out() };

    by_rows(pass.pool, qkv, layer.heads.qkv_width() + gates, |row, out| {
        let (out_q, out) = out.split_at_mut(queries);
        out_q.copy_from_slice(&q.row(row)[..queries]);
        let (keys, values) = out.split_at_mut(queries);
        let rotated = &a.row(row)[q_width + kv_lora_rank..][..rope];
        let (nope_keys, of_values) = kv.row(row).split_at(heads * nope);
        for (key, part) in keys.chunks_exact_mut(dim).zip(nope_keys.chunks_exact(nope)) {
            key[..rope].copy_from_slice(rotated);
            key[rope..].copy_from_slice(part);
        }
        let (values, out_gates) = values.split_at_mut(heads * value_dim);
        values.copy_from_slice(&of_values[..heads * value_dim]);
        out_gates.copy_from_slice(&a.row(row)[q_width + kv_lora_rank + rope..][..gates]);
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

/// A latent in the rows of a matmul's output.
struct Latent<'a> {
    rows: Rows<'a>,
    /// Its first column.
    first: usize,
    kind: Norm,
    norm: &'a NormWeights,
}

impl Latent<'_> {
    /// out = b_proj(norm(latent)).  // out [rows, padded_out]
    fn project(&self, pass: Pass<'_>, b_proj: &Weight, input: &mut Activations, out: &mut Vec<f32>) {
        let NormWeights { weight, bias } = self.norm;
        let (rows, rank) = (self.rows.values.len() / self.rows.stride, weight.len());
        input.quantize_rows(
            rows,
            rank,
            b_proj.dtype(),
            pass.kernels,
            pass.pool,
            RowSource::Computed(&|row, out| {
                let latent = &self.rows.row(row)[self.first..][..rank];
                norm(self.kind, latent, weight, bias, out, pass.kernels);
            }),
        );
        matmul(pass, b_proj, input, out);
    }
}
