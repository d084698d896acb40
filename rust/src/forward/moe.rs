//! Mixture of experts: the router's choice for every row, and the chosen experts' MLPs.
//!
//! Law 1: a row's choice depends on the row alone, and its experts' outputs are added in the order of their numbers,
//! whichever other rows chose them.

use super::mlp::{gate_up_proj, quantize_gated};
use super::residual::{BranchBuffers, add_result, matmul, normed_input};
use super::state::Pass;
use crate::compute::activations::{RowSource, by_rows};
use crate::config::{ExpertGroups, Moe, Scoring};
use crate::model::{DenseMlp, MoeMlp, NormWeights};
use crate::quant::PackedType;

/// Buffers of a mixture.
#[derive(Default)]
pub(super) struct MoeBuffers {
    normed: Vec<f32>,        // [rows, hidden_size]
    router_logits: Vec<f32>, // [rows, padded num_experts]
    shared_gates: Vec<f32>,  // [rows, padded 1]
    chosen: Vec<Vec<(usize, f32)>>,
    sum: Vec<f32>, // [rows, hidden_size]
    batch: ExpertBatch,
}

/// The rows of one expert.
#[derive(Default)]
struct ExpertBatch {
    rows: Vec<usize>,
    weights: Vec<f32>,
    gated: Vec<f32>, // [rows, intermediate_size]
    out: Vec<f32>,   // [rows, padded hidden_size]
}

/// x += sum of weight * expert(norm(x)) over the chosen experts, and the shared one.  // x [rows, hidden_size]
pub(super) fn moe_forward(
    pass: Pass<'_>,
    mlp: &MoeMlp,
    [norm, out_norm]: [Option<&NormWeights>; 2],
    x: &mut [f32],
    branch: &mut BranchBuffers,
    buffers: &mut MoeBuffers,
) {
    let Some(config) = &pass.config.moe else { return };
    let (hidden_size, rows) = (pass.config.hidden_size, pass.rows(x));
    let MoeBuffers { normed, router_logits, shared_gates, chosen, sum, batch } = buffers;
    normed_input(pass, norm, PackedType::F32, x, &mut branch.input);
    branch.input.copy_rows(normed);
    matmul(pass, &mlp.router, &branch.input, router_logits);
    if let Some(gate) = &mlp.shared_expert_gate {
        matmul(pass, gate, &branch.input, shared_gates);
    }
    chosen.resize(rows, Vec::new());
    let stride = mlp.router.padded_out();
    by_rows(pass.pool, chosen, 1, |row, chosen| {
        let logits = &router_logits[row * stride..][..config.num_experts];
        route(config, logits, &mlp.e_score_correction_bias, &mut chosen[0]);
    });

    sum.clear();
    sum.resize(rows * hidden_size, 0.0);
    for (number, expert) in mlp.experts.iter().enumerate() {
        batch.rows.clear();
        batch.weights.clear();
        for (row, chosen) in chosen.iter().enumerate() {
            if let Some((_, weight)) = chosen.iter().find(|(chosen, _)| *chosen == number) {
                batch.rows.push(row);
                batch.weights.push(*weight);
            }
        }
        expert_mlp(pass, expert, normed, batch, branch, sum);
    }
    if let Some(shared) = &mlp.shared_expert {
        batch.rows.clear();
        batch.rows.extend(0..rows);
        let gate = |row: usize| match mlp.shared_expert_gate {
            None => 1.0,
            Some(ref gate) => 1.0 / (1.0 + (-shared_gates[row * gate.padded_out()]).exp()),
        };
        batch.weights = (0..rows).map(gate).collect();
        expert_mlp(pass, shared, normed, batch, branch, sum);
    }
    add_result(pass, out_norm, sum, hidden_size, x);
}

/// sum[row] += weight * expert(normed[row]) for the rows of the batch.  // normed, sum [rows, hidden_size]
fn expert_mlp(
    pass: Pass<'_>,
    expert: &DenseMlp,
    normed: &[f32],
    batch: &mut ExpertBatch,
    branch: &mut BranchBuffers,
    sum: &mut [f32],
) {
    let (ExpertBatch { rows, weights, gated, out }, input) = (batch, &mut branch.input);
    if rows.is_empty() {
        return;
    }
    let (hidden_size, dtype) = (pass.config.hidden_size, expert.gate_up_proj.dtype());
    input.quantize_rows(
        rows.len(),
        hidden_size,
        dtype,
        pass.kernels,
        pass.pool,
        RowSource::Stored(&|row| &normed[rows[row] * hidden_size..][..hidden_size]),
    );
    gate_up_proj(pass, expert, input, gated);
    quantize_gated(pass, expert, rows.len(), gated, input);
    matmul(pass, &expert.down_proj, input, out);
    let outputs = out.chunks_exact(expert.down_proj.padded_out());
    for ((&row, &weight), out) in rows.iter().zip(&*weights).zip(outputs) {
        let sum = &mut sum[row * hidden_size..][..hidden_size];
        pass.kernels.axpby(sum, &out[..hidden_size], 1.0, weight);
    }
}

/// The experts of one row, in the order of their numbers, with their weights.
fn route(config: &Moe, logits: &[f32], correction_bias: &[f32], chosen: &mut Vec<(usize, f32)>) {
    let scores: Vec<f32> = match config.scoring {
        Scoring::Softmax | Scoring::SoftmaxOfChosen => softmax(logits),
        Scoring::Sigmoid | Scoring::SigmoidNormalized => {
            logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()
        }
    };
    let mut choice = scores.clone();
    choice.iter_mut().zip(correction_bias).for_each(|(score, bias)| *score += bias);
    let open: Vec<usize> = match config.groups {
        ExpertGroups::None => (0..scores.len()).collect(),
        ExpertGroups::Limited { n_group, topk_group, group_top_k } => {
            let size = scores.len() / n_group;
            let group_scores: Vec<f32> = choice
                .chunks_exact(size)
                .map(|group| top_k(group, 0..size, group_top_k).iter().map(|&expert| group[expert]).sum())
                .collect();
            let groups = top_k(&group_scores, 0..n_group, topk_group);
            groups.iter().flat_map(|group| group * size..(group + 1) * size).collect()
        }
    };
    let picked = top_k(&choice, open, config.num_experts_per_tok);
    let total: f32 = match config.scoring {
        Scoring::Softmax | Scoring::Sigmoid => 1.0,
        Scoring::SoftmaxOfChosen => picked.iter().map(|&expert| scores[expert]).sum(),
        Scoring::SigmoidNormalized => picked.iter().map(|&expert| scores[expert]).sum::<f32>() + 1e-20,
    };
    // NaN has no place in an order: wherever the sort puts it, the row must not come out finite.
    let total = if choice.iter().any(|score| score.is_nan()) { f32::NAN } else { total };
    chosen.clear();
    chosen.extend(picked.iter().map(|&expert| (expert, scores[expert] / total * config.scaling)));
}

/// The indices of the `count` highest scores, ascending; of equal scores the first.
fn top_k(scores: &[f32], open: impl IntoIterator<Item = usize>, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = open.into_iter().collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order.truncate(count);
    order.sort_unstable();
    order
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let sum: f32 = exps.iter().sum();
    exps.iter().map(|exp| exp / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Bias, SharedExpert};

    fn config(scoring: Scoring, groups: ExpertGroups) -> Moe {
        Moe {
            num_experts: 4,
            num_experts_per_tok: 2,
            intermediate_size: 1,
            scoring,
            groups,
            scaling: 2.0,
            bias: Bias::None,
            shared: SharedExpert::None,
        }
    }

    fn routed(config: &Moe, logits: &[f32], correction_bias: &[f32]) -> Vec<(usize, f32)> {
        let mut chosen = Vec::new();
        route(config, logits, correction_bias, &mut chosen);
        chosen
    }

    #[test]
    fn the_best_are_chosen_in_the_order_of_their_numbers_and_the_first_of_equals() {
        let of_chosen = config(Scoring::SoftmaxOfChosen, ExpertGroups::None);
        assert_eq!(routed(&of_chosen, &[0.0, 1.0, 1.0, 1.0], &[]), [(1, 1.0), (2, 1.0)]);
        let all = config(Scoring::Softmax, ExpertGroups::None);
        let equal = routed(&all, &[3.0; 4], &[]);
        assert_eq!(equal, [(0, 0.5), (1, 0.5)]);
    }

    #[test]
    fn a_correction_bias_changes_the_choice_and_not_the_weight() {
        let sigmoid = config(Scoring::Sigmoid, ExpertGroups::None);
        let chosen = routed(&sigmoid, &[0.0, 5.0, 4.0, 0.0], &[0.0, 0.0, -1.0, 0.1]);
        assert_eq!((chosen[0].0, chosen[1]), (1, (3, 1.0)));
    }

    #[test]
    fn a_nan_in_any_score_makes_every_weight_nan() {
        let limited = ExpertGroups::Limited { n_group: 2, topk_group: 1, group_top_k: 2 };
        let scorings =
            [Scoring::Softmax, Scoring::SoftmaxOfChosen, Scoring::Sigmoid, Scoring::SigmoidNormalized];
        for (scoring, groups) in scorings.into_iter().flat_map(|s| [(s, ExpertGroups::None), (s, limited)]) {
            // The sign decides whether an order has it first or last.
            for nan in [f32::NAN, -f32::NAN] {
                let config = config(scoring, groups);
                for (logits, correction) in
                    [([0.0, nan, 2.0, 3.0], [0.0; 4]), ([0.0, 1.0, 2.0, 3.0], [nan, 0.0, 0.0, 0.0])]
                {
                    let chosen = routed(&config, &logits, &correction);
                    assert!(chosen.iter().all(|(_, weight)| weight.is_nan()), "{scoring:?} {chosen:?}");
                }
            }
        }
    }

    #[test]
    fn closed_groups_are_not_chosen_from() {
        let groups = ExpertGroups::Limited { n_group: 2, topk_group: 1, group_top_k: 2 };
        let limited = config(Scoring::Softmax, groups);
        // The best expert is alone in its group; the other group is better together.
        let chosen: Vec<usize> =
            routed(&limited, &[2.0, -9.0, 1.9, 1.8], &[]).iter().map(|&(expert, _)| expert).collect();
        assert_eq!(chosen, [2, 3]);
    }
}
