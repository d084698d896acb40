//! Attention of a layer: queries, keys and values of every row, their norms and rotation, the cache, the softmax over
//! it ([`tiles`]), and the output projection back to the residual stream.

mod mla;
mod observed;
mod online_softmax;
mod tiles;

use super::residual::{BranchBuffers, add_residual, norm, normed_input};
use super::rope::{RopeAngles, apply_rope};
use super::state::{Pass, Run};
use crate::compute::activations::RowSource;
use crate::compute::weight::Epilogue;
use crate::config::{AttentionGate, GateWidth, LayerRope, QkNorm, QueryScaling};
use crate::kv_cache::{BLOCK, Block, KvSequence};
use crate::model::{AttentionWeights, Layer, NormWeights, Projection};
use mla::MlaBuffers;
pub use observed::ObservedHeads;
use online_softmax::Partials;
use std::cell::RefCell;

/// Buffers of attention.
#[derive(Default)]
pub(super) struct AttentionBuffers {
    qkv: Vec<f32>, // [rows, Projection::stride]
    mla: MlaBuffers,
    partials: Partials,
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
        weights: &'a AttentionWeights,
        run: &'a Run<'_>,
    ) -> ObservedHeads<'a> {
        ObservedHeads::new(pass, layer, weights, run, &self.qkv, self.unrotated.as_deref().unwrap_or_default())
    }
}

/// x += o_proj(attention(norm(x))). Keys and values of the rows go into the runs' caches.  // x [rows, hidden_size]
pub(super) fn attention(
    pass: Pass<'_>,
    layer: &Layer,
    weights: &AttentionWeights,
    runs: &mut [Run<'_>],
    angles: &[RopeAngles],
    x: &mut [f32],
    branch: &mut BranchBuffers,
    buffers: &mut AttentionBuffers,
) {
    let Pass { config, kernels, pool, .. } = pass;
    let AttentionBuffers { qkv, mla, partials, unrotated } = buffers;
    let rows = pass.rows(x);
    normed_input(pass, layer.attention_norm.as_ref(), weights.projection.dtype(), x, &mut branch.input);
    qkv.resize(rows * weights.projection.stride(config), 0.0);
    match &weights.projection {
        Projection::Heads(weight) => weight.matmul(&branch.input, kernels, pool, Epilogue::Store(qkv)),
        Projection::Mla(mla_weights) => mla::project(pass, mla_weights, &mut branch.input, mla, qkv),
    }
    let angles = match layer.spec.rope {
        LayerRope::None => None,
        LayerRope::Rotary(rope) => Some(&angles[rope]),
    };
    rotate_and_store(pass, weights, runs, angles, qkv, unrotated.as_mut());

    let caches: Vec<(&KvSequence, usize)> = runs.iter().map(|run| (&*run.cache, run.ids.len())).collect();
    tiles::attend(pass, layer.spec, weights, &caches, qkv, partials);

    let (width, widths) = (config.num_attention_heads * config.v_head_dim, tiles::widths(pass));
    branch.input.quantize_rows(
        rows,
        width,
        weights.o_proj.dtype(),
        kernels,
        pool,
        RowSource::Computed(&|row, out| {
            partials.write_output(row, widths, &weights.sinks, out, kernels);
            apply_gate(pass, &qkv[row * weights.projection.stride(config)..][config.qkv_width()..], out);
        }),
    );
    add_residual(pass, &weights.o_proj, layer.attention_out_norm.as_ref(), branch, x);
}

/// Multiplies a row of attention's output by its gates, each for as many values as there are fewer gates.
fn apply_gate(pass: Pass<'_>, gates: &[f32], out: &mut [f32]) {
    let AttentionGate::Sigmoid(width) = pass.config.attention_gate else { return };
    let each = match width {
        GateWidth::PerHead => pass.config.v_head_dim,
        GateWidth::PerChannel => 1,
    };
    for (out, gate) in out.chunks_exact_mut(each).zip(gates) {
        let factor = 1.0 / (1.0 + (-gate).exp());
        out.iter_mut().for_each(|out| *out *= factor);
    }
}

/// Rows of one run that fall into one block.
struct Segment<'a> {
    qkv: &'a mut [f32],
    /// Where q and k go before rotation; empty where nobody wants them.  // [rows, q and k of all heads]
    unrotated: &'a mut [f32],
    /// The first row's index among the rows of all runs.
    row: usize,
    /// Position of the first row.
    position: usize,
    block: &'a mut Block,
    /// Where in the block the first row goes.
    offset: usize,
}

/// Norms and rotates q and k in place and stores k and v in the cache's blocks.  // qkv [rows, stride]
fn rotate_and_store(
    pass: Pass<'_>,
    weights: &AttentionWeights,
    runs: &mut [Run<'_>],
    angles: Option<&RopeAngles>,
    qkv: &mut [f32],
    unrotated: Option<&mut Vec<f32>>,
) {
    let stride = weights.projection.stride(pass.config);
    let (mut unrotated, kept_width): (&mut [f32], usize) = match unrotated {
        None => (&mut [], 0),
        Some(kept) => {
            let width = pass.config.qk_width();
            kept.resize(qkv.len() / stride * width, 0.0);
            (kept, width)
        }
    };
    let mut segments = Vec::new();
    let (mut qkv, mut first) = (qkv, 0);
    for run in runs {
        let (mut position, mut left) = (run.position(), run.ids.len());
        let mut offset = run.cache.len() % BLOCK;
        for block in run.cache.writable() {
            let rows = left.min(BLOCK - offset);
            let (head, tail) = std::mem::take(&mut qkv).split_at_mut(rows * stride);
            let (kept, kept_later) = std::mem::take(&mut unrotated).split_at_mut(rows * kept_width);
            segments.push(Segment { qkv: head, unrotated: kept, row: first, position, block, offset });
            (qkv, unrotated, offset) = (tail, kept_later, 0);
            (first, position, left) = (first + rows, position + rows, left - rows);
            if left == 0 {
                break;
            }
        }
        assert_eq!(left, 0, "the caller reserved room for every row");
    }
    pass.pool.for_each(&mut segments, |segment| {
        for (row, qkv) in segment.qkv.chunks_exact_mut(stride).enumerate() {
            let kept = &mut segment.unrotated[row * kept_width..][..kept_width];
            norm_and_rotate(pass, weights, angles, qkv, segment.row + row, segment.position + row, kept);
            store(pass, weights, qkv, segment.block, segment.offset + row);
        }
    });
}

/// Clips, norms, rotates and scales one row; q and k before rotation go to `unrotated`.  // qkv [stride]
fn norm_and_rotate(
    pass: Pass<'_>,
    weights: &AttentionWeights,
    angles: Option<&RopeAngles>,
    qkv: &mut [f32],
    row: usize,
    position: usize,
    unrotated: &mut [f32],
) {
    let Pass { config, kernels, .. } = pass;
    let dim = config.head_dim;
    let queries = config.num_attention_heads * dim;
    let keys = config.num_key_value_heads * dim;
    if let Some(limit) = config.clip_qkv {
        qkv.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
    }
    if let Some([q_norm, k_norm]) = &weights.qk_norms {
        norm_heads(pass, &mut qkv[..queries], q_norm);
        norm_heads(pass, &mut qkv[queries..queries + keys], k_norm);
    }
    unrotated.copy_from_slice(&qkv[..unrotated.len()]);
    if let Some(angles) = angles {
        apply_rope(angles, row, &mut qkv[..queries + keys], dim, kernels);
    }
    match config.query_scaling {
        QueryScaling::None => {}
        QueryScaling::Llama4 { beta, original_max_position_embeddings } => {
            let times = (position / original_max_position_embeddings) as f64;
            kernels.scale(&mut qkv[..queries], (1.0 + beta * times.ln_1p()) as f32);
        }
    }
}

/// Norms q or k of all heads.  // heads [n * head_dim]
fn norm_heads(pass: Pass<'_>, heads: &mut [f32], weights: &NormWeights) {
    let width = match pass.config.qk_norm {
        QkNorm::FullWidth => heads.len(),
        _ => pass.config.head_dim,
    };
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        scratch.extend_from_slice(heads);
        for (head, (x, out)) in scratch.chunks_exact(width).zip(heads.chunks_exact_mut(width)).enumerate() {
            let part = head * width..(head + 1) * width;
            let (weight, bias) = (&weights.weight[part.clone()], &weights.bias[part]);
            norm(pass.config.norm, x, weight, bias, out, pass.kernels);
        }
    });
}

/// Writes a row's keys and values into its place in the block.  // qkv [stride]
fn store(pass: Pass<'_>, weights: &AttentionWeights, qkv: &[f32], block: &mut Block, offset: usize) {
    let config = pass.config;
    let (dim, value_dim, heads) = (config.head_dim, config.v_head_dim, config.num_key_value_heads);
    let (keys, values) = qkv[config.num_attention_heads * dim..].split_at(heads * dim);
    let pairs = keys.chunks_exact(dim).zip(values.chunks_exact(value_dim));
    for (head, (key, value)) in pairs.take(heads).enumerate() {
        block.write(weights.kv_layer, head, offset, key, value, pass.kernels);
    }
}

thread_local! {
    /// Heads before their norm.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}
