//! Softmax attention over the cache, in chunks of 256 positions.
//!
//! A chunk gives one partial result per query: the largest score, the sum of the exponentials, the weighted values.
//! Chunks begin at fixed positions and are joined in order ([`super::partials`]), so prefill and decode do the same
//! additions in the same order, whichever thread does which chunk (law 1). Inside a chunk the cache's blocks of 32
//! positions are the tiles of two matrix products.
//!
//! A task is some rows of one run. With many rows it takes one key/value head, so that a tile is loaded once for many
//! queries; with few it takes all heads, whose keys lie side by side, and, where rows are fewer than threads want, one
//! chunk only.

use super::partials::{Partials, Widths, empty, join};
use crate::config::Mask;
use crate::forward::Compute;
use crate::kernel::{Kernels, LANES, Panels, Rows, prefetch};
use crate::kv_cache::{BLOCK, Block, KvSequence};
use crate::model::{Layer, Model};
use crate::platform::memory::plain_bytes;
use std::cell::RefCell;
use std::ops::Range;

/// Query vectors (rows x query heads of the group) per task: keys of a tile are loaded once for all of them.
const QUERIES_PER_TASK: usize = 48;
/// Positions per partial result.
const CHUNK: usize = 8 * BLOCK;
/// Tasks per thread from which no run is cut along its positions.
const TASKS_PER_THREAD: usize = 2;

/// Some rows of one run, for some heads and chunks.
struct Task<'a> {
    cache: &'a KvSequence,
    /// What is read first after this task, as far as that is known.
    next: Option<&'a Block>,
    heads: Range<usize>,
    chunks: Range<usize>,
    /// Position of the first row.
    position: usize,
    /// Rows in `qkv`.
    rows: Range<usize>,
    out: &'a mut [f32], // [heads, rows, group_size, partial]
}

/// Attention of every row to its own sequence up to itself, as far as the layer's mask lets it see.
///
/// `caches`: each run's cache and number of rows; `qkv` `[rows, stride]`, rotated.
pub(super) fn attend(
    model: &Model,
    index: usize,
    layer: &Layer,
    caches: &[(&KvSequence, usize)],
    qkv: &[f32],
    partials: &mut Partials,
    compute: Compute<'_>,
) {
    let widths = widths(model);
    let mask = model.config.layers[index].mask;
    let cuts = cuts(caches, mask, widths, TASKS_PER_THREAD * compute.pool.threads());
    let shapes = cuts.iter().map(|cut| (cut.rows.clone(), cut.heads, cut.parts.len()));
    let mut outs = partials.cut(shapes, widths);
    let mut tasks = Vec::new();
    for cut in &cuts {
        for head in (0..widths.heads).step_by(cut.heads) {
            for chunks in &cut.parts {
                tasks.push(Task {
                    cache: caches[cut.run].0,
                    next: caches.get(cut.run + 1).and_then(|(cache, _)| Some(&**cache.blocks().first()?)),
                    heads: head..head + cut.heads,
                    chunks: chunks.clone(),
                    position: cut.position,
                    rows: cut.rows.clone(),
                    out: outs.next().expect("room for every task"),
                });
            }
        }
    }
    let stride = model.qkv_stride(layer);
    let view = View { model, index, mask, widths, qkv, stride, kernels: compute.kernels };
    compute.pool.for_each(&mut tasks, |task| {
        SCRATCH.with_borrow_mut(|scratch| view.attend(task, scratch));
    });
}

/// Sizes of a model's partial results.
pub(super) fn widths(model: &Model) -> Widths {
    let config = &model.config;
    Widths {
        heads: config.num_key_value_heads,
        group: config.group_size(),
        value: config.v_head_dim,
        padded: model.kv_layout.padded_value_dim(),
    }
}

/// Rows of a run that are cut into tasks alike.
struct Cut {
    run: usize,
    position: usize,
    rows: Range<usize>,
    /// Key/value heads per task.
    heads: usize,
    /// Chunks of each task along the positions.
    parts: Vec<Range<usize>>,
}

/// How the rows of all runs are cut; `wanted` tasks keep every thread busy.
fn cuts(caches: &[(&KvSequence, usize)], mask: Mask, widths: Widths, wanted: usize) -> Vec<Cut> {
    let mut cuts = Vec::new();
    let mut row = 0;
    for (run, &(cache, rows)) in caches.iter().enumerate() {
        let many = rows * widths.group >= QUERIES_PER_TASK;
        let rows_per_task = QUERIES_PER_TASK / if many { widths.group } else { widths.group * widths.heads };
        let rows_per_task = rows_per_task.max(1);
        for first in (0..rows).step_by(rows_per_task) {
            let count = rows_per_task.min(rows - first);
            let position = cache.len() + first;
            let chunks = mask.first(position) / CHUNK..(position + count - 1) / CHUNK + 1;
            cuts.push(Cut {
                run,
                position,
                rows: row + first..row + first + count,
                heads: if many { 1 } else { widths.heads },
                parts: vec![chunks],
            });
        }
        row += rows;
    }
    let tasks: usize = cuts.iter().map(|cut| widths.heads / cut.heads).sum();
    if tasks < wanted {
        for cut in &mut cuts {
            cut.parts = cut.parts.drain(..).flatten().map(|chunk| chunk..chunk + 1).collect();
        }
    }
    cuts
}

/// What the tasks of a layer share.
struct View<'a> {
    model: &'a Model,
    index: usize,
    mask: Mask,
    widths: Widths,
    qkv: &'a [f32],
    stride: usize,
    kernels: Kernels,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Of the query vectors of a task, M per head.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>, // [heads, M, head_dim]
    scores: Vec<f32>,  // [heads, M, CHUNK]
    part: Vec<f32>,    // [heads, M, partial]
    /// A tile's keys or values where the cache holds bytes.
    tile: Vec<f32>, // [32, head_dim]
}

impl View<'_> {
    fn attend(&self, task: &mut Task<'_>, scratch: &mut Scratch) {
        let (dim, group) = (self.model.config.head_dim, self.widths.group);
        let queries = task.heads.len() * task.rows.len() * group;
        scratch.queries.clear();
        for head in task.heads.clone() {
            for row in task.rows.clone() {
                let at = row * self.stride + head * group * dim;
                scratch.queries.extend_from_slice(&self.qkv[at..][..group * dim]);
            }
        }
        scratch.scores.resize(queries * CHUNK, 0.0);
        scratch.part.resize(queries * self.widths.partial(), 0.0);
        let width = self.widths.partial();
        task.out.chunks_exact_mut(width).for_each(empty);
        for chunk in task.chunks.clone() {
            self.chunk(task, chunk, scratch);
            for (total, part) in task.out.chunks_exact_mut(width).zip(scratch.part.chunks_exact(width)) {
                join(total, part, self.kernels);
            }
        }
    }

    /// The partial results of one chunk, into `scratch.part`.
    fn chunk(&self, task: &Task<'_>, chunk: usize, scratch: &mut Scratch) {
        let last = task.position + task.rows.len() - 1;
        let tiles = chunk * CHUNK / BLOCK..(chunk + 1) * CHUNK / BLOCK;
        let tiles = tiles.start.max(self.mask.first(task.position) / BLOCK)..tiles.end.min(last / BLOCK + 1);
        // Blocks lie apart: the processor guesses neither where the next one is nor where its values are.
        let (blocks, layer) = (task.cache.blocks(), self.index);
        let block_after = |tile: usize| (tile + 1 < tiles.end).then(|| &*blocks[tile + 1]);
        for tile in tiles.clone() {
            for (index, head) in task.heads.clone().enumerate() {
                prefetch(match block_after(tile) {
                    Some(next) => next.keys(layer, head),
                    None => blocks[tiles.start].values(layer, head),
                });
                self.scores(task, index, head, tile, scratch);
            }
        }
        let softmaxes =
            scratch.scores.chunks_exact_mut(CHUNK).zip(scratch.part.chunks_exact_mut(self.widths.partial()));
        for (query, (scores, part)) in softmaxes.enumerate() {
            let row = query / self.widths.group % task.rows.len();
            let seen = self.mask.part(chunk * CHUNK..(chunk + 1) * CHUNK, task.position + row);
            empty(part);
            if !seen.is_empty() {
                let softmax = self.softmax(scores, seen);
                part[self.widths.padded..].copy_from_slice(&softmax);
            }
        }
        let first_later = blocks.get(tiles.end).map(|block| &**block).or(task.next);
        for tile in tiles.clone() {
            for (index, head) in task.heads.clone().enumerate() {
                prefetch(match (block_after(tile), first_later) {
                    (Some(next), _) => next.values(layer, head),
                    (None, Some(later)) => later.keys(layer, head),
                    (None, None) => &[],
                });
                self.weigh(task, index, head, tile, scratch);
            }
        }
    }

    /// Scores of a head's queries with the keys of one tile.
    fn scores(&self, task: &Task<'_>, index: usize, head: usize, tile: usize, scratch: &mut Scratch) {
        let (dim, count) = (self.model.config.head_dim, task.rows.len() * self.widths.group);
        let block = &task.cache.blocks()[tile];
        let (format, keys) = block.key_panels(self.index, head, &mut scratch.tile, self.kernels);
        let keys = Panels { format, bytes: keys, panel_bytes: keys.len() / 2, count: 2, steps: dim };
        let queries = plain_bytes(&scratch.queries[index * count * dim..]);
        let scores = &mut scratch.scores[index * count * CHUNK + tile * BLOCK % CHUNK..];
        let queries = Rows { bytes: queries, stride: dim * 4, count };
        self.kernels.product(keys, queries, scores, CHUNK);
    }

    /// Scores become e^(score - max) over the positions `seen` of the chunk, 0 before them; [max, sum].
    fn softmax(&self, scores: &mut [f32], seen: Range<usize>) -> [f32; 2] {
        let config = &self.model.config;
        let scale = match config.attn_logit_softcapping {
            None => config.attention_multiplier,
            Some(cap) => {
                self.kernels.softcap(&mut scores[..seen.end], config.attention_multiplier, cap);
                1.0
            }
        };
        scores[..seen.start].fill(f32::NEG_INFINITY);
        let (max, sum) = self.kernels.softmax(scores, seen.end, scale);
        [max, sum]
    }

    /// Adds the values of one tile, weighted, to a head's partial results.
    fn weigh(&self, task: &Task<'_>, index: usize, head: usize, tile: usize, scratch: &mut Scratch) {
        let Widths { group, padded, .. } = self.widths;
        let (rows, width, panels) = (task.rows.len(), self.widths.partial(), padded / LANES);
        let block = &task.cache.blocks()[tile];
        let (format, values) = block.value_panels(self.index, head, &mut scratch.tile, self.kernels);
        let seen = |row: usize| self.mask.part(tile * BLOCK..(tile + 1) * BLOCK, task.position + row);
        // Rows that see the same part of the tile share a product; on the diagonals each row has its own.
        let mut row = 0;
        while row < rows {
            let part = seen(row);
            let together = (row..rows).take_while(|&other| seen(other) == part).count();
            if !part.is_empty() {
                let first = (index * rows + row) * group;
                let values = Panels {
                    format,
                    bytes: values,
                    panel_bytes: values.len() / panels,
                    count: panels,
                    steps: part.end,
                };
                let weights = plain_bytes(&scratch.scores[first * CHUNK + tile * BLOCK % CHUNK..]);
                let out = &mut scratch.part[first * width..];
                let weights = Rows { bytes: weights, stride: CHUNK * 4, count: together * group };
                self.kernels.add_product(values, weights, out, width);
            }
            row += together;
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

    /// The part of some positions that `position` sees, counted from their first.
    fn part(self, of: Range<usize>, position: usize) -> Range<usize> {
        let end = (position + 1).clamp(of.start, of.end) - of.start;
        self.first(position).saturating_sub(of.start).min(end)..end
    }
}
