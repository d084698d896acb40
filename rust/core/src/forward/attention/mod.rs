//! Attention of a layer: queries, keys and values of every row, their norms and rotation, the cache, the softmax over
//! it ([`tiles`]), and the output projection back to the residual stream.

pub(crate) mod choices;
pub(crate) mod columns;
pub(crate) mod group_products;
pub(crate) mod mla;
pub(crate) mod observed;
mod online_softmax;
mod queries;
pub(crate) mod score_bias;
pub(crate) mod segments;
mod tiles;

use super::recurrent;
use super::residual::{BranchBuffers, add_residual, add_scaled, matmul, norm, norm_or_copy, normed_input};
use super::rope::{RopeAngles, apply_rope};
use super::state::{Pass, Run};
use super::step::{Branch, Steps};
use crate::config::{AttentionGate, LayerRope, Norm, QkNorm, QkNormPlace, QueryScaling};
use crate::kv_cache::{Block, KvSequence};
use crate::parts::{AttentionLayer, Layer, NormWeights, Projection};
use choices::Choices;
use columns::Columns;
use group_products::GroupProducts;
use mla::MlaBuffers;
pub use observed::ObservedHeads;
use online_softmax::Partials;
use ropechat_kernels::compute::activations::RowSource;
use ropechat_kernels::compute::phases::{Phase, lap};
use ropechat_kernels::compute::weight::Epilogue;
use ropechat_kernels::quant::PackedType;
use score_bias::{AddedScores, ScoreBias};
use segments::{Segment, segments};
use std::cell::RefCell;
use tiles::Keys;

/// Buffers of attention.
#[derive(Default)]
pub(super) struct AttentionBuffers {
    qkv: Vec<f32>, // [rows, Projection::stride]
    mla: MlaBuffers,
    /// What the last layer with choices chose.
    choices: Choices,
    /// Outputs of `o_a_proj`.
    group_outputs: GroupProducts,
    partials: Partials,
    /// Those with a mechanism's keys.
    further: Partials,
    /// q and k before rotation, where an observer wants them.  // [rows, q and k of all heads]
    unrotated: Option<Vec<f32>>,
}

impl AttentionBuffers {
    /// Whether the next layer keeps its q and k before rotation.
    pub fn keep_unrotated(&mut self, wanted: bool) {
        self.unrotated = wanted.then(|| self.unrotated.take().unwrap_or_default());
    }

    /// The heads of the layer that these buffers are left by.
    pub fn observed<'a>(
        &'a self,
        pass: Pass<'a>,
        layer: &'a Layer,
        run: &'a Run<'_>,
        steps: &'a Steps<'_>,
    ) -> Option<ObservedHeads<'a>> {
        let attention = layer.attention.as_ref()?;
        let unrotated = self.unrotated.as_deref().unwrap_or_default();
        let bias = ScoreBias::of(pass, attention, added_scores(layer, steps), &self.qkv);
        let chosen = chosen(layer, &self.choices, steps);
        let further = steps.iter().find_map(|step| step.further_keys(layer));
        Some(ObservedHeads::new(pass, attention, run, [&self.qkv, unrotated], (chosen, bias), further))
    }
}

/// The choices that a layer's attention follows, if it does.
fn chosen<'a>(layer: &Layer, choices: &'a Choices, steps: &Steps<'_>) -> Option<&'a Choices> {
    let chooses = steps.iter().any(|step| step.chooses(layer));
    (chooses && !choices.is_empty()).then_some(choices)
}

/// What a step adds to a layer's scores.
fn added_scores<'a>(layer: &Layer, steps: &'a Steps<'_>) -> Option<&'a dyn AddedScores> {
    steps.iter().find_map(|step| step.added_scores(layer))
}

/// x += o_proj(attention(norm(x))). Keys and values of the rows go into the runs' caches.  // x [rows, hidden_size]
pub(super) fn attention(
    pass: Pass<'_>,
    layer: &Layer,
    runs: &mut [Run<'_>],
    angles: &[RopeAngles],
    x: &mut [f32],
    branch: &mut BranchBuffers,
    buffers: (&mut AttentionBuffers, &mut Steps<'_>),
) {
    let Some(attention) = &layer.attention else { return };
    let input_type = attention.projection.input_type();
    normed_input(pass, attention.attention_norm.as_ref(), input_type, x, &mut branch.input);
    attend_input(pass, layer, runs, angles, x, branch, buffers);
}

/// x += o_proj(attention(branch.input)).  // x [rows, hidden_size]
pub(super) fn attend_input(
    pass: Pass<'_>,
    whole: &Layer,
    runs: &mut [Run<'_>],
    angles: &[RopeAngles],
    x: &mut [f32],
    branch: &mut BranchBuffers,
    (buffers, steps): (&mut AttentionBuffers, &mut Steps<'_>),
) {
    let Some(layer) = &whole.attention else { return };
    let Pass { config, kernels, pool, .. } = pass;
    let AttentionBuffers { qkv, mla, choices, group_outputs, partials, further, unrotated } = buffers;
    let rows = pass.rows(x);
    let stride = layer.stride(config);
    qkv.resize(rows * stride, 0.0);
    match &layer.projection {
        Projection::Heads(weight) => weight.matmul(&branch.input, kernels, pool, Epilogue::Store(qkv)),
        Projection::Mla(weights) => {
            let input = &mut branch.input;
            if let Some(latent) = mla::project(pass, layer, weights, input, mla, qkv) {
                steps.iter_mut().for_each(|step| step.after_latent(pass, whole, &latent, input, qkv));
            }
        }
        Projection::OfMechanism(_) => {
            let input = &mut branch.input;
            steps.iter_mut().for_each(|step| step.project(pass, whole, x, input, qkv));
        }
    }
    for step in &mut *steps {
        step.after_projection(pass, whole, runs, (qkv, stride), &mut branch.input);
    }
    lap(Phase::QkvProj);
    rotate_and_store(pass, layer, runs, angles, qkv, unrotated.as_mut());
    steps.iter_mut().for_each(|step| step.after_store(pass, whole, runs, angles, (qkv, stride)));
    lap(Phase::RopeAndCache);

    let caches: Vec<(&KvSequence, usize)> = runs.iter().map(|run| (&*run.cache, run.ids.len())).collect();
    steps.iter_mut().for_each(|step| step.choose(pass, whole, &caches, qkv, choices));
    let bias = ScoreBias::of(pass, layer, added_scores(whole, steps), qkv);
    let (chosen, reads_further) = (chosen(whole, choices, steps), layer.further_heads > 0);
    // Choices are of a mechanism's keys where there are any.
    let of_own = chosen.filter(|_| !reads_further);
    tiles::attend(pass, (layer, Keys::own(layer)), &caches, qkv, (of_own, bias), partials);
    if reads_further {
        tiles::attend(pass, (layer, Keys::further(layer)), &caches, qkv, (chosen, bias), further);
    }
    let further = reads_further.then_some(&*further);
    lap(Phase::Attention);
    let all = layer.heads.out_width();
    let gates = Columns::of(config, layer).gates;
    // The output of a row's heads from `first` on.
    let write_heads = |row: usize, first: usize, out: &mut [f32]| {
        partials.write_output(further, (row, first), &layer.sinks, out, kernels);
    };
    if steps.iter_mut().any(|step| step.add_outputs(pass, whole, angles, &write_heads, branch, x)) {
        return lap(Phase::OProj);
    }
    let Some(o_proj) = &layer.o_proj else { return };
    let finish = |row: usize, out: &mut [f32]| {
        apply_gate(config.attention_gate, &qkv[row * stride..][gates.clone()], out);
        if layer.attention_sub_norm.is_some() {
            SCRATCH.with_borrow_mut(|scratch| {
                scratch.clear();
                scratch.extend_from_slice(out);
                norm_or_copy(pass, scratch, layer.attention_sub_norm.as_ref(), out);
            });
        }
    };
    let input = &mut branch.input;
    let groups = layer.o_a_proj.len();
    if let Some(heads) = layer.heads.num_attention_heads.checked_div(groups) {
        let write = |group: usize, row: usize, out: &mut [f32]| write_heads(row, group * heads, out);
        group_outputs.multiply(pass, &layer.o_a_proj, rows, &write, input);
    }
    let attended = |row: usize, out: &mut [f32]| {
        match layer.lambdas[..] {
            [lambda, initial] => SCRATCH.with_borrow_mut(|scratch| {
                scratch.resize(all, 0.0);
                write_heads(row, 0, scratch);
                combine_differential(pass, layer.heads.v_head_dim, [lambda, initial], scratch, out);
            }),
            _ if groups == 0 => write_heads(row, 0, out),
            _ => {
                let width = out.len() / groups;
                for (group, out) in out.chunks_exact_mut(width).enumerate() {
                    out.copy_from_slice(&group_outputs.of(group, row)[..width]);
                }
            }
        }
        finish(row, out);
    };
    let source = RowSource::Computed(&attended);
    input.quantize_rows(rows, o_proj.in_features(), o_proj.input_type(), kernels, pool, source);
    lap(Phase::Norm);
    if let Some(step) = steps.iter_mut().find(|step| step.adds_results(whole)) {
        matmul(pass, o_proj, &branch.input, &mut branch.out);
        let output = recurrent::Rows { values: &branch.out, stride: o_proj.padded_out() };
        return step.add_result(pass, whole, Branch::Attention, runs, output, x);
    }
    if let Some(scales) = &layer.residual_scales {
        matmul(pass, o_proj, &branch.input, &mut branch.out);
        return add_scaled(pass, scales, &branch.out, o_proj.padded_out(), x);
    }
    let factors = layer.spec.residual_factors[0];
    add_residual(pass, o_proj, layer.attention_out_norm.as_ref(), factors, branch, x);
    lap(Phase::OProj);
}

/// out = (1 - initial) norm(first half of the heads - lambda * second half).  // heads [2n * width], out [n * width]
fn combine_differential(
    pass: Pass<'_>,
    width: usize,
    [lambda, initial]: [f32; 2],
    heads: &mut [f32],
    out: &mut [f32],
) {
    let (kernels, ones) = (pass.kernels, vec![1.0; width]);
    let (first, second) = heads.split_at_mut(out.len());
    kernels.axpby(first, second, 1.0, -lambda);
    for (head, out) in first.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        norm(pass.config.norm, head, &ones, &ones, out, kernels);
    }
    kernels.scale(out, 1.0 - initial);
}

/// Multiplies a row of attention's output by its gates: each gate by `out.len() / gates.len()` values.
fn apply_gate(gate: AttentionGate, gates: &[f32], out: &mut [f32]) {
    let of_gate: fn(f32) -> f32 = match gate {
        AttentionGate::None => return,
        AttentionGate::Sigmoid(_) => |x| 1.0 / (1.0 + (-x).exp()),
        AttentionGate::Softplus(_) => |x| x.max(0.0) + (-x.abs()).exp().ln_1p() + 0.0 * x, // NaN stays
    };
    let width = out.len() / gates.len();
    for (out, &gate) in out.chunks_exact_mut(width).zip(gates) {
        let factor = of_gate(gate);
        out.iter_mut().for_each(|out| *out *= factor);
    }
}

/// Norms and rotates q and k in place and stores k and v in the cache's blocks.  // qkv [rows, stride]
fn rotate_and_store<'a>(
    pass: Pass<'_>,
    layer: &AttentionLayer,
    runs: &'a mut [Run<'_>],
    angles: &[RopeAngles],
    qkv: &'a mut [f32],
    unrotated: Option<&'a mut Vec<f32>>,
) {
    let stride = layer.stride(pass.config);
    let kept_width = if unrotated.is_some() { layer.qk_width() } else { 0 };
    let mut unrotated = match unrotated {
        None => &mut [][..],
        Some(kept) => {
            kept.resize(qkv.len() / stride * kept_width, 0.0);
            &mut kept[..]
        }
    };
    let with_unrotated = |segment: Segment<'a>| {
        let values = segment.qkv.len() / stride * kept_width;
        let (kept, later) = std::mem::take(&mut unrotated).split_at_mut(values);
        unrotated = later;
        (segment, kept)
    };
    let mut segments: Vec<_> = segments(runs, qkv, stride).into_iter().map(with_unrotated).collect();
    pass.pool.for_each(&mut segments, |(segment, unrotated)| {
        for (row, qkv) in segment.qkv.chunks_exact_mut(stride).enumerate() {
            let kept = &mut unrotated[row * kept_width..][..kept_width];
            norm_and_rotate(pass, layer, angles, qkv, segment.row + row, segment.position + row, kept);
            store(pass, layer, qkv, segment.block, segment.offset + row);
        }
    });
}

/// Norms, clips, rotates and scales one row; q and k before rotation go to `unrotated`.  // qkv [stride]
fn norm_and_rotate(
    pass: Pass<'_>,
    layer: &AttentionLayer,
    angles: &[RopeAngles],
    qkv: &mut [f32],
    row: usize,
    position: usize,
    unrotated: &mut [f32],
) {
    let Pass { config, kernels, .. } = pass;
    let (dim, queries, both) = (layer.heads.head_dim, layer.heads.q_width(), layer.qk_width());
    let norm_both = |qkv: &mut [f32]| {
        if let Some([q_norm, k_norm]) = &layer.qk_norms {
            norm_heads(pass, dim, &mut qkv[..queries], q_norm);
            norm_heads(pass, dim, &mut qkv[queries..both], k_norm);
        }
    };
    if config.qk_norm_place == QkNormPlace::BeforeRotation {
        norm_both(qkv);
    }
    if let Some(limit) = config.clip_qkv {
        qkv.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
    }
    unrotated.copy_from_slice(&qkv[..unrotated.len()]);
    if let LayerRope::Rotary(rope) = layer.spec.rope {
        apply_rope(&angles[rope], row, &mut qkv[..both], dim, kernels);
    }
    if config.qk_norm_place == QkNormPlace::AfterRotation {
        norm_both(qkv);
    }
    if config.query_scaling != QueryScaling::None {
        let factor = config.query_scaling.factor(&layer.spec, position) as f32;
        kernels.scale(&mut qkv[..queries], factor);
        kernels.scale(&mut qkv[Columns::of(config, layer).relative], factor);
    }
    if layer.spec.shares_kv_of.is_none() {
        let values = &mut qkv[both..layer.qkv_width()];
        if let Some(value_norm) = &layer.value_norm {
            norm_heads(pass, layer.heads.v_head_dim, values, value_norm);
        }
        if config.value_scale != 1.0 {
            kernels.scale(values, config.value_scale);
        }
    }
}

/// Norms q, k or v of all heads.  // heads [n * dim]
fn norm_heads(pass: Pass<'_>, dim: usize, heads: &mut [f32], weights: &NormWeights) {
    let (width, kind) = match pass.config.qk_norm {
        QkNorm::FullWidth => (heads.len(), pass.config.norm),
        QkNorm::Length => (dim, Norm::RmsNorm { eps: LEAST_LENGTH * LEAST_LENGTH / dim as f32 }),
        _ => (dim, pass.config.norm),
    };
    if heads.is_empty() {
        return; // the layer has no keys of its own
    }
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        scratch.extend_from_slice(heads);
        for (head, (x, out)) in scratch.chunks_exact(width).zip(heads.chunks_exact_mut(width)).enumerate() {
            let part = head * width..(head + 1) * width;
            let (weight, bias) = (&weights.weight[part.clone()], &weights.bias[part]);
            norm(kind, x, weight, bias, out, pass.kernels);
        }
    });
}

/// A query or a key is not divided by less than this (transformers, `ZayaQKNorm`).
const LEAST_LENGTH: f32 = f32::EPSILON;

/// Writes a row's own keys and values into their place in the block.  // qkv [stride]
fn store(pass: Pass<'_>, layer: &AttentionLayer, qkv: &[f32], block: &mut Block, offset: usize) {
    let (heads, both) = (layer.heads, layer.qk_width());
    let is_whole = layer.common_key.is_empty() || block.dtype() == PackedType::F32;
    let mut values = qkv[both..layer.qkv_width()].chunks_exact(heads.v_head_dim);
    let mut write = |keys: &[f32]| {
        for (head, key) in keys.chunks_exact(heads.head_dim).enumerate() {
            block.write(layer.kv_index, head, offset, key, values.next().unwrap_or_default(), pass.kernels);
        }
    };
    let keys = &qkv[heads.q_width()..both];
    if is_whole {
        return write(keys);
    }
    // Qwen 2.5 has biases of 150, whose rounding alone would change what is attended to.
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        scratch.extend(keys.iter().zip(&layer.common_key).map(|(key, common)| key - common));
        write(scratch);
    });
}

thread_local! {
    /// Heads before their norm.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}
