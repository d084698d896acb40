//! A mixture of experts: which of them a row takes, and their MLPs over the rows that took them.
//!
//! Law 1: a row's choice depends on the row alone, and its experts' outputs are added in the order of their numbers,
//! whoever else took them.

use crate::activations::{Activations, by_rows};
use crate::config::{ExpertGroups, Experts, Scoring};
use crate::forward::{Compute, Workspace, add_branch, expand, normed_input};
use crate::model::{DenseMlp, Layer, MixtureMlp, Model};
use crate::quant::DType;
use crate::weight::Epilogue;

/// Buffers of the mixture.
#[derive(Default)]
pub(crate) struct ExpertWork {
    normed: Vec<f32>, // [rows, hidden_size]
    logits: Vec<f32>, // [rows, padded num_experts]
    gates: Vec<f32>,  // [rows, 16]
    chosen: Vec<Vec<(usize, f32)>>,
    rows: Vec<usize>,
    weights: Vec<f32>,
    out: Vec<f32>, // [rows of an expert, padded hidden_size]
}

/// x += sum of weight * expert(norm(x)) over the chosen experts, and the shared one.
pub(crate) fn experts(
    model: &Model,
    layer: &Layer,
    mixture: &MixtureMlp,
    work: &mut Workspace,
    compute: Compute<'_>,
) {
    let Some(config) = &model.config.experts else { return };
    let hidden = model.config.hidden_size;
    let rows = work.x.len() / hidden;
    normed_input(model, layer.mlp_norm.as_ref(), DType::F32, work, compute);
    let mut own = std::mem::take(&mut work.experts);
    work.input.copy_rows(&mut own.normed);
    multiply(&mixture.router, &work.input, &mut own.logits, compute);
    if let Some(gate) = &mixture.shared_gate {
        multiply(gate, &work.input, &mut own.gates, compute);
    }
    own.chosen.resize(rows, Vec::new());
    let stride = mixture.router.padded_out();
    by_rows(compute.pool, &mut own.chosen, 1, |row, chosen| {
        route(config, &own.logits[row * stride..][..config.num_experts], &mixture.correction, &mut chosen[0]);
    });

    work.branch.clear();
    work.branch.resize(rows * hidden, 0.0);
    for (number, expert) in mixture.experts.iter().enumerate() {
        own.rows.clear();
        own.weights.clear();
        for (row, chosen) in own.chosen.iter().enumerate() {
            if let Some((_, weight)) = chosen.iter().find(|(chosen, _)| *chosen == number) {
                own.rows.push(row);
                own.weights.push(*weight);
            }
        }
        run(model, expert, &mut own, work, compute);
    }
    if let Some(shared) = &mixture.shared {
        own.rows.clear();
        own.rows.extend(0..rows);
        let gate = |row: usize| match mixture.shared_gate {
            None => 1.0,
            Some(ref gate) => 1.0 / (1.0 + (-own.gates[row * gate.padded_out()]).exp()),
        };
        own.weights = (0..rows).map(gate).collect();
        run(model, shared, &mut own, work, compute);
    }
    work.experts = own;
    add_branch(model, layer.mlp_out_norm.as_ref(), hidden, work, compute);
}

/// branch[row] += weight * expert(normed[row]) for the rows at hand.
fn run(model: &Model, expert: &DenseMlp, own: &mut ExpertWork, work: &mut Workspace, compute: Compute<'_>) {
    if own.rows.is_empty() {
        return;
    }
    let Compute { kernels, pool, .. } = compute;
    let hidden = model.config.hidden_size;
    let (rows, normed) = (&own.rows, &own.normed);
    work.input.take(rows.len(), hidden, expert.up.dtype(), kernels, pool, |row| {
        &normed[rows[row] * hidden..][..hidden]
    });
    expand(model, expert, work, compute);
    let Workspace { gated, input, branch, .. } = work;
    let width = expert.width;
    input.take(rows.len(), width, expert.down.dtype(), kernels, pool, |row| &gated[row * width..][..width]);
    multiply(&expert.down, input, &mut own.out, compute);
    let outputs = own.out.chunks_exact(expert.down.padded_out());
    for ((&row, &weight), out) in own.rows.iter().zip(&own.weights).zip(outputs) {
        kernels.merge(&mut branch[row * hidden..][..hidden], &out[..hidden], 1.0, weight);
    }
}

fn multiply(weight: &crate::weight::Weight, input: &Activations, out: &mut Vec<f32>, compute: Compute<'_>) {
    out.resize(input.rows() * weight.padded_out(), 0.0);
    weight.matmul(input, compute.kernels, compute.pool, Epilogue::Store(out));
}

/// The experts of one row, by number, with their weights.
fn route(config: &Experts, logits: &[f32], correction: &[f32], chosen: &mut Vec<(usize, f32)>) {
    let scores: Vec<f32> = match config.scoring {
        Scoring::Softmax | Scoring::SoftmaxOfChosen => softmax(logits),
        Scoring::Sigmoid | Scoring::SigmoidNormalized => {
            logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()
        }
    };
    let mut choice = scores.clone();
    choice.iter_mut().zip(correction).for_each(|(score, correction)| *score += correction);
    let open: Vec<usize> = match config.groups {
        ExpertGroups::None => (0..scores.len()).collect(),
        ExpertGroups::Limited { n_group, topk_group, judged_by } => {
            let size = scores.len() / n_group;
            let judged: Vec<f32> = choice
                .chunks_exact(size)
                .map(|group| best(group, 0..size, judged_by).iter().map(|&expert| group[expert]).sum())
                .collect();
            let groups = best(&judged, 0..n_group, topk_group);
            groups.iter().flat_map(|group| group * size..(group + 1) * size).collect()
        }
    };
    let picked = best(&choice, open, config.num_experts_per_tok);
    let total: f32 = match config.scoring {
        Scoring::Softmax | Scoring::Sigmoid => 1.0,
        Scoring::SoftmaxOfChosen => picked.iter().map(|&expert| scores[expert]).sum(),
        Scoring::SigmoidNormalized => picked.iter().map(|&expert| scores[expert]).sum::<f32>() + 1e-20,
    };
    // A NaN has no place in an order: whoever it puts first or last, the row must not come out finite.
    let total = if choice.iter().any(|score| score.is_nan()) { f32::NAN } else { total };
    chosen.clear();
    chosen.extend(picked.iter().map(|&expert| (expert, scores[expert] / total * config.scaling)));
}

/// The `count` greatest of some scores, by number; of equal ones the first.
fn best(scores: &[f32], open: impl IntoIterator<Item = usize>, count: usize) -> Vec<usize> {
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

    fn config(scoring: Scoring, groups: ExpertGroups) -> Experts {
        Experts {
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

    fn routed(config: &Experts, logits: &[f32], correction: &[f32]) -> Vec<(usize, f32)> {
        let mut chosen = Vec::new();
        route(config, logits, correction, &mut chosen);
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
    fn a_correction_changes_the_choice_and_not_the_weight() {
        let sigmoid = config(Scoring::Sigmoid, ExpertGroups::None);
        let chosen = routed(&sigmoid, &[0.0, 5.0, 4.0, 0.0], &[0.0, 0.0, -1.0, 0.1]);
        assert_eq!((chosen[0].0, chosen[1]), (1, (3, 1.0)));
    }

    #[test]
    fn a_nan_in_any_score_makes_every_weight_nan() {
        let limited = ExpertGroups::Limited { n_group: 2, topk_group: 1, judged_by: 2 };
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
        let groups = ExpertGroups::Limited { n_group: 2, topk_group: 1, judged_by: 2 };
        let limited = config(Scoring::Softmax, groups);
        // The best expert is alone in its group; the other group is better together.
        let chosen: Vec<usize> =
            routed(&limited, &[2.0, -9.0, 1.9, 1.8], &[]).iter().map(|&(expert, _)| expert).collect();
        assert_eq!(chosen, [2, 3]);
    }
}
