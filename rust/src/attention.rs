//! Softmax attention over the cache, one tile of 32 positions at a time.
//!
//! A task is one key/value head and a few rows of one run, with all query heads that share it. Per tile it computes one
//! partial result (max, sum, weighted values) and joins the partials in tile order (online softmax: Milakov and
//! Gimelshein 2018; FlashAttention, Dao et al. 2022). Tiles are the cache's blocks, so their edges are fixed positions:
//! prefill and decode do the same additions in the same order (law 1).

use crate::buffer::plain_bytes;
use crate::forward::Compute;
use crate::kernel::{Kernels, LANES, Panels};
use crate::kv_cache::{BLOCK, KvSequence};
use crate::model::Model;
use std::cell::RefCell;

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
    out: &'a mut [f32], // [rows, group_size * head_dim]
}

/// Attention of every row to its own sequence up to itself.
///
/// `caches`: each run's cache and number of rows; `qkv` `[rows, stride]`, rotated; `heads`
/// `[num_kv_heads, rows, group_size * head_dim]`.
pub(crate) fn attend(
    model: &Model,
    layer: usize,
    caches: &[(&KvSequence, usize)],
    qkv: &[f32],
    stride: usize,
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
                let (part, rest) = std::mem::take(&mut out).split_at_mut(count * group * config.head_dim);
                tasks.push(Task { cache, head, position: cache.len() + first, row: row + first, out: part });
                out = rest;
            }
            row += rows;
        }
    }
    compute.pool.for_each(&mut tasks, |task| {
        SCRATCH.with_borrow_mut(|scratch| {
            attend_task(model, layer, task, qkv, stride, scratch, compute.kernels);
        });
    });
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Of M query vectors.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,  // [M, head_dim]
    scores: Vec<f32>,   // [M, 32]
    partial: Vec<f32>,  // [M, padded_head_dim]
    weighted: Vec<f32>, // [M, padded_head_dim]
    softmax: Vec<Softmax>,
}

/// The running softmax of one query.
#[derive(Clone, Copy)]
struct Softmax {
    max: f32,
    sum: f32,
}

fn attend_task(
    model: &Model,
    layer: usize,
    task: &mut Task<'_>,
    qkv: &[f32],
    stride: usize,
    scratch: &mut Scratch,
    kernels: Kernels,
) {
    let config = &model.config;
    let (dim, group) = (config.head_dim, config.group_size());
    let rows = task.out.len() / (group * dim);
    let padded = model.kv_layout.padded_head_dim();
    scratch.reset(rows * group, dim, padded);
    for (row, queries) in scratch.queries.chunks_exact_mut(group * dim).enumerate() {
        queries.copy_from_slice(&qkv[(task.row + row) * stride + task.head * group * dim..][..group * dim]);
    }
    let scale = 1.0 / (dim as f32).sqrt();
    let last = task.position + rows - 1;
    for tile in 0..=last / BLOCK {
        let block = &task.cache.blocks()[tile];
        let visible = |row: usize| (task.position + row + 1).saturating_sub(tile * BLOCK).min(BLOCK);
        scratch.scores(block.keys(layer, task.head), model, kernels);
        let values = block.values(layer, task.head);
        // Rows that see the same part of the tile share a product; on the diagonal each row has its own length.
        let mut row = 0;
        while row < rows {
            let valid = visible(row);
            let together = (row..rows).take_while(|&r| visible(r) == valid).count();
            if valid > 0 {
                let queries = row * group..(row + together) * group;
                scratch.join(queries, valid, scale, values, model, kernels);
            }
            row += together;
        }
    }
    for (m, out) in task.out.chunks_exact_mut(dim).enumerate() {
        let sum = scratch.softmax[m].sum;
        for (out, weighted) in out.iter_mut().zip(&scratch.weighted[m * padded..]) {
            *out = weighted / sum;
        }
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

    /// Joins the partial result of one tile, of which `valid` positions count, into some queries.
    fn join(
        &mut self,
        queries: std::ops::Range<usize>,
        valid: usize,
        scale: f32,
        values: &[u8],
        model: &Model,
        kernels: Kernels,
    ) {
        let padded = model.kv_layout.padded_head_dim();
        let tile: Vec<Softmax> = queries
            .clone()
            .map(|m| {
                let scores = self.scores[m * BLOCK..].first_chunk_mut().expect("32 scores per query");
                let (max, sum) = kernels.softmax_tile(scores, valid, scale);
                Softmax { max, sum }
            })
            .collect();
        let count = padded / LANES;
        let values = Panels {
            format: model.kv_layout.dtype,
            bytes: values,
            panel_bytes: values.len() / count,
            count,
            steps: valid,
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
