//! Mixture of attention heads: a router chooses experts for every row, whose queries share the keys and values, and whose
//! output projections give a weighted sum (Zhang et al. 2022, <https://arxiv.org/abs/2210.05144>).
//!
//! Law 1: as for mixtures of MLPs, a row's choice is its own, and outputs are added in the order of the experts' numbers.

use super::online_softmax::Partials;
use super::tiles;
use crate::config::{Attention, Moe};
use crate::forward::moe::route;
use crate::forward::residual::{BranchBuffers, add_result, matmul, normed_input};
use crate::forward::state::Pass;
use crate::parts::{AttentionLayer, HeadExpertsWeights};
use ropechat_kernels::compute::activations::{Activations, RowSource, by_rows};
use ropechat_kernels::quant::PackedType;

/// Buffers of a mixture of heads.
#[derive(Default)]
pub(super) struct HeadExpertBuffers {
    normed: Vec<f32>, // [rows, hidden_size]
    logits: Vec<f32>, // [rows, padded num_experts]
    chosen: Vec<Vec<(usize, f32)>>,
    product: Vec<f32>,
    attended: Vec<f32>, // [rows, out_width]
    sum: Vec<f32>,      // [rows, hidden_size]
}

/// A row that chose an expert.
struct Chosen {
    row: usize,
    /// The expert's place among those that the row chose.
    slot: usize,
    weight: f32,
}

impl HeadExpertBuffers {
    /// The rows that chose an expert.
    fn rows_of(chosen: &[Vec<(usize, f32)>], expert: usize) -> Vec<Chosen> {
        let of_row = |(row, chosen): (usize, &Vec<(usize, f32)>)| {
            let slot = chosen.iter().position(|(number, _)| *number == expert)?;
            Some(Chosen { row, slot, weight: chosen[slot].1 })
        };
        chosen.iter().enumerate().filter_map(of_row).collect()
    }
}

/// Fills `qkv` from the normed rows of x, which are in `input` for keys and values. Query head `h * slots + s` is head h of
/// the expert in slot s: those of one h read the same key/value head.  // x [rows, hidden_size], qkv [rows, qkv_width]
pub(super) fn project(
    pass: Pass<'_>,
    layer: &AttentionLayer,
    weights: &HeadExpertsWeights,
    x: &[f32],
    input: &mut Activations,
    buffers: &mut HeadExpertBuffers,
    qkv: &mut [f32],
) {
    let (heads, hidden_size) = (layer.heads, pass.config.hidden_size);
    let (dim, slots, stride) = (heads.head_dim, heads.group_size(), heads.qkv_width());
    let HeadExpertBuffers { normed, logits, chosen, product, .. } = buffers;
    matmul(pass, &weights.kv_proj, input, product);
    by_rows(pass.pool, qkv, stride, |row, qkv| {
        let (_, kv) = qkv.split_at_mut(heads.q_width());
        kv.copy_from_slice(&product[row * weights.kv_proj.padded_out()..][..kv.len()]);
    });
    normed_input(pass, layer.attention_norm.as_ref(), PackedType::F32, x, input);
    input.copy_rows(normed);
    matmul(pass, &weights.router, input, logits);
    let Attention::MixtureOfHeads { num_experts, num_experts_per_tok } = pass.config.attention else {
        return;
    };
    let moe = Moe::plain(num_experts, num_experts_per_tok, 1);
    chosen.resize(pass.rows(x), Vec::new());
    by_rows(pass.pool, chosen, 1, |row, chosen| {
        let logits = &logits[row * weights.router.padded_out()..][..num_experts];
        route(&moe, logits, &[], &mut chosen[0]);
    });
    for (expert, weight) in weights.queries.iter().enumerate() {
        let batch = HeadExpertBuffers::rows_of(chosen, expert);
        if batch.is_empty() {
            continue;
        }
        let of_row = |index: usize| &normed[batch[index].row * hidden_size..][..hidden_size];
        let (dtype, source) = (weight.dtype(), RowSource::Stored(&of_row));
        input.quantize_rows(batch.len(), hidden_size, dtype, pass.kernels, pass.pool, source);
        matmul(pass, weight, input, product);
        for (Chosen { row, slot, .. }, product) in batch.iter().zip(product.chunks_exact(weight.padded_out()))
        {
            for (head, query) in product.chunks_exact(dim).take(heads.num_key_value_heads).enumerate() {
                qkv[row * stride + (head * slots + slot) * dim..][..dim].copy_from_slice(query);
            }
        }
    }
}

/// x += the weighted sum of the chosen experts' output projections, and the bias.  // x [rows, hidden_size]
pub(super) fn add_outputs(
    pass: Pass<'_>,
    layer: &AttentionLayer,
    weights: &HeadExpertsWeights,
    partials: &Partials,
    branch: &mut BranchBuffers,
    buffers: &mut HeadExpertBuffers,
    x: &mut [f32],
) {
    let (heads, hidden_size, widths) = (layer.heads, pass.config.hidden_size, tiles::widths(layer));
    let (dim, slots, out_width) = (heads.v_head_dim, heads.group_size(), heads.out_width());
    let HeadExpertBuffers { chosen, product, attended, sum, .. } = buffers;
    let (rows, kernels, pool) = (pass.rows(x), pass.kernels, pass.pool);
    attended.resize(rows * out_width, 0.0);
    by_rows(pool, attended, out_width, |row, out| {
        partials.write_output(None, (row, 0), widths, &layer.sinks, out, kernels);
    });
    sum.clear();
    sum.resize(rows * hidden_size, 0.0);
    for (expert, weight) in layer.o_proj.iter().enumerate() {
        let batch = HeadExpertBuffers::rows_of(chosen, expert);
        if batch.is_empty() {
            continue;
        }
        let of_row = |index: usize, out: &mut [f32]| {
            let Chosen { row, slot, .. } = batch[index];
            for (head, out) in out.chunks_exact_mut(dim).enumerate() {
                out.copy_from_slice(&attended[row * out_width + (head * slots + slot) * dim..][..dim]);
            }
        };
        let (width, source) = (heads.num_key_value_heads * dim, RowSource::Computed(&of_row));
        branch.input.quantize_rows(batch.len(), width, weight.dtype(), kernels, pool, source);
        matmul(pass, weight, &branch.input, product);
        for (chosen, product) in batch.iter().zip(product.chunks_exact(weight.padded_out())) {
            let sum = &mut sum[chosen.row * hidden_size..][..hidden_size];
            kernels.axpby(sum, &product[..hidden_size], 1.0, chosen.weight);
        }
    }
    by_rows(pool, sum, hidden_size, |_, sum| kernels.add(sum, &weights.bias));
    let factors = layer.spec.residual_factors[0];
    add_result(pass, layer.attention_out_norm.as_ref(), factors, sum, hidden_size, x);
}
