//! Softmax attention over the cache, one tile of 32 positions at a time.
//!
//! A task is one key/value head and a few rows of one run, with all query heads that share it. Per tile it computes one
//! partial result (max, sum, weighted values) and joins the partials in tile order (online softmax: Milakov and
//! Gimelshein 2018; FlashAttention, Dao et al. 2022). Tiles are the cache's blocks, so their edges are fixed positions:
//! prefill and decode do the same additions in the same order (law 1).

use crate::buffer::plain_bytes;
use crate::config::Mask;
use crate::forward::Compute;
use crate::kernel::{Kernels, LANES, Panels};
use crate::kv_cache::{BLOCK, KvSequence};
use crate::model::{Layer, Model};
use std::cell::RefCell;
use std::ops::Range;

/// Query vectors (rows x query heads of the group) per task: keys of a tile are loaded once for all of them.
const QUERIES_PER_TASK: usize = 48;

/// Some rows of one run for one key/value head.
struct Task<'a> {
    cache: &'a KvSequence,
    head: usize,
    /// Position of the first row.
    position: usize,
    /// First row in `qkv`.
    row: usize,
    out: &'a mut [f32], // [rows, group_size * v_head_dim]
}

/// Attention of every row to its own sequence up to itself, as far as the layer's mask lets it see.
///
/// `caches`: each run's cache and number of rows; `qkv` `[rows, stride]`, rotated; `heads`
/// `[num_kv_heads, rows, group_size * v_head_dim]`.
pub(super) fn attend(
    model: &Model,
    index: usize,
    layer: &Layer,
    caches: &[(&KvSequence, usize)],
    qkv: &[f32],
    heads: &mut [f32],
    compute: Compute<'_>,
) {
    let config = &model.config;
    let group = config.group_size();
    let rows_per_task = (QUERIES_PER_TASK / group).max(1);
    let mut tasks = Vec::new();
    let head_width = heads.len() / config.num_key_value_heads;
    for (head, mut out) in heads.chunks_exact_mut(head_width).enumerate() {
        let mut row = 0;
        for &(cache, rows) in caches {
            for first in (0..rows).step_by(rows_per_task) {
                let count = rows_per_task.min(rows - first);
                let (part, rest) = std::mem::take(&mut out).split_at_mut(count * group * config.v_head_dim);
                tasks.push(Task { cache, head, position: cache.len() + first, row: row + first, out: part });
                out = rest;
            }
            row += rows;
        }
    }
    let view = View {
        model,
        index,
        mask: config.layers[index].mask,
        sinks: &layer.sinks,
        qkv,
        stride: model.qkv_stride(layer),
        kernels: compute.kernels,
    };
    compute.pool.for_each(&mut tasks, |task| {
        SCRATCH.with_borrow_mut(|scratch| view.attend(task, scratch));
    });
}

/// What the tasks of a layer share.
struct View<'a> {
    model: &'a Model,
    index: usize,
    mask: Mask,
    sinks: &'a [f32],
    qkv: &'a [f32],
    stride: usize,
    kernels: Kernels,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Of M query vectors.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,  // [M, head_dim]
    scores: Vec<f32>,   // [M, 32]
    partial: Vec<f32>,  // [M, padded_value_dim]
    weighted: Vec<f32>, // [M, padded_value_dim]
    softmax: Vec<Softmax>,
}

/// The running softmax of one query.
#[derive(Clone, Copy)]
struct Softmax {
    max: f32,
    sum: f32,
}

impl View<'_> {
    fn attend(&self, task: &mut Task<'_>, scratch: &mut Scratch) {
        let config = &self.model.config;
        let (dim, value_dim, group) = (config.head_dim, config.v_head_dim, config.group_size());
        let rows = task.out.len() / (group * value_dim);
        let padded = self.model.kv_layout.padded_value_dim();
        scratch.reset(rows * group, dim, padded);
        for (row, queries) in scratch.queries.chunks_exact_mut(group * dim).enumerate() {
            let at = (task.row + row) * self.stride + task.head * group * dim;
            queries.copy_from_slice(&self.qkv[at..][..group * dim]);
        }
        if !self.sinks.is_empty() {
            // A sink is a score that no value belongs to: the running softmax starts with it.
            let sinks = &self.sinks[task.head * group..][..group];
            for (softmax, &sink) in scratch.softmax.iter_mut().zip(sinks.iter().cycle()) {
                *softmax = Softmax { max: sink, sum: 1.0 };
            }
        }
        let last = task.position + rows - 1;
        for tile in self.mask.first(task.position) / BLOCK..=last / BLOCK {
            let block = &task.cache.blocks()[tile];
            scratch.scores(block.keys(self.index, task.head), self.model, self.kernels);
            let values = block.values(self.index, task.head);
            // Rows that see the same part of the tile share a product; on the diagonals each row has its own.
            let mut row = 0;
            while row < rows {
                let seen = self.mask.part(tile, task.position + row);
                let same = |r: &usize| self.mask.part(tile, task.position + r) == seen;
                let together = (row..rows).take_while(same).count();
                if !seen.is_empty() {
                    let queries = row * group..(row + together) * group;
                    scratch.join(queries, seen, values, self.model, self.kernels);
                }
                row += together;
            }
        }
        for (m, out) in task.out.chunks_exact_mut(value_dim).enumerate() {
            let sum = scratch.softmax[m].sum;
            for (out, weighted) in out.iter_mut().zip(&scratch.weighted[m * padded..]) {
                *out = weighted / sum;
            }
        }
    }
}

impl Mask {
    /// The first position that `position` sees.
    fn first(self, position: usize) -> usize {
        match self {
            Mask::Causal => 0,
            Mask::Sliding(window) => (position + 1).saturating_sub(window),
        }
    }

    /// The part of a tile that `position` sees.
    fn part(self, tile: usize, position: usize) -> Range<usize> {
        let start = tile * BLOCK;
        let end = (position + 1).saturating_sub(start).min(BLOCK);
        self.first(position).saturating_sub(start).min(end)..end
    }
}

impl Scratch {
    fn reset(&mut self, queries: usize, dim: usize, padded: usize) {
        self.queries.resize(queries * dim, 0.0);
        self.scores.resize(queries * BLOCK, 0.0);
        self.partial.resize(queries * padded, 0.0);
        self.weighted.clear();
        self.weighted.resize(queries * padded, 0.0);
        self.softmax.clear();
        self.softmax.resize(queries, Softmax { max: f32::NEG_INFINITY, sum: 0.0 });
    }

    /// scores = queries times the keys of one tile.  // [M, 32]
    fn scores(&mut self, keys: &[u8], model: &Model, kernels: Kernels) {
        let dim = model.config.head_dim;
        let keys = Panels {
            format: model.kv_layout.dtype,
            bytes: keys,
            panel_bytes: keys.len() / 2,
            count: 2,
            steps: dim,
        };
        kernels.product(
            keys,
            plain_bytes(&self.queries),
            dim * 4,
            self.softmax.len(),
            &mut self.scores,
            BLOCK,
        );
    }

    /// Joins the partial result of one tile, of which the positions `seen` count, into some queries.
    fn join(
        &mut self,
        queries: Range<usize>,
        seen: Range<usize>,
        values: &[u8],
        model: &Model,
        kernels: Kernels,
    ) {
        let (padded, scale) = (model.kv_layout.padded_value_dim(), model.config.attention_multiplier);
        let tile: Vec<Softmax> = queries
            .clone()
            .map(|m| {
                let scores: &mut [f32; BLOCK] =
                    self.scores[m * BLOCK..].first_chunk_mut().expect("32 scores per query");
                let scale = match model.config.attn_logit_softcapping {
                    None => scale,
                    Some(cap) => {
                        kernels.softcap(&mut scores[..seen.end], scale, cap);
                        1.0
                    }
                };
                scores[..seen.start].fill(f32::NEG_INFINITY);
                let (max, sum) = kernels.softmax_tile(scores, seen.end, scale);
                Softmax { max, sum }
            })
            .collect();
        let count = padded / LANES;
        let values = Panels {
            format: model.kv_layout.dtype,
            bytes: values,
            panel_bytes: values.len() / count,
            count,
            steps: seen.end,
        };
        let scores = plain_bytes(&self.scores[queries.start * BLOCK..queries.end * BLOCK]);
        let partial = &mut self.partial[queries.start * padded..];
        kernels.product(values, scores, BLOCK * 4, queries.len(), partial, padded);
        for (m, tile) in queries.zip(tile) {
            let so_far = &mut self.softmax[m];
            let max = so_far.max.max(tile.max);
            let (keep, take) = ((so_far.max - max).exp(), (tile.max - max).exp());
            let part = m * padded..(m + 1) * padded;
            kernels.merge(&mut self.weighted[part.clone()], &self.partial[part], keep, take);
            *so_far = Softmax { max, sum: so_far.sum * keep + tile.sum * take };
        }
    }
}
