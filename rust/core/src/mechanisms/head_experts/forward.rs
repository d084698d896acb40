//! Mixture of attention heads: a router chooses experts for every row, whose queries share the keys and values, and whose
//! output projections give a weighted sum (Zhang et al. 2022, <https://arxiv.org/abs/2210.05144>).
//!
//! Law 1: as for mixtures of MLPs, a row's choice is its own, and outputs are added in the order of the experts' numbers.

use super::parts::InLayer;
use crate::config::Moe;
use crate::forward::moe::route;
use crate::forward::residual::{BranchBuffers, add_result, matmul, normed_input};
use crate::forward::rope::RopeAngles;
use crate::forward::state::Pass;
use crate::forward::step::Step;
use crate::parts::{AttentionLayer, Layer};
use ropechat_kernels::compute::activations::{Activations, RowSource, by_rows};
use ropechat_kernels::quant::PackedType;

/// Buffers of a mixture of heads.
#[derive(Default)]
pub(crate) struct Steps {
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

/// The rows that chose an expert.
fn rows_of(chosen: &[Vec<(usize, f32)>], expert: usize) -> Vec<Chosen> {
    let of_row = |(row, chosen): (usize, &Vec<(usize, f32)>)| {
        let slot = chosen.iter().position(|(number, _)| *number == expert)?;
        Some(Chosen { row, slot, weight: chosen[slot].1 })
    };
    chosen.iter().enumerate().filter_map(of_row).collect()
}

fn parts(layer: &Layer) -> Option<(&InLayer, &AttentionLayer)> {
    Some((layer.mechanisms.head_experts.as_deref()?, layer.attention.as_ref()?))
}

impl Step for Steps {
    /// The normed rows of x are in `input` for keys and values. Query head `h * slots + s` is head h of the expert in slot s: those
    /// of one h read the same key/value head.
    fn project(
        &mut self,
        pass: Pass<'_>,
        whole: &Layer,
        x: &[f32],
        input: &mut Activations,
        qkv: &mut [f32],
    ) {
        let (Some((weights, layer)), Some(facts)) = (parts(whole), pass.config.mechanisms.head_experts)
        else {
            return;
        };
        let kv_proj = layer.projection.input_matrix();
        let (heads, hidden_size) = (layer.heads, pass.config.hidden_size);
        let (dim, slots, stride) = (heads.head_dim, heads.group_size(), heads.qkv_width());
        let Self { normed, logits, chosen, product, .. } = self;
        matmul(pass, kv_proj, input, product);
        by_rows(pass.pool, qkv, stride, |row, qkv| {
            let (_, kv) = qkv.split_at_mut(heads.q_width());
            kv.copy_from_slice(&product[row * kv_proj.padded_out()..][..kv.len()]);
        });
        normed_input(pass, layer.attention_norm.as_ref(), PackedType::F32, x, input);
        input.copy_rows(normed);
        matmul(pass, &weights.router, input, logits);
        let moe = Moe::plain(facts.num_experts, facts.num_experts_per_tok, 1);
        chosen.resize(pass.rows(x), Vec::new());
        by_rows(pass.pool, chosen, 1, |row, chosen| {
            let logits = &logits[row * weights.router.padded_out()..][..facts.num_experts];
            route(&moe, logits, &[], &mut chosen[0]);
        });
        for (expert, weight) in weights.queries.iter().enumerate() {
            let batch = rows_of(chosen, expert);
            if batch.is_empty() {
                continue;
            }
            let of_row = |index: usize| &normed[batch[index].row * hidden_size..][..hidden_size];
            let (dtype, source) = (weight.dtype(), RowSource::Stored(&of_row));
            input.quantize_rows(batch.len(), hidden_size, dtype, pass.kernels, pass.pool, source);
            matmul(pass, weight, input, product);
            for (Chosen { row, slot, .. }, product) in
                batch.iter().zip(product.chunks_exact(weight.padded_out()))
            {
                for (head, query) in product.chunks_exact(dim).take(heads.num_key_value_heads).enumerate() {
                    qkv[row * stride + (head * slots + slot) * dim..][..dim].copy_from_slice(query);
                }
            }
        }
    }

    /// x += the weighted sum of the chosen experts' output projections, and the bias.
    fn add_outputs(
        &mut self,
        pass: Pass<'_>,
        whole: &Layer,
        _: &[RopeAngles],
        write_heads: &(dyn Fn(usize, usize, &mut [f32]) + Sync),
        branch: &mut BranchBuffers,
        x: &mut [f32],
    ) -> bool {
        let Some((weights, layer)) = parts(whole) else { return false };
        let (heads, hidden_size) = (layer.heads, pass.config.hidden_size);
        let (dim, slots, out_width) = (heads.v_head_dim, heads.group_size(), heads.out_width());
        let Self { chosen, product, attended, sum, .. } = self;
        let (rows, kernels, pool) = (pass.rows(x), pass.kernels, pass.pool);
        attended.resize(rows * out_width, 0.0);
        by_rows(pool, attended, out_width, |row, out| {
            write_heads(row, 0, out);
        });
        sum.clear();
        sum.resize(rows * hidden_size, 0.0);
        for (expert, weight) in weights.outputs.iter().enumerate() {
            let batch = rows_of(chosen, expert);
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
        true
    }
}
