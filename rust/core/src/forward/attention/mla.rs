//! Multi-head latent attention (MLA): queries, keys and values out of narrow latents (DeepSeek-V2, 2024, section 2.1).
//!
//! The cache holds one latent and one rotated part per position. All heads read them as one key, whose latent is the value
//! too (section 2.1.4): a head's part of kv_b_proj is multiplied with its query, and with the latent that its weights sum
//! up, in prefill and decode alike (law 1).
//!
//! A head multiplies 2 kv_lora_rank + qk_rope_head_dim numbers with a position, where whole keys and values take
//! qk_nope_head_dim + qk_rope_head_dim + v_head_dim (DeepSeek-V2-Lite: 1,088 and 320). Long prompts pay for that, decode
//! gains: it reads 576 numbers of a position, not 5,120. Whole keys computed for prompts only would give other bits than
//! decode.

use super::group_products::GroupProducts;
use crate::config::{Attention, Norm, QueryLatent};
use crate::forward::recurrent::Rows;
use crate::forward::residual::{matmul, norm};
use crate::forward::state::Pass;
use crate::parts::{AttentionLayer, MlaWeights, NormWeights};
use ropechat_kernels::compute::activations::{Activations, RowSource, by_rows};
use ropechat_kernels::compute::weight::Weight;

/// Outputs of the projections.
#[derive(Default)]
pub(super) struct MlaBuffers {
    a: Vec<f32>, // [rows, q or its latent | latent of k and v | rotated part of k]
    q: Vec<f32>, // [rows, q of all heads]
    /// The part of queries that is not rotated, in the space of the latent of k and v.
    absorbed: GroupProducts,
}

/// Fills `qkv` from the normed rows in `input`, which it then uses for the latents.  // qkv [rows, qkv_width]
pub(super) fn project<'a>(
    pass: Pass<'_>,
    layer: &AttentionLayer,
    weights: &'a MlaWeights,
    input: &mut Activations,
    buffers: &'a mut MlaBuffers,
    qkv: &mut [f32],
) -> Option<Latent<'a>> {
    let config = pass.config;
    let Attention::Mla {
        q_lora_rank,
        kv_lora_rank,
        qk_rope_head_dim: rope,
        norm: kind,
        q_latent,
        k_rope_norm: rope_kind,
        ..
    } = config.attention_of(&layer.spec)
    else {
        return None;
    };
    let heads = config.heads(&layer.spec);
    let (queries, dim) = (heads.q_width(), heads.head_dim);
    let gates = config.attention_gate.rows(heads);
    let MlaBuffers { a, q, absorbed } = buffers;
    matmul(pass, &weights.a_proj, input, a);
    let q_width = q_lora_rank.unwrap_or(queries);
    let a = Rows { values: a, stride: weights.a_proj.padded_out() };
    let q = match &weights.q_b {
        None => Rows { values: a.values, stride: a.stride },
        Some((norm, q_b_proj)) => {
            let latent = Latent { rows: a, first: 0, kind, norm, rest: 0 };
            latent.project(pass, q_latent, q_b_proj, input, q);
            Rows { values: q, stride: q_b_proj.padded_out() }
        }
    };
    let nope = |head: usize, row: usize, out: &mut [f32]| {
        out.copy_from_slice(&q.row(row)[head * dim..][rope..dim]);
    };
    let stride = layer.stride(config);
    absorbed.multiply(pass, &weights.q_absorb, qkv.len() / stride, &nope, input);
    by_rows(pass.pool, qkv, stride, |row, out| {
        let (out_q, out) = out.split_at_mut(layer.heads.q_width());
        let (q, a) = (q.row(row), a.row(row));
        for (head, query) in out_q.chunks_exact_mut(layer.heads.head_dim).enumerate() {
            let (rotated, latent) = query.split_at_mut(rope);
            rotated.copy_from_slice(&q[head * dim..][..rope]);
            latent.copy_from_slice(&absorbed.of(head, row)[..kv_lora_rank]);
        }
        let (key, out) = out.split_at_mut(layer.heads.head_dim);
        let (key_rotated, key_latent) = key.split_at_mut(rope);
        let (latent, after) = a[q_width..].split_at(kv_lora_rank);
        let (rotated, after) = after.split_at(rope);
        let NormWeights { weight, bias, .. } = &weights.kv_a_layernorm;
        norm(kind, latent, weight, bias, key_latent, pass.kernels);
        match (&weights.k_rope_norm, rope_kind) {
            (Some(NormWeights { weight, bias, .. }), Some(kind)) => {
                norm(kind, rotated, weight, bias, key_rotated, pass.kernels);
            }
            _ => key_rotated.copy_from_slice(rotated),
        }
        out[..gates].copy_from_slice(match q_latent {
            QueryLatent::Normed => &after[..gates],
            QueryLatent::NormedAndRaw => &q[queries..][..gates],
        });
    });
    let (norm, _) = weights.q_b.as_ref()?;
    let gates_in_a = if q_latent == QueryLatent::Normed { gates } else { 0 };
    Some(Latent { rows: a, first: 0, kind, norm, rest: q_width + kv_lora_rank + rope + gates_in_a })
}

/// A latent in the rows of a matmul's output.
pub(crate) struct Latent<'a> {
    pub rows: Rows<'a>,
    /// Its first column.
    pub first: usize,
    pub kind: Norm,
    pub norm: &'a NormWeights,
    /// The first column behind all that attention itself reads.
    pub rest: usize,
}

impl Latent<'_> {
    /// out = b_proj(norm(latent)), or of that beside the latent itself.  // out [rows, padded_out]
    pub fn project(
        &self,
        pass: Pass<'_>,
        of: QueryLatent,
        b_proj: &Weight,
        input: &mut Activations,
        out: &mut Vec<f32>,
    ) {
        let NormWeights { weight, bias, .. } = self.norm;
        let (rows, rank) = (self.rows.values.len() / self.rows.stride, weight.len());
        let width = match of {
            QueryLatent::Normed => rank,
            QueryLatent::NormedAndRaw => 2 * rank,
        };
        input.quantize_rows(
            rows,
            width,
            b_proj.dtype(),
            pass.kernels,
            pass.pool,
            RowSource::Computed(&|row, out| {
                let latent = &self.rows.row(row)[self.first..][..rank];
                let (normed, raw) = out.split_at_mut(rank);
                norm(self.kind, latent, weight, bias, normed, pass.kernels);
                raw.copy_from_slice(&latent[..raw.len()]);
            }),
        );
        matmul(pass, b_proj, input, out);
    }
}
