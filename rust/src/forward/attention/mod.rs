//! Attention of a layer: queries, keys and values of every row, their norms and rotation, the cache, the softmax over
//! it ([`tiles`]), and the way back to the residual stream.

mod latent;
pub(crate) mod partials;
mod tiles;

use crate::compute::weight::Epilogue;
use crate::config::{LayerRope, QkNorm, QueryScaling, RopeLayout};
use crate::forward::{Angles, Compute, Run, Workspace, close_branch, norm, normed_input};
use crate::kernel::Kernels;
use crate::kv_cache::{BLOCK, Block, KvSequence};
use crate::model::{Layer, Model, NormWeights, Projection};
use std::cell::RefCell;

/// x += o_proj(attention(norm(x))).
pub(crate) fn attention(
    model: &Model,
    index: usize,
    layer: &Layer,
    runs: &mut [Run<'_>],
    work: &mut Workspace,
    compute: Compute<'_>,
) {
    let Compute { kernels, pool, .. } = compute;
    let (config, rows) = (&model.config, work.x.len() / model.config.hidden_size);
    normed_input(model, layer.attention_norm.as_ref(), layer.projection.dtype(), work, compute);
    work.qkv.resize(rows * model.qkv_stride(layer), 0.0);
    match &layer.projection {
        Projection::Heads(weight) => {
            weight.matmul(&work.input, kernels, pool, Epilogue::Store(&mut work.qkv));
        }
        Projection::Latent(weights) => latent::project(model, weights, work, compute),
    }
    rotate_and_store(model, index, layer, runs, work, compute);

    let caches: Vec<(&KvSequence, usize)> = runs.iter().map(|run| (&*run.cache, run.ids.len())).collect();
    tiles::attend(model, index, layer, &caches, &work.qkv, &mut work.partials, compute);

    let (width, widths) = (config.num_attention_heads * config.v_head_dim, tiles::widths(model));
    let Workspace { partials, input, .. } = work;
    input.fill(rows, width, layer.o_proj.dtype(), kernels, pool, |row, out| {
        partials.finish(row, widths, &layer.sinks, out, kernels);
    });
    close_branch(model, &layer.o_proj, layer.attention_out_norm.as_ref(), work, compute);
}

/// Rows of one run that fall into one block.
struct Segment<'a> {
    qkv: &'a mut [f32],
    /// First row of all.
    row: usize,
    /// Position of the first row.
    position: usize,
    block: &'a mut Block,
    slot: usize,
}

/// Norms and rotates q and k in place and stores k and v in the cache's blocks.
fn rotate_and_store(
    model: &Model,
    index: usize,
    layer: &Layer,
    runs: &mut [Run<'_>],
    work: &mut Workspace,
    compute: Compute<'_>,
) {
    let stride = model.qkv_stride(layer);
    let mut segments = Vec::new();
    let (mut qkv, mut first) = (&mut work.qkv[..], 0);
    for run in runs {
        let (mut position, mut left) = (run.cache.len(), run.ids.len());
        for block in run.cache.writable() {
            let slot = position % BLOCK;
            let rows = left.min(BLOCK - slot);
            let (head, tail) = std::mem::take(&mut qkv).split_at_mut(rows * stride);
            segments.push(Segment { qkv: head, row: first, position, block, slot });
            qkv = tail;
            (first, position, left) = (first + rows, position + rows, left - rows);
            if left == 0 {
                break;
            }
        }
        assert_eq!(left, 0, "the caller reserved room for every row");
    }
    let angles = match model.config.layers[index].rope {
        LayerRope::None => None,
        LayerRope::Rotary(rope) => Some(&work.angles[rope]),
    };
    let turn = Turn { model, index, layer, angles, kernels: compute.kernels };
    compute.pool.for_each(&mut segments, |segment| {
        for (row, qkv) in segment.qkv.chunks_exact_mut(stride).enumerate() {
            turn.turn(qkv, segment.row + row, segment.position + row);
            turn.store(qkv, segment.block, segment.slot + row);
        }
    });
}

/// What happens to a row of queries, keys and values on its way to the cache.
struct Turn<'a> {
    model: &'a Model,
    index: usize,
    layer: &'a Layer,
    angles: Option<&'a Angles>,
    kernels: Kernels,
}

impl Turn<'_> {
    /// Cuts, norms, rotates and scales one row.  // qkv [stride]
    fn turn(&self, qkv: &mut [f32], row: usize, position: usize) {
        let config = &self.model.config;
        let dim = config.head_dim;
        let queries = config.num_attention_heads * dim;
        let keys = config.num_key_value_heads * dim;
        if let Some(limit) = config.clip_qkv {
            qkv.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
        }
        if let Some([q_norm, k_norm]) = &self.layer.qk_norms {
            self.norm_heads(&mut qkv[..queries], q_norm);
            self.norm_heads(&mut qkv[queries..queries + keys], k_norm);
        }
        if let Some(angles) = self.angles {
            let (cos, sin) = angles.row(row);
            for head in qkv[..queries + keys].chunks_exact_mut(dim) {
                match angles.layout {
                    RopeLayout::HalfSplit => self.kernels.rotate_half(&mut head[..2 * cos.len()], cos, sin),
                    RopeLayout::Interleaved => {
                        self.kernels.rotate_pairs(&mut head[..2 * cos.len()], cos, sin);
                    }
                }
            }
        }
        match config.query_scaling {
            QueryScaling::None => {}
            QueryScaling::Llama4 { beta, original_max_position_embeddings } => {
                let times = (position / original_max_position_embeddings) as f64;
                self.kernels.scale(&mut qkv[..queries], (1.0 + beta * times.ln_1p()) as f32);
            }
        }
    }

    /// Norms q or k of all heads.  // heads [n * head_dim]
    fn norm_heads(&self, heads: &mut [f32], weights: &NormWeights) {
        let width = match self.model.config.qk_norm {
            QkNorm::FullWidth => heads.len(),
            _ => self.model.config.head_dim,
        };
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            scratch.extend_from_slice(heads);
            for (head, (x, out)) in scratch.chunks_exact(width).zip(heads.chunks_exact_mut(width)).enumerate()
            {
                let part = head * width..(head + 1) * width;
                let (weight, bias) = (&weights.weight[part.clone()], &weights.bias[part]);
                norm(self.model.config.norm, x, weight, bias, out, self.kernels);
            }
        });
    }

    fn store(&self, qkv: &[f32], block: &mut Block, slot: usize) {
        let config = &self.model.config;
        let (dim, value_dim, heads) = (config.head_dim, config.v_head_dim, config.num_key_value_heads);
        let (keys, values) = qkv[config.num_attention_heads * dim..].split_at(heads * dim);
        let pairs = keys.chunks_exact(dim).zip(values.chunks_exact(value_dim));
        for (head, (key, value)) in pairs.take(heads).enumerate() {
            block.write(self.index, head, slot, key, value, self.kernels);
        }
    }
}

thread_local! {
    /// Heads before their norm.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}
