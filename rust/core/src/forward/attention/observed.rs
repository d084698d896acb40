//! What an observer sees of a layer's attention: q and k before rotation, and scores and weights, which [`super::tiles`]
//! computes tile by tile and drops. They are computed again here, from the rotated queries and the cache's keys.

use super::indexer::Choices;
use super::queries::Queries;
use super::score_bias::{ScoreBias, ScoredQuery};
use super::tiles::hide_unchosen;
use crate::config::{Compression, Config};
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
}

impl<'a> ObservedHeads<'a> {
    pub(super) fn new(
        pass: Pass<'a>,
        layer: &'a AttentionLayer,
        run: &'a Run<'_>,
        qkv: &'a [f32],
        unrotated: &'a [f32],
        (choices, bias): (Option<&'a Choices>, ScoreBias<'a>),
    ) -> Self {
        Self { pass, layer, cache: run.cache, rows: run.ids.len(), qkv, unrotated, choices, bias }
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
    /// see the key. Compressed keys count for the positions of their windows. Returns the stride.
    /// // out [rows.len(), stride], stride >= the last row's place + 1
    pub fn scores(&self, head: usize, rows: Range<usize>, out: &mut Vec<f32>) -> usize {
        let (config, kernels) = (self.config(), self.pass.kernels);
        let dim = self.layer.heads.head_dim;
        let stride = (self.cache.len() + rows.end).next_multiple_of(BLOCK);
        out.clear();
        out.resize(rows.len() * stride, f32::NEG_INFINITY);
        let qkv_stride = self.layer.projection.stride(config, self.layer);
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
        let mut compressed = Vec::new();
        if self.layer.compression.is_some() {
            compressed.resize(out.len(), 0.0);
            for tile in 0..stride / BLOCK {
                products(self.layer.heads.num_key_value_heads, tile, &mut compressed);
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
            match self.layer.compression.as_deref() {
                None => self.hide(head, row, &mut scores[..=place]),
                Some(weights) => {
                    let compressed = &mut compressed[(row - first_row) * stride..][..=place];
                    kernels.scale(compressed, scale);
                    if let Some(choices) = self.choices {
                        hide_unchosen(choices.of(row, 0, 1), compressed);
                    }
                    spread_over_windows(weights.spec, compressed, &mut scores[..=place]);
                }
            }
        }
        stride
    }

    /// Sets the scores of positions that the row's indexer did not choose to -inf.
    fn hide(&self, head: usize, row: usize, scores: &mut [f32]) {
        if let Some(choices) = self.choices.filter(|_| self.layer.compression.is_none()) {
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

/// Adds the weight of each compressed key to the positions of its window, in equal parts: e^score + e^compressed / positions.
fn spread_over_windows(spec: Compression, compressed: &[f32], scores: &mut [f32]) {
    let part = (spec.compress_rate as f32).ln();
    let windows =
        scores.chunks_exact_mut(spec.compress_rate).zip(compressed.chunks_exact(spec.compress_rate));
    for (scores, compressed) in windows {
        let Some(key) = compressed.last().filter(|score| **score != f32::NEG_INFINITY) else { continue };
        for score in scores {
            let (low, high) = if *score < key - part { (*score, key - part) } else { (key - part, *score) };
            *score = high + (low - high).exp().ln_1p();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compressed_key_counts_for_the_positions_of_its_window() {
        let spec = Compression { compress_rate: 2, overlapping: false };
        let mut scores = [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 1.0, 2.0];
        let compressed = [9.0, 3.0, 9.0, f32::NEG_INFINITY, 9.0];
        spread_over_windows(spec, &compressed, &mut scores);
        assert_eq!(scores[2..], [0.0, 1.0, 2.0]);
        for score in &scores[..2] {
            assert!((score.exp() - 3f32.exp() / 2.0).abs() < 1e-4);
        }
        spread_over_windows(spec, &[0.0, 0.0, 0.0, 0.0, 0.0], &mut scores);
        assert!((scores[3].exp() - (1f32.exp() + 0.5)).abs() < 1e-5);
    }
}
