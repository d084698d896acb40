//! Mixture of experts: the router's choice for every row, and the chosen experts' MLPs.
//!
//! Law 1: a row's choice depends on the row alone, and its experts' outputs are added in the order of their numbers,
//! whichever other rows chose them.

use super::mlp::{gate_epilogue, gate_up_proj, quantize_gated};
use super::residual::{BranchBuffers, matmul, norm_or_copy, normed_input};
use super::state::Pass;
use crate::config::{Activation, ClosedGroups, ExpertGroups, ExpertInput, Moe, Normalization, Scoring};
use crate::parts::{DenseAndMoe, DenseMlp, MoeMlp, NormWeights, RouterMlpWeights};
use ropechat_kernels::compute::activations::{Activations, RowSource, by_rows};
use ropechat_kernels::compute::weight::{Epilogue, RowsOf, Weight, matmul_each};
use ropechat_kernels::quant::PackedType;
use std::ops::Range;

/// Buffers of a mixture.
#[derive(Default)]
pub(super) struct MoeBuffers {
    normed: Vec<f32>,        // [rows, hidden_size]
    router_logits: Vec<f32>, // [rows, padded num_experts]
    /// The state of a router with an MLP, which the next layer's router adds.  // [rows, padded state]
    router_state: Vec<f32>,
    shared_gates: Vec<f32>,         // [rows, padded 1]
    chosen: Vec<Vec<(usize, f32)>>, // [rows][num_experts_per_tok]
    sum: Vec<f32>,                  // [rows, hidden_size]
    latent: Vec<f32>,               // [rows, padded latent_size]
    latent_sum: Vec<f32>,           // [rows, latent_size]
    batch: ExpertBatch,
}

/// Rows of some experts, expert by expert. A row of the pass is here once for each of these experts that it chose.
#[derive(Default)]
struct ExpertBatch {
    /// The rows of the pass, and their weights.
    rows: Vec<(usize, f32)>,
    /// Those of all experts, and where each expert's end.
    order: Vec<(usize, f32)>,
    ends: Vec<usize>,
    gated: Vec<f32>, // [rows, intermediate_size]
    out: Vec<f32>,   // [rows, padded hidden_size]
    /// The place of each row of the pass, in the order of the experts.
    places: Vec<Vec<usize>>,
}

/// Rows of a batch of experts: so many keep all threads busy, and need little memory.
const BATCH_ROWS: usize = 1024;

impl MoeBuffers {
    /// What [`experts`] or [`dense_and_moe`] left.  // [rows, hidden_size]
    pub fn sum(&self) -> &[f32] {
        &self.sum
    }
}

/// norm(dense(norm(x))) + norm(experts(norm(x))), into the buffers.  // x [rows, hidden_size]
pub(super) fn dense_and_moe(
    pass: Pass<'_>,
    both: &DenseAndMoe,
    norm: Option<&NormWeights>,
    x: &[f32],
    branch: &mut BranchBuffers,
    buffers: &mut MoeBuffers,
) {
    let hidden_size = pass.config.hidden_size;
    experts(pass, &both.moe, Some(&both.moe_norm), x, branch, buffers);
    normed_input(pass, norm, both.dense.gate_up_proj.dtype(), x, &mut branch.input);
    let MoeBuffers { batch: ExpertBatch { gated, out, .. }, sum, .. } = buffers;
    gate_up_proj(pass, &both.dense, &branch.input, gated);
    quantize_gated(pass, &both.dense, pass.rows(x), gated, &mut branch.input);
    matmul(pass, &both.dense.down_proj, &branch.input, out);
    let stride = both.dense.down_proj.padded_out();
    by_rows(pass.pool, sum, hidden_size, |row, sum| {
        let (mut dense, mut routed) = (vec![0.0; hidden_size], vec![0.0; hidden_size]);
        norm_or_copy(pass, &out[row * stride..][..hidden_size], Some(&both.dense_out_norm), &mut dense);
        norm_or_copy(pass, sum, Some(&both.moe_out_norm), &mut routed);
        sum.copy_from_slice(&dense);
        pass.kernels.add(sum, &routed);
    });
}

/// The sum of weight * expert(norm(x)) over the chosen experts, and the shared one, into the buffers.
pub(super) fn experts(
    pass: Pass<'_>,
    mlp: &MoeMlp,
    norm: Option<&NormWeights>,
    x: &[f32],
    branch: &mut BranchBuffers,
    buffers: &mut MoeBuffers,
) {
    let Some(config) = &pass.config.moe else { return };
    let (hidden_size, rows) = (pass.config.hidden_size, pass.rows(x));
    let MoeBuffers {
        normed,
        router_logits,
        router_state,
        shared_gates,
        chosen,
        sum,
        latent,
        latent_sum,
        batch,
    } = buffers;
    if let Some(router_norm) = &mlp.router_norm {
        normed_input(pass, Some(router_norm), PackedType::F32, x, &mut branch.input);
        matmul(pass, &mlp.router, &branch.input, router_logits);
    }
    normed_input(pass, norm, PackedType::F32, x, &mut branch.input);
    branch.input.copy_rows(normed);
    if let Some(gate) = &mlp.shared_expert_gate {
        matmul(pass, gate, &branch.input, shared_gates);
    }
    if let Some(router_mlp) = &mlp.router_mlp {
        route_by_mlp(pass, router_mlp, router_state, &mut branch.input);
    }
    if mlp.router_norm.is_none() {
        matmul(pass, &mlp.router, &branch.input, router_logits);
    }
    chosen.resize(rows, Vec::new());
    let stride = mlp.router.padded_out();
    by_rows(pass.pool, chosen, 1, |row, chosen| {
        let logits = &router_logits[row * stride..][..config.router_rows()];
        match (&mlp.tid2eid, pass.ids.get(row)) {
            (Some(experts), Some(&id)) => {
                let count = config.num_experts_per_tok;
                weigh_listed(config, logits, &experts[id as usize * count..][..count], &mut chosen[0]);
            }
            _ => route(config, logits, &mlp.e_score_correction_bias, &mut chosen[0]),
        }
        for (expert, weight) in &mut chosen[0] {
            *weight *= mlp.per_expert_scale.get(*expert).copied().unwrap_or(1.0);
        }
    });

    let whole_rows =
        ExpertRows { values: normed, width: hidden_size, stride: hidden_size, input: config.input };
    let (expert_rows, expert_sum) = match (&mlp.latent, config.latent_size) {
        (Some([to_latent, _]), Some(width)) => {
            let stored = |row: usize| whole_rows.row(row);
            let (dtype, source) = (to_latent.dtype(), RowSource::Stored(&stored));
            branch.input.quantize_rows(rows, hidden_size, dtype, pass.kernels, pass.pool, source);
            matmul(pass, to_latent, &branch.input, latent);
            (
                ExpertRows { values: latent, width, stride: to_latent.padded_out(), ..whole_rows },
                &mut *latent_sum,
            )
        }
        _ => (whole_rows, &mut *sum),
    };
    expert_sum.clear();
    expert_sum.resize(rows * expert_rows.width, 0.0);
    add_chosen_experts(pass, &mlp.experts, chosen, expert_rows, batch, branch, expert_sum);
    if let Some([_, from_latent]) = &mlp.latent {
        let width = expert_rows.width;
        let stored = |row: usize| &latent_sum[row * width..][..width];
        let (dtype, source) = (from_latent.dtype(), RowSource::Stored(&stored));
        branch.input.quantize_rows(rows, width, dtype, pass.kernels, pass.pool, source);
        matmul(pass, from_latent, &branch.input, latent);
        sum.clear();
        latent
            .chunks_exact(from_latent.padded_out())
            .for_each(|row| sum.extend_from_slice(&row[..hidden_size]));
    }
    if config.zero_experts > 0 {
        for (row, chosen) in chosen.iter().enumerate() {
            for (_, weight) in chosen.iter().filter(|(number, _)| *number >= config.num_experts) {
                let at = row * hidden_size..(row + 1) * hidden_size;
                pass.kernels.axpby(&mut sum[at.clone()], &normed[at], 1.0, *weight);
            }
        }
    }
    if let Some(shared) = &mlp.shared_expert {
        let gate = |row: usize| match mlp.shared_expert_gate {
            None => 1.0,
            Some(ref gate) => 1.0 / (1.0 + (-shared_gates[row * gate.padded_out()]).exp()),
        };
        batch.rows.clear();
        batch.rows.extend((0..rows).map(|row| (row, gate(row))));
        let read = ExpertRows { input: ExpertInput::Normed, ..whole_rows };
        add_batch(pass, &[(shared, 0..rows)], read, batch, branch, sum);
    }
    if !mlp.output_bias.is_empty() {
        by_rows(pass.pool, sum, hidden_size, |_, sum| pass.kernels.add(sum, &mlp.output_bias));
    }
    if config.output_factor != 1.0 {
        by_rows(pass.pool, sum, hidden_size, |_, sum| pass.kernels.scale(sum, config.output_factor));
    }
}

/// state = down(input) + scale * state; input = gelu(second(gelu(first(norm(state))))).  // state [rows, padded width]
fn route_by_mlp(pass: Pass<'_>, router: &RouterMlpWeights, state: &mut Vec<f32>, input: &mut Activations) {
    let (rows, width, stride) = (input.rows(), router.norm.weight.len(), router.down.padded_out());
    let before = std::mem::take(state);
    matmul(pass, &router.down, input, state);
    if !router.state_scale.is_empty() {
        by_rows(pass.pool, state, stride, |row, state| {
            pass.kernels.mul_add(&mut state[..width], &router.state_scale, &before[row * stride..][..width]);
        });
    }
    let (kernels, pool) = (pass.kernels, pass.pool);
    let normed = |row: usize, out: &mut [f32]| {
        norm_or_copy(pass, &state[row * stride..][..width], Some(&router.norm), out);
    };
    input.quantize_rows(rows, width, PackedType::F32, kernels, pool, RowSource::Computed(&normed));
    let mut hidden = vec![0.0; rows * width];
    for layer in &router.layers {
        layer.matmul(input, kernels, pool, Epilogue::Activate(Activation::Gelu, &mut hidden, width));
        let stored = |row: usize| &hidden[row * width..][..width];
        input.quantize_rows(rows, width, PackedType::F32, kernels, pool, RowSource::Stored(&stored));
    }
}

/// What experts read.
#[derive(Clone, Copy)]
struct ExpertRows<'a> {
    values: &'a [f32],
    width: usize,
    stride: usize,
    input: ExpertInput,
}

impl<'a> ExpertRows<'a> {
    fn row(self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..][..self.width]
    }
}

/// sum[row] += weight * expert(read[row]) for the chosen experts of every row.  // sum [rows, width of what is read]
fn add_chosen_experts(
    pass: Pass<'_>,
    experts: &[DenseMlp],
    chosen: &[Vec<(usize, f32)>],
    read: ExpertRows<'_>,
    batch: &mut ExpertBatch,
    branch: &mut BranchBuffers,
    sum: &mut [f32],
) {
    let ExpertBatch { order, ends, .. } = batch;
    sort_by_expert(chosen, experts.len(), order, ends);
    let (order, ends) = (std::mem::take(order), std::mem::take(ends));
    // Experts of one batch read the same activations.
    let types = |expert: &DenseMlp| [expert.gate_up_proj.dtype(), expert.down_proj.dtype()];
    let mut jobs: Vec<(&DenseMlp, Range<usize>)> = Vec::new();
    batch.rows.clear();
    let starts = std::iter::once(&0).chain(&ends);
    for (expert, (&start, &end)) in
        experts.iter().zip(starts.zip(&ends)).filter(|(_, (start, end))| start < end)
    {
        let rows = &order[start..end];
        let fits = jobs.last().is_none_or(|(last, _)| types(last) == types(expert));
        if !fits || batch.rows.len() + rows.len() > BATCH_ROWS {
            add_batch(pass, &jobs, read, batch, branch, sum);
            jobs.clear();
            batch.rows.clear();
        }
        let first = batch.rows.len();
        batch.rows.extend_from_slice(rows);
        jobs.push((expert, first..batch.rows.len()));
    }
    add_batch(pass, &jobs, read, batch, branch, sum);
    (batch.order, batch.ends) = (order, ends);
}

/// All rows and weights, by expert and then by row, and where those of each expert end.
fn sort_by_expert(
    chosen: &[Vec<(usize, f32)>],
    experts: usize,
    order: &mut Vec<(usize, f32)>,
    ends: &mut Vec<usize>,
) {
    let counted = || {
        let rows = chosen.iter().enumerate();
        let all =
            rows.flat_map(|(row, chosen)| chosen.iter().map(move |&(expert, weight)| (row, expert, weight)));
        all.filter(|(_, expert, _)| *expert < experts)
    };
    ends.clear();
    ends.resize(experts, 0);
    counted().for_each(|(_, expert, _)| ends[expert] += 1);
    let mut start = 0;
    for end in &mut *ends {
        start += std::mem::replace(end, start);
    }
    order.clear();
    order.resize(start, (0, 0.0));
    for (row, expert, weight) in counted() {
        order[ends[expert]] = (row, weight);
        ends[expert] += 1;
    }
}

/// sum[row] += weight * expert(read[row]) for the rows of a batch, all experts as one job of the pool.
fn add_batch(
    pass: Pass<'_>,
    jobs: &[(&DenseMlp, Range<usize>)],
    read: ExpertRows<'_>,
    batch: &mut ExpertBatch,
    branch: &mut BranchBuffers,
    sum: &mut [f32],
) {
    let Some(&(first, _)) = jobs.first() else { return };
    let (ExpertBatch { rows, gated, out, places, .. }, input) = (batch, &mut branch.input);
    let (width, kernels, pool) = (read.width, pass.kernels, pass.pool);
    let of_row = |place: usize| read.row(rows[place].0);
    let of_row_weighted = |place: usize, out: &mut [f32]| {
        out.copy_from_slice(of_row(place));
        kernels.scale(out, rows[place].1);
    };
    let source = match read.input {
        ExpertInput::Weighted => RowSource::Computed(&of_row_weighted),
        ExpertInput::Normed | ExpertInput::OwnNorm => RowSource::Stored(&of_row),
    };
    input.quantize_rows(rows.len(), width, first.gate_up_proj.dtype(), kernels, pool, source);
    let products = |weight: fn(&DenseMlp) -> &Weight| -> Vec<RowsOf<'_>> {
        jobs.iter().map(|(expert, rows)| RowsOf { weight: weight(expert), rows: rows.clone() }).collect()
    };
    gated.resize(rows.len() * first.intermediate_size, 0.0);
    let gate_up = products(|expert| &expert.gate_up_proj);
    matmul_each(&gate_up, input, kernels, pool, gate_epilogue(first, gated));
    quantize_gated(pass, first, rows.len(), gated, input);
    let stride = first.down_proj.padded_out();
    out.resize(rows.len() * stride, 0.0);
    matmul_each(&products(|expert| &expert.down_proj), input, kernels, pool, Epilogue::Store(out));

    places.iter_mut().for_each(Vec::clear);
    places.resize(sum.len() / width, Vec::new());
    for (place, &(row, _)) in rows.iter().enumerate() {
        places[row].push(place);
    }
    by_rows(pool, sum, width, |row, sum| {
        for &place in &places[row] {
            let weight = if read.input == ExpertInput::Weighted { 1.0 } else { rows[place].1 };
            kernels.axpby(sum, &out[place * stride..][..width], 1.0, weight);
        }
    });
}

/// The experts of one row, in the order of their numbers, with their weights.
pub(crate) fn route(config: &Moe, logits: &[f32], correction_bias: &[f32], chosen: &mut Vec<(usize, f32)>) {
    let scores = score(config, logits);
    if let Scoring::Sparsemixer { jitter } = config.scoring {
        return sparsemixer(&scores, config.num_experts_per_tok, jitter, chosen);
    }
    let mut choice = scores.clone();
    choice.iter_mut().zip(correction_bias).for_each(|(score, bias)| *score += bias);
    let open: Vec<usize> = match config.groups {
        ExpertGroups::None => (0..config.choosable()).collect(),
        ExpertGroups::Limited { n_group, topk_group, group_top_k, closed } => {
            let size = scores.len() / n_group;
            let group_scores: Vec<f32> = choice
                .chunks_exact(size)
                .map(|group| top_k(group, 0..size, group_top_k).iter().map(|&expert| group[expert]).sum())
                .collect();
            let groups = top_k(&group_scores, 0..n_group, topk_group);
            match closed {
                ClosedGroups::Excluded => {
                    groups.iter().flat_map(|group| group * size..(group + 1) * size).collect()
                }
                ClosedGroups::ScoreZero => {
                    let is_closed = |group: &usize| !groups.contains(group);
                    (0..n_group)
                        .filter(is_closed)
                        .for_each(|group| choice[group * size..(group + 1) * size].fill(0.0));
                    (0..scores.len()).collect()
                }
            }
        }
    };
    let mut picked = top_k(&choice, open, config.num_experts_per_tok);
    picked.extend(config.choosable()..config.router_rows());
    weigh(config, &scores, &picked, choice.iter().any(|score| score.is_nan()), chosen);
}

/// The experts that a table lists for one row, in the order of their numbers, with their weights.
fn weigh_listed(config: &Moe, logits: &[f32], listed: &[u32], chosen: &mut Vec<(usize, f32)>) {
    let scores = score(config, logits);
    let mut picked: Vec<usize> = listed.iter().map(|&expert| expert as usize).collect();
    picked.sort_unstable();
    weigh(config, &scores, &picked, scores.iter().any(|score| score.is_nan()), chosen);
}

/// From the router's logits to scores; those of a sparse mixer are the logits.
fn score(config: &Moe, logits: &[f32]) -> Vec<f32> {
    let cap = |logit: &f32| match config.logit_softcapping {
        None => *logit,
        Some(cap) => (logit / cap).tanh() * cap,
    };
    let logits: Vec<f32> = logits.iter().map(cap).collect();
    match config.scoring {
        Scoring::Softmax => softmax(&logits),
        Scoring::Sigmoid => logits.into_iter().map(sigmoid).collect(),
        Scoring::SqrtSoftplus => logits.into_iter().map(|logit| softplus(logit).sqrt()).collect(),
        Scoring::SigmoidOfLogit | Scoring::Sparsemixer { .. } => logits,
    }
}

/// The weights of the experts that were picked; all are NaN where `has_nan`.
fn weigh(config: &Moe, scores: &[f32], picked: &[usize], has_nan: bool, chosen: &mut Vec<(usize, f32)>) {
    chosen.clear();
    let weights: Vec<f32> = match config.scoring {
        Scoring::SigmoidOfLogit => picked.iter().map(|&expert| sigmoid(scores[expert])).collect(),
        _ => picked.iter().map(|&expert| scores[expert]).collect(),
    };
    let sum = || weights.iter().sum::<f32>();
    let total: f32 = match config.normalization {
        Normalization::None => 1.0,
        Normalization::Sum { plus } => sum() + plus,
        Normalization::SumAtLeast(least) => sum().max(least),
        Normalization::PNorm(p) => weights.iter().map(|w| w.abs().powf(p)).sum::<f32>().powf(1.0 / p),
    };
    // NaN has no order: for any place that the sort gives it, the row must not become finite.
    let total = if has_nan { f32::NAN } else { total };
    let scaled = weights.iter().map(|weight| weight / total * config.scaling);
    chosen.extend(picked.iter().copied().zip(scaled));
}

/// One expert after the other, the highest logit first; each one's weight is its share in a softmax over the remaining
/// experts whose logits are within the band.
fn sparsemixer(logits: &[f32], count: usize, jitter: f32, chosen: &mut Vec<(usize, f32)>) {
    chosen.clear();
    let nan = logits.iter().any(|logit| logit.is_nan());
    let mut left: Vec<usize> = (0..logits.len()).collect();
    for _ in 0..count {
        let Some(&best) = top_k(logits, left.iter().copied(), 1).first() else { break };
        let max = logits[best];
        let in_band =
            |expert: &&usize| (max - logits[**expert]) / logits[**expert].abs().max(max) <= 2.0 * jitter;
        let total: f32 = left.iter().filter(in_band).map(|&expert| (logits[expert] - max).exp()).sum();
        chosen.push((best, if nan { f32::NAN } else { 1.0 / total }));
        left.retain(|&expert| expert != best);
    }
    chosen.sort_unstable_by_key(|&(expert, _)| expert);
}

/// The indices of the `count` highest scores, ascending; of equal scores the first.
fn top_k(scores: &[f32], open: impl IntoIterator<Item = usize>, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = open.into_iter().collect();
    if (1..order.len()).contains(&count) {
        order.select_nth_unstable_by(count - 1, |&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    }
    order.truncate(count);
    order.sort_unstable();
    order
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// ln(1 + e^x); NaN stays.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p() + 0.0 * x
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

    fn config(scoring: Scoring, normalization: Normalization, groups: ExpertGroups) -> Moe {
        Moe { scoring, normalization, groups, scaling: 2.0, ..Moe::plain(4, 2, 1) }
    }

    fn routed(config: &Moe, logits: &[f32], correction_bias: &[f32]) -> Vec<(usize, f32)> {
        let mut chosen = Vec::new();
        route(config, logits, correction_bias, &mut chosen);
        chosen
    }

    #[test]
    fn the_best_of_many_are_those_that_a_sort_has_first() {
        let scores: Vec<f32> = (0..128).map(|i| ((i * 37 + 11) % 29) as f32 - 14.0).collect();
        let mut sorted: Vec<usize> = (0..128).collect();
        sorted.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        for count in [0, 1, 8, 127, 128, 200] {
            let mut best = sorted[..count.min(128)].to_vec();
            best.sort_unstable();
            assert_eq!(top_k(&scores, 0..128, count), best, "{count}");
        }
    }

    #[test]
    fn rows_are_sorted_by_expert() {
        let chosen = [vec![(2, 0.5), (0, 0.25)], vec![], vec![(2, 1.0), (9, 1.0)]];
        let (mut order, mut ends) = (vec![(7, 7.0)], vec![9]);
        sort_by_expert(&chosen, 3, &mut order, &mut ends);
        assert_eq!((order, ends), (vec![(0, 0.25), (0, 0.5), (2, 1.0)], vec![1, 1, 3]));
    }

    #[test]
    fn the_best_are_chosen_in_the_order_of_their_numbers_and_the_first_of_equals() {
        let of_chosen = config(Scoring::Softmax, Normalization::SUM, ExpertGroups::None);
        assert_eq!(routed(&of_chosen, &[0.0, 1.0, 1.0, 1.0], &[]), [(1, 1.0), (2, 1.0)]);
        let all = config(Scoring::Softmax, Normalization::None, ExpertGroups::None);
        let equal = routed(&all, &[3.0; 4], &[]);
        assert_eq!(equal, [(0, 0.5), (1, 0.5)]);
    }

    #[test]
    fn a_correction_bias_changes_the_choice_and_not_the_weight() {
        let sigmoid = config(Scoring::Sigmoid, Normalization::None, ExpertGroups::None);
        let chosen = routed(&sigmoid, &[0.0, 5.0, 4.0, 0.0], &[0.0, 0.0, -1.0, 0.1]);
        assert_eq!((chosen[0].0, chosen[1]), (1, (3, 1.0)));
    }

    #[test]
    fn a_nan_in_any_score_makes_every_weight_nan() {
        let limited = ExpertGroups::Limited {
            n_group: 2,
            topk_group: 1,
            group_top_k: 2,
            closed: ClosedGroups::Excluded,
        };
        let scorings = [Scoring::Softmax, Scoring::Sigmoid, Scoring::SigmoidOfLogit]
            .into_iter()
            .flat_map(|s| [(s, ExpertGroups::None), (s, limited)]);
        for (scoring, groups) in scorings {
            // The sign decides whether an order has it first or last.
            for nan in [f32::NAN, -f32::NAN] {
                let config = config(scoring, Normalization::SUM, groups);
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
    fn the_sparse_mixer_weighs_each_within_its_band() {
        let moe = Moe { scoring: Scoring::Sparsemixer { jitter: 0.1 }, ..Moe::plain(4, 2, 1) };
        // 4.5 is within 20 % of 5, the others are not; then 4.5 stands alone.
        let chosen = routed(&moe, &[1.0, 4.5, 3.0, 5.0], &[]);
        let share = 1.0 / (1.0 + (-0.5f32).exp());
        assert_eq!(chosen, [(1, 1.0), (3, share)]);
        assert!(routed(&moe, &[1.0, f32::NAN, 3.0, 5.0], &[]).iter().all(|(_, weight)| weight.is_nan()));
    }

    #[test]
    fn weights_are_normalized_as_the_family_says() {
        let weights = |normalization| {
            let moe = Moe { normalization, scoring: Scoring::Sigmoid, ..Moe::plain(2, 2, 1) };
            let chosen = routed(&moe, &[0.0, 0.0], &[]);
            chosen.iter().map(|(_, weight)| *weight).collect::<Vec<f32>>()
        };
        assert_eq!(weights(Normalization::None), [0.5; 2]);
        assert_eq!(weights(Normalization::SumAtLeast(2.0)), [0.25; 2]);
        assert!((weights(Normalization::PNorm(2.0))[0] - 0.5f32.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn experts_of_a_table_have_the_weights_of_their_scores() {
        let moe = config(Scoring::SqrtSoftplus, Normalization::SUM, ExpertGroups::None);
        let mut chosen = Vec::new();
        weigh_listed(&moe, &[9.0, 0.0, -1.0, 1.0], &[3, 1], &mut chosen);
        let root = |x: f32| (1.0 + x.exp()).ln().sqrt();
        let total = root(0.0) + root(1.0);
        assert_eq!(chosen.iter().map(|(expert, _)| *expert).collect::<Vec<_>>(), [1, 3]);
        for ((_, weight), expected) in chosen.iter().zip([root(0.0), root(1.0)]) {
            assert!((weight - 2.0 * expected / total).abs() < 1e-6);
        }
        weigh_listed(&moe, &[f32::NAN, 0.0, -1.0, 1.0], &[3, 1], &mut chosen);
        assert!(chosen.iter().all(|(_, weight)| weight.is_nan()));
    }

    #[test]
    fn closed_groups_are_not_chosen_from() {
        let groups = ExpertGroups::Limited {
            n_group: 2,
            topk_group: 1,
            group_top_k: 2,
            closed: ClosedGroups::Excluded,
        };
        let limited = config(Scoring::Softmax, Normalization::None, groups);
        // The best expert is alone in its group; the other group is better together.
        let chosen: Vec<usize> =
            routed(&limited, &[2.0, -9.0, 1.9, 1.8], &[]).iter().map(|&(expert, _)| expert).collect();
        assert_eq!(chosen, [2, 3]);
    }
}
