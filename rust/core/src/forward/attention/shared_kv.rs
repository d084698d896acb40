//! Attention of one key for all heads, which is the value too: queries through a latent, and outputs by groups of heads through
//! a latent of each group (DeepSeek-V4; DeepSeek-AI 2026, section 2.3).

use super::mla::Latent;
use crate::config::QueryLatent;
use crate::forward::recurrent::Rows;
use crate::forward::residual::matmul;
use crate::forward::rope::{RopeAngles, rotate_back};
use crate::forward::state::Pass;
use crate::parts::{AttentionLayer, SharedKvWeights};
use ropechat_kernels::compute::activations::{Activations, by_rows};
use ropechat_kernels::compute::weight::Weight;

/// Buffers of the projections.
#[derive(Default)]
pub(super) struct SharedKvBuffers {
    /// The inputs of compressed keys, the latent of queries, the key, and the weights of the indexer's heads.
    pub a: Vec<f32>, // [rows, padded]
    q: Vec<f32>,       // [rows, padded q of all heads]
    index_q: Vec<f32>, // [rows, padded queries of the indexer]
}

/// Fills `qkv` from the normed rows in `input`, which it then uses for the latent.  // qkv [rows, stride]
pub(super) fn project(
    pass: Pass<'_>,
    layer: &AttentionLayer,
    weights: &SharedKvWeights,
    input: &mut Activations,
    SharedKvBuffers { a, q, index_q }: &mut SharedKvBuffers,
    qkv: &mut [f32],
) {
    matmul(pass, &weights.a_proj, input, a);
    let a = Rows { values: a, stride: weights.a_proj.padded_out() };
    let (first, _) = pass.config.compression_window(&layer.spec);
    let latent = Latent { rows: a, first, kind: pass.config.norm, norm: &weights.q_a_layernorm };
    latent.project(pass, QueryLatent::Normed, &weights.q_b_proj, input, q);
    let index_proj = layer.indexer.as_ref().and_then(|indexer| indexer.q_proj.as_ref());
    if let Some(q_proj) = index_proj {
        latent.project(pass, QueryLatent::Normed, q_proj, input, index_q);
    }
    let (queries, dim) = (layer.heads.q_width(), layer.heads.head_dim);
    let (q_stride, index_stride) = (weights.q_b_proj.padded_out(), index_proj.map_or(0, Weight::padded_out));
    let index_queries = layer.indexer.as_ref().map_or(0, |indexer| indexer.spec.q_width());
    let rest = first + weights.q_a_layernorm.weight.len();
    by_rows(pass.pool, qkv, layer.projection.stride(pass.config, layer), |row, out| {
        let (key, index_weights) = a.row(row)[rest..].split_at(dim);
        out[..queries].copy_from_slice(&q[row * q_stride..][..queries]);
        out[queries..queries + dim].copy_from_slice(key);
        let (out_index_q, out_weights) = out[queries + dim..].split_at_mut(index_queries);
        out_index_q.copy_from_slice(&index_q[row * index_stride..][..index_queries]);
        out_weights.copy_from_slice(&index_weights[..out_weights.len()]);
    });
}

/// Rotates the output of a row's heads back by its position, and puts the rotated part last, as the file has it.
pub(super) fn restore_heads(
    pass: Pass<'_>,
    angles: &RopeAngles,
    row: usize,
    heads: &mut [f32],
    head_dim: usize,
) {
    for head in heads.chunks_exact_mut(head_dim) {
        let rotated = rotate_back(angles, row, head, pass.kernels);
        head.rotate_left(rotated);
    }
}
