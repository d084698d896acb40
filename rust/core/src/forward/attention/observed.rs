//! What an observer sees of a layer's attention: q and k before rotation, and scores and weights, which [`super::tiles`]
//! computes tile by tile and drops. They are computed again here, from the rotated queries and the cache's keys.

use super::choices::Choices;
use super::queries::Queries;
use super::score_bias::{ScoreBias, ScoredQuery};
use super::tiles::hide_unchosen;
use crate::config::Config;
use crate::forward::state::{Pass, Run};
use crate::kv_cache::{BLOCK, KvSequence};
use crate::parts::AttentionLayer;
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::quant::PackedType;
use std::ops::Range;

/// The heads of one layer in a pass over one run.
pub struct ObservedHeads<'a> {
    pass: Pass<'a>,
    layer: &'a AttentionLayer,
    cache: &'a KvSequence,
    /// Rows of the run.
    rows: usize,
    qkv: &'a [f32],       // [rows, stride], rotated
    unrotated: &'a [f32], // [rows, q and k of all heads]
    choices: Option<&'a Choices>,
    bias: ScoreBias<'a>,
    further: Option<&'a dyn FurtherKeys>,
}

/// The keys of a mechanism that every head reads besides its own.
pub(crate) trait FurtherKeys: Sync {
    /// Adds what their weights are to the positions that they stand for.  // both: scores of all places up to the row's
    fn spread(&self, further: &[f32], scores: &mut [f32]);
}

impl<'a> ObservedHeads<'a> {
    pub(super) fn new(
        pass: Pass<'a>,
        layer: &'a AttentionLayer,
        run: &'a Run<'_>,
        [qkv, unrotated]: [&'a [f32]; 2],
        (choices, bias): (Option<&'a Choices>, ScoreBias<'a>),
        further: Option<&'a dyn FurtherKeys>,
    ) -> Self {
        Self { pass, layer, cache: run.cache, rows: run.ids.len(), qkv, unrotated, choices, bias, further }
    }

    /// The layer's index.
    pub fn layer(&self) -> usize {
        self.layer.index
    }

    /// The layer's query heads.
    pub fn count(&self) -> usize {
        self.layer.heads.num_attention_heads
    }

    /// The run's rows as places in the sequence.
    pub fn places(&self) -> Range<usize> {
        self.cache.len()..self.cache.len() + self.rows
    }

    /// The threads of the pass.
    pub fn pool(&self) -> &'a Pool {
        self.pass.pool
    }

    fn config(&self) -> &'a Config {
        self.pass.config
    }

    /// A query head's query of a row before rotation, after its norm.  // [head_dim]
    pub fn query(&self, row: usize, head: usize) -> &'a [f32] {
        let dim = self.layer.heads.head_dim;
        &self.unrotated[row * self.layer.qk_width() + head * dim..][..dim]
    }

    /// The key of a row that a query head reads, before rotation, after its norm; empty where another layer's keys are
    /// read.  // [head_dim]
    pub fn key(&self, row: usize, head: usize) -> &'a [f32] {
        let heads = self.layer.heads;
        if self.layer.spec.shares_kv_of.is_some() {
            return &[];
        }
        let at = heads.q_width() + head / heads.group_size() * heads.head_dim;
        &self.unrotated[row * self.layer.qk_width() + at..][..heads.head_dim]
    }

    /// Scores of a query head's rows with every key, times the model's factors and before a softcap; -inf where a row does not
    /// see the key. Keys of a mechanism count for the positions that they stand for. Returns the stride.
    /// // out [rows.len(), stride], stride >= the last row's place + 1
    pub fn scores(&self, head: usize, rows: Range<usize>, out: &mut Vec<f32>) -> usize {
        let (config, kernels) = (self.config(), self.pass.kernels);
        let dim = self.layer.heads.head_dim;
        let stride = (self.cache.len() + rows.end).next_multiple_of(BLOCK);
        out.clear();
        out.resize(rows.len() * stride, f32::NEG_INFINITY);
        let qkv_stride = self.layer.stride(config);
        let query = |row: usize| &self.qkv[row * qkv_stride + head * dim..][..dim];
        let mut queries = Queries::default();
        let keys = (self.cache.dtype(), self.cache.has_rotated_keys(self.layer.kv_index));
        queries.set(keys, dim, rows.clone().map(query), kernels);
        let (mask, mut scratch) = (self.layer.spec.mask, Vec::new());
        let mut products = |kv_head: usize, tile: usize, out: &mut [f32]| {
            let block = &self.cache.blocks()[tile];
            let keys = block.key_panels(self.layer.kv_index, kv_head, 1, &mut scratch, kernels);
            queries.multiply(keys, 0..rows.len(), (&mut out[tile * BLOCK..], stride), kernels);
        };
        for tile in mask.first(self.cache.len() + rows.start) / BLOCK..stride / BLOCK {
            products(head / self.layer.heads.group_size(), tile, out);
        }
        let mut further = Vec::new();
        if self.further.is_some() {
            further.resize(out.len(), 0.0);
            for tile in 0..stride / BLOCK {
                products(self.layer.heads.num_key_value_heads, tile, &mut further);
            }
        }
        let is_left_out = self.cache.dtype() != PackedType::F32 && !self.layer.common_key.is_empty();
        let common =
            is_left_out.then(|| &self.layer.common_key[head / self.layer.heads.group_size() * dim..][..dim]);
        let scale = config.attention_multiplier * self.layer.spec.attention_scale;
        let first_row = rows.start;
        for (row, scores) in rows.zip(out.chunks_exact_mut(stride)) {
            let place = self.cache.len() + row;
            let first = mask.first(place);
            scores[..first].fill(f32::NEG_INFINITY);
            scores[place + 1..].fill(f32::NEG_INFINITY);
            if let Some(common) = &common {
                let product: f32 = query(row).iter().zip(*common).map(|(query, key)| query * key).sum();
                scores[first..=place].iter_mut().for_each(|score| *score += product);
            }
            if self.bias.is_some() {
                let of_query = ScoredQuery { row, head, place, first };
                self.bias.add(kernels, of_query, scale, &mut scores[first..=place]);
            } else {
                kernels.scale(&mut scores[first..=place], scale);
            }
            match self.further {
                None => self.hide(head, row, &mut scores[..=place]),
                Some(keys) => {
                    let further = &mut further[(row - first_row) * stride..][..=place];
                    kernels.scale(further, scale);
                    if let Some(choices) = self.choices {
                        hide_unchosen(choices.of(row, 0, 1), further);
                    }
                    keys.spread(further, &mut scores[..=place]);
                }
            }
        }
        stride
    }

    /// Sets the scores of positions that the row did not choose to -inf.
    fn hide(&self, head: usize, row: usize, scores: &mut [f32]) {
        if let Some(choices) = self.choices.filter(|_| self.further.is_none()) {
            let heads = self.layer.heads;
            hide_unchosen(choices.of(row, head / heads.group_size(), heads.num_key_value_heads), scores);
        }
    }

    /// Turns a row of [`Self::scores`] into attention weights; returns the weight of the head's sink, 0 without one.
    pub fn weights(&self, head: usize, row: usize, scores: &mut [f32]) -> f32 {
        let kernels = self.pass.kernels;
        let seen = self.layer.spec.mask.first(self.cache.len() + row)..self.cache.len() + row + 1;
        if let Some(cap) = self.config().attn_logit_softcapping {
            kernels.softcap(&mut scores[seen.clone()], 1.0, cap);
            self.hide(head, row, &mut scores[..seen.end]);
        }
        let (max, sum) = kernels.softmax(scores, seen.end, 1.0);
        let (scale, sink) = match self.layer.sinks.get(head) {
            None => (1.0 / sum, 0.0),
            Some(&sink) => {
                let with_sink = max.max(sink);
                let scale = (max - with_sink).exp();
                let sink = (sink - with_sink).exp();
                let total = sum * scale + sink;
                (scale / total, sink / total)
            }
        };
        kernels.scale(&mut scores[..seen.end], scale);
        scores[seen.end..].fill(0.0);
        sink
    }
}
