//! Softmax attention over the cache, in chunks of 256 positions.
//!
//! A chunk gives one partial result per query: the largest score, the sum of the exponentials, the weighted values.
//! Chunks begin at fixed positions and are merged in order ([`super::online_softmax`]), so prefill and decode do the same
//! additions in the same order, whichever thread does which chunk (law 1). Positions that are not chosen have
//! no weight, and tiles without a chosen position are left out. Inside a chunk the cache's blocks of 32
//! positions are the tiles of two matrix products.
//!
//! A task is some rows of one run. With many rows it takes one key/value head, so that a tile is loaded once for many
//! queries. With few rows it takes all heads, whose keys are next to each other in memory. When there are fewer tasks than
//! the threads need, each takes one chunk (split KV). Where there are too few chunks as well, each takes fewer key/value heads;
//! then fewer query heads, as long as a loaded key serves several; then one chunk, too; then a single query head. Each query
//! head's sums are the same for any of these splits (law 1).

use super::choices::Choices;
use super::online_softmax::{Partials, Widths, merge, reset};
use super::queries::Queries;
use super::score_bias::{ScoreBias, ScoredQuery};
use crate::config::Mask;
use crate::forward::state::Pass;
use crate::kv_cache::{BLOCK, Block, KvSequence};
use crate::parts::AttentionLayer;
use ropechat_kernels::kernel::{LANES, Panels, Rows, prefetch};
use ropechat_kernels::quant::PackedType;
use std::cell::RefCell;
use std::ops::Range;

/// Query vectors (rows x query heads of the group) per task: the keys of a tile are loaded once for all of them.
const QUERIES_PER_TASK: usize = 48;
/// Query vectors per task where each task transposes the values out of the keys.
const QUERIES_PER_TRANSPOSE: usize = 96;
/// Positions per partial result.
const CHUNK: usize = 8 * BLOCK;
/// Query heads that a loaded key serves at least while there are positions to split along.
const LEAST_GROUP: usize = 8;
/// The same where each task transposes the values out of the keys.
const LEAST_GROUP_PER_TRANSPOSE: usize = 32;
/// With at least this many tasks per thread, or the same number for each, there are enough.
const TASKS_PER_THREAD: usize = 2;

/// Some rows of one run, for some heads and chunks.
struct Task<'a> {
    cache: &'a KvSequence,
    /// The block that the next task reads first, if there is one: to be prefetched.
    next: Option<&'a Block>,
    /// Of [`Widths`].
    heads: Range<usize>,
    chunks: Range<usize>,
    /// Position of the first row.
    position: usize,
    /// Rows in `qkv`.
    rows: Range<usize>,
    out: &'a mut [f32], // [heads, rows, group_size, partial]
}

/// Which keys of the cache are read.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// Their first head in the cache.
    first_head: usize,
    mask: Mask,
}

impl Keys {
    /// Those of the layer's own heads, as far as its mask lets a row see.
    pub fn own(layer: &AttentionLayer) -> Self {
        Self { first_head: 0, mask: layer.spec.mask }
    }

    /// Those of a mechanism, which choices select.
    pub fn further(layer: &AttentionLayer) -> Self {
        Self { first_head: layer.heads.num_key_value_heads, mask: Mask::Causal }
    }
}

/// Attention of every row to `keys` of its own sequence up to itself.
///
/// `caches`: each run's cache and number of rows; `qkv` `[rows, stride]`, rotated.
pub(super) fn attend(
    pass: Pass<'_>,
    (layer, keys): (&AttentionLayer, Keys),
    caches: &[(&KvSequence, usize)],
    qkv: &[f32],
    (choices, bias): (Option<&Choices>, ScoreBias<'_>),
    partials: &mut Partials,
) {
    let values_in_keys = pass.config.values_in_keys(&layer.spec);
    let (splits, widths) = plan_splits(caches, keys.mask, widths(layer), values_in_keys, pass.pool.threads());
    let shapes = splits.iter().map(|split| (split.rows.clone(), split.heads, split.kv().len()));
    let mut outs = partials.allocate(shapes, widths);
    let mut tasks = Vec::new();
    for split in &splits {
        for head in (0..widths.heads).step_by(split.heads) {
            for chunks in split.kv() {
                tasks.push(Task {
                    cache: caches[split.run].0,
                    next: caches.get(split.run + 1).and_then(|(cache, _)| Some(&**cache.blocks().first()?)),
                    heads: head..head + split.heads,
                    chunks,
                    position: split.position,
                    rows: split.rows.clone(),
                    out: outs.next().expect("room for every task"),
                });
            }
        }
    }
    let stride = layer.stride(pass.config);
    let attention = LayerAttention { pass, layer, keys, widths, qkv, stride, choices, bias };
    pass.pool.for_each(&mut tasks, |task| {
        SCRATCH.with_borrow_mut(|scratch| attention.attend(task, scratch));
    });
}

/// Sizes of a layer's partial results.
fn widths(layer: &AttentionLayer) -> Widths {
    let heads = layer.heads;
    Widths {
        heads: heads.num_key_value_heads,
        per_key: 1,
        group: heads.group_size(),
        value: heads.v_head_dim,
        padded: heads.v_head_dim.next_multiple_of(LANES),
    }
}

/// How some rows of a run are split into tasks.
struct Split {
    run: usize,
    position: usize,
    rows: Range<usize>,
    /// Heads per task.
    heads: usize,
    chunks: Range<usize>,
    /// Whether each task takes one chunk, or all.
    is_by_chunk: bool,
}

impl Split {
    /// The ranges of chunks, one per task.
    fn kv(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let Self { chunks: Range { start, end }, is_by_chunk, .. } = *self;
        let step = if is_by_chunk { 1 } else { end - start };
        (start..end).step_by(step).map(move |first| first..first + step)
    }
}

/// How the rows of all runs are split into tasks that keep all threads busy, and the heads that these take.
fn plan_splits(
    caches: &[(&KvSequence, usize)],
    mask: Mask,
    mut widths: Widths,
    values_in_keys: bool,
    threads: usize,
) -> (Vec<Split>, Widths) {
    let mut splits = Vec::new();
    let mut row = 0;
    let (queries, least_group) = match values_in_keys {
        true => (QUERIES_PER_TRANSPOSE, LEAST_GROUP_PER_TRANSPOSE),
        false => (QUERIES_PER_TASK, LEAST_GROUP),
    };
    for (run, &(cache, rows)) in caches.iter().enumerate() {
        let many = rows * widths.group >= queries;
        let rows_per_task = queries / if many { widths.group } else { widths.group * widths.heads };
        let rows_per_task = rows_per_task.max(1);
        for first in (0..rows).step_by(rows_per_task) {
            let count = rows_per_task.min(rows - first);
            let position = cache.len() + first;
            let chunks = mask.first(position) / CHUNK..(position + count - 1) / CHUNK + 1;
            splits.push(Split {
                run,
                position,
                rows: row + first..row + first + count,
                heads: if many { 1 } else { widths.heads },
                chunks,
                is_by_chunk: false,
            });
        }
        row += rows;
    }
    let is_enough = |splits: &[Split], heads: usize| {
        let tasks: usize = splits.iter().map(|split| heads / split.heads * split.kv().len()).sum();
        tasks >= TASKS_PER_THREAD * threads || tasks >= threads && tasks.is_multiple_of(threads)
    };
    if !is_enough(&splits, widths.heads) {
        splits.iter_mut().for_each(|split| split.is_by_chunk = true);
        if is_enough(&splits, widths.heads) {
            return (splits, widths);
        }
        splits.iter_mut().for_each(|split| split.is_by_chunk = false);
    }
    while splits.iter().any(|split| split.heads > 1) && !is_enough(&splits, widths.heads) {
        for split in &mut splits {
            split.heads /= least_divisor(split.heads);
        }
    }
    for least_group in [least_group, 1] {
        while !is_enough(&splits, widths.heads) {
            let parts = least_divisor(widths.group);
            if parts == 1 || widths.group / parts < least_group {
                break;
            }
            widths.heads *= parts;
            widths.per_key *= parts;
            widths.group /= parts;
        }
        if !is_enough(&splits, widths.heads) {
            splits.iter_mut().for_each(|split| split.is_by_chunk = true);
        }
    }
    (splits, widths)
}

/// The least divisor above 1; 1 of 1.
fn least_divisor(number: usize) -> usize {
    (2..=number).find(|divisor| number.is_multiple_of(*divisor)).unwrap_or(1)
}

/// What the tasks of a layer share.
struct LayerAttention<'a> {
    pass: Pass<'a>,
    layer: &'a AttentionLayer,
    keys: Keys,
    widths: Widths,
    qkv: &'a [f32],
    stride: usize,
    choices: Option<&'a Choices>,
    bias: ScoreBias<'a>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Buffers of one task; M is the number of its query vectors per head.
#[derive(Default)]
struct Scratch {
    queries: Queries, // [heads, M, head_dim]
    scores: Vec<f32>, // [heads, M, CHUNK]
    part: Vec<f32>,   // [heads, M, partial]
    /// A tile's keys or values as f32, where the cache holds bytes, or f16 for many queries.
    tile: Vec<f32>, // [32, head_dim]
    /// The weights, where the cache holds bf16.
    bf16_weights: Vec<u16>, // [heads, M, CHUNK]
    /// The last pair of positions of each panel of values, without the one that a row does not see.
    last_pairs: Vec<u16>, // [panels, 16, 2]
}

impl LayerAttention<'_> {
    fn attend(&self, task: &mut Task<'_>, scratch: &mut Scratch) {
        let (dim, group) = (self.layer.heads.head_dim, self.widths.group);
        let queries = task.heads.len() * task.rows.len() * group;
        let dtype = task.cache.dtype();
        let vectors = task.heads.clone().flat_map(|head| {
            let at = move |row: usize| row * self.stride + head * group * dim;
            task.rows.clone().map(move |row| &self.qkv[at(row)..][..group * dim])
        });
        let is_rotated = task.cache.has_rotated_keys(self.layer.kv_index);
        scratch.queries.set((dtype, is_rotated), dim, vectors, self.pass.kernels);
        if dtype == PackedType::BF16 {
            scratch.bf16_weights.resize(queries * CHUNK, 0);
        }
        scratch.scores.resize(queries * CHUNK, 0.0);
        scratch.part.resize(queries * self.widths.partial(), 0.0);
        let width = self.widths.partial();
        task.out.chunks_exact_mut(width).for_each(reset);
        for chunk in task.chunks.clone() {
            self.chunk(task, chunk, scratch);
            for (total, part) in task.out.chunks_exact_mut(width).zip(scratch.part.chunks_exact(width)) {
                merge(total, part, self.pass.kernels);
            }
        }
    }

    /// The partial results of one chunk, into `scratch.part`.
    fn chunk(&self, task: &Task<'_>, chunk: usize, scratch: &mut Scratch) {
        let last = task.position + task.rows.len() - 1;
        let tiles = chunk * CHUNK / BLOCK..(chunk + 1) * CHUNK / BLOCK;
        let tiles =
            tiles.start.max(self.keys.mask.first(task.position) / BLOCK)..tiles.end.min(last / BLOCK + 1);
        // Blocks are not contiguous: the hardware prefetcher finds neither the next one nor its values.
        let (blocks, layer) = (task.cache.blocks(), self.layer.kv_index);
        let block_after = |tile: usize| (tile + 1 < tiles.end).then(|| &*blocks[tile + 1]);
        for tile in tiles.clone() {
            for (index, head) in task.heads.clone().enumerate() {
                if !task.rows.clone().any(|row| self.reads(row, head, tile)) {
                    continue;
                }
                prefetch(match block_after(tile) {
                    Some(next) => next.keys(layer, self.key_head(head)),
                    None => blocks[tiles.start].values(layer, self.key_head(head)),
                });
                self.scores(task, index, head, tile, scratch);
            }
        }
        let softmaxes =
            scratch.scores.chunks_exact_mut(CHUNK).zip(scratch.part.chunks_exact_mut(self.widths.partial()));
        for (query, (scores, part)) in softmaxes.enumerate() {
            let row = query / self.widths.group % task.rows.len();
            let seen = self.keys.mask.part(chunk * CHUNK..(chunk + 1) * CHUNK, task.position + row);
            reset(part);
            let head = task.heads.start + query / (self.widths.group * task.rows.len());
            let words = self
                .chosen(task.rows.start + row, head)
                .map(|words| &words[chunk * CHUNK / BLOCK..tiles.end]);
            if !seen.is_empty() && words.is_none_or(|words| words.iter().any(|&word| word != 0)) {
                let is_biased = self.bias.is_some();
                if is_biased {
                    let of_query = self.scored(task, query, chunk * CHUNK);
                    self.bias.add(self.pass.kernels, of_query, self.scale(), &mut scores[..seen.end]);
                }
                let scale = if is_biased { 1.0 } else { self.scale() };
                let end = seen.end.next_multiple_of(LANES);
                let softmax = self.softmax(scores, seen, words, scale);
                part[self.widths.padded..].copy_from_slice(&softmax);
                if task.cache.dtype() == PackedType::BF16 {
                    let weights = &mut scratch.bf16_weights[query * CHUNK..][..end];
                    self.pass.kernels.to_bf16(&scores[..end], weights);
                }
            }
        }
        let first_later = blocks.get(tiles.end).map(|block| &**block).or(task.next);
        for tile in tiles.clone() {
            for (index, head) in task.heads.clone().enumerate() {
                prefetch(match (block_after(tile), first_later) {
                    (Some(next), _) => next.values(layer, self.key_head(head)),
                    (None, Some(later)) => later.keys(layer, self.key_head(head)),
                    (None, None) => &[],
                });
                self.add_weighted_values(task, index, head, tile, scratch);
            }
        }
    }

    /// Scores of a head's queries with the keys of one tile.
    fn scores(&self, task: &Task<'_>, index: usize, head: usize, tile: usize, scratch: &mut Scratch) {
        let count = task.rows.len() * self.widths.group;
        let block = &task.cache.blocks()[tile];
        let (head, kernels) = (self.key_head(head), self.pass.kernels);
        let keys = block.key_panels(self.layer.kv_index, head, count, &mut scratch.tile, kernels);
        let scores = &mut scratch.scores[index * count * CHUNK + tile * BLOCK % CHUNK..];
        let queries = index * count..(index + 1) * count;
        scratch.queries.multiply(keys, queries, (scores, CHUNK), kernels);
    }

    /// The head in the cache whose keys a head of [`Widths`] reads.
    fn key_head(&self, head: usize) -> usize {
        self.keys.first_head + head / self.widths.per_key
    }

    /// Factor of the scores.
    fn scale(&self) -> f32 {
        self.pass.config.attention_multiplier * self.layer.spec.attention_scale
    }

    /// Which query of a task it is, and from which position on its scores are.
    fn scored(&self, task: &Task<'_>, query: usize, first: usize) -> ScoredQuery {
        let (rows, group) = (task.rows.len(), self.widths.group);
        let row = query / group % rows;
        let head = (task.heads.start + query / (group * rows)) * group + query % group;
        ScoredQuery { row: task.rows.start + row, head, place: task.position + row, first }
    }

    /// What a row chose, a word per tile.
    fn chosen(&self, row: usize, head: usize) -> Option<&[u32]> {
        let Widths { heads, per_key, .. } = self.widths;
        self.choices.map(|choices| choices.of(row, head / per_key, heads / per_key))
    }

    /// Whether a row reads a position of a tile, as far as choices decide.
    fn reads(&self, row: usize, head: usize, tile: usize) -> bool {
        self.chosen(row, head).is_none_or(|words| words[tile] != 0)
    }

    /// Scores become e^(score - max) over the positions `seen` of the chunk, 0 before them and where they were not
    /// `chosen`; [max, sum].
    fn softmax(
        &self,
        scores: &mut [f32],
        seen: Range<usize>,
        chosen: Option<&[u32]>,
        scale: f32,
    ) -> [f32; 2] {
        let Pass { config, kernels, .. } = self.pass;
        let scale = match config.attn_logit_softcapping {
            None => scale,
            Some(cap) => {
                kernels.softcap(&mut scores[..seen.end], scale, cap);
                1.0
            }
        };
        scores[..seen.start].fill(f32::NEG_INFINITY);
        if let Some(words) = chosen {
            hide_unchosen(words, &mut scores[..seen.end]);
        }
        let (max, sum) = kernels.softmax(scores, seen.end, scale);
        [max, sum]
    }

    /// Adds the values of one tile, weighted, to a head's partial results.
    fn add_weighted_values(
        &self,
        task: &Task<'_>,
        index: usize,
        head: usize,
        tile: usize,
        scratch: &mut Scratch,
    ) {
        let Widths { group, padded, .. } = self.widths;
        let (rows, width, panels) = (task.rows.len(), self.widths.partial(), padded / LANES);
        let block = &task.cache.blocks()[tile];
        let (format, values) = block.value_panels(
            self.layer.kv_index,
            self.key_head(head),
            rows * group,
            &mut scratch.tile,
            self.pass.kernels,
        );
        let seen = |row: usize| match self.reads(task.rows.start + row, head, tile) {
            true => self.keys.mask.part(tile * BLOCK..(tile + 1) * BLOCK, task.position + row),
            false => 0..0,
        };
        // Rows that see the same part of the tile share a product; on the diagonals each row has its own.
        let mut row = 0;
        while row < rows {
            let part = seen(row);
            let together = (row..rows).take_while(|&other| seen(other) == part).count();
            if !part.is_empty() {
                let first = (index * rows + row) * group;
                let (first_weight, count) = (first * CHUNK + tile * BLOCK % CHUNK, together * group);
                let panel_bytes = values.len() / panels;
                let out = &mut scratch.part[first * width..];
                let mut add = |bytes: &[u8], panel_bytes: usize, weights: Rows<'_>, steps: usize| {
                    let values = Panels { format, bytes, panel_bytes, count: panels, steps };
                    self.pass.kernels.matmul_accumulate(values, weights, out, width);
                };
                if format == PackedType::BF16 {
                    let weights = |pair: usize| {
                        let rows = &scratch.bf16_weights[first_weight + 2 * pair..];
                        Rows { bytes: bytemuck::cast_slice(rows), stride: CHUNK * 2, count }
                    };
                    let pairs = part.end / 2;
                    if pairs > 0 {
                        add(values, panel_bytes, weights(0), pairs);
                    }
                    if part.end % 2 == 1 {
                        let last = &mut scratch.last_pairs;
                        first_of_pair(bytemuck::cast_slice(values), panel_bytes / 2, pairs, last);
                        add(bytemuck::cast_slice(last), PAIR_BYTES, weights(pairs), 1);
                    }
                } else {
                    let rows = bytemuck::cast_slice(&scratch.scores[first_weight..]);
                    add(values, panel_bytes, Rows { bytes: rows, stride: CHUNK * 4, count }, part.end);
                }
            }
            row += together;
        }
    }
}

/// Bytes of a pair of positions of a panel of values.
const PAIR_BYTES: usize = 2 * LANES * size_of::<u16>();

/// Copies a pair of positions of each panel, with 0 for the second one: a row does not see it, and 0 times what is stored
/// there could be NaN.  // values [panels, panel], out [panels, 16, 2]
fn first_of_pair(values: &[u16], panel: usize, pair: usize, out: &mut Vec<u16>) {
    out.clear();
    for panel in values.chunks_exact(panel) {
        out.extend_from_slice(&panel[2 * LANES * pair..][..2 * LANES]);
    }
    out.iter_mut().skip(1).step_by(2).for_each(|second| *second = 0);
}

/// Sets the scores of positions without their bit to -inf.  // words: a bit per score
pub(super) fn hide_unchosen(words: &[u32], scores: &mut [f32]) {
    for (word, scores) in words.iter().zip(scores.chunks_mut(BLOCK)) {
        for (at, score) in scores.iter_mut().enumerate() {
            if word >> at & 1 == 0 {
                *score = f32::NEG_INFINITY;
            }
        }
    }
}

impl Mask {
    /// The first position that `position` sees.
    pub(crate) fn first(self, position: usize) -> usize {
        match self {
            Mask::Causal => 0,
            Mask::Sliding(window) => (position + 1).saturating_sub(window),
            Mask::Chunked(chunk) => position - position % chunk,
        }
    }

    /// The part of the positions `of` that `position` sees, relative to the first of them.
    fn part(self, of: Range<usize>, position: usize) -> Range<usize> {
        let end = (position + 1).clamp(of.start, of.end) - of.start;
        self.first(position).saturating_sub(of.start).min(end)..end
    }
}
