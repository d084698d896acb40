//! What is added to the scaled scores of a query.

use super::dynamic_mask::KeyNumbers;
use crate::kernel::Kernels;
use crate::kv_cache::BLOCK;
use crate::model::AttentionLayer;

/// What is added to a layer's scores.
#[derive(Clone, Copy)]
pub(super) enum ScoreBias<'a> {
    None,
    /// The numbers of keys under a dynamic mask.
    OfKeys(&'a KeyNumbers),
}

/// A query whose scores are made.
#[derive(Clone, Copy)]
pub(super) struct ScoredQuery {
    /// Its row among the rows of all runs.
    pub row: usize,
    /// Its query head.
    pub head: usize,
    /// The place of the first score.
    pub first: usize,
}

impl<'a> ScoreBias<'a> {
    /// What a layer adds.
    pub fn of(layer: &'a AttentionLayer, numbers: &'a KeyNumbers) -> Self {
        match &layer.dynamic_mask {
            None => ScoreBias::None,
            Some(_) => ScoreBias::OfKeys(numbers),
        }
    }

    pub fn is_some(self) -> bool {
        !matches!(self, ScoreBias::None)
    }

    /// scores = scale * scores + what is added.  // scores of the places from `query.first` on
    pub fn add(self, kernels: Kernels, query: ScoredQuery, scale: f32, scores: &mut [f32]) {
        match self {
            ScoreBias::None => kernels.scale(scores, scale),
            ScoreBias::OfKeys(numbers) => {
                let (mut place, mut scores) = (query.first, scores);
                while !scores.is_empty() {
                    let (tile, offset) = (place / BLOCK, place % BLOCK);
                    let count = scores.len().min(BLOCK - offset);
                    let (head, tail) = std::mem::take(&mut scores).split_at_mut(count);
                    let of_tile = numbers.of_tile(query.row, query.head, tile);
                    kernels.axpby(head, &of_tile[offset..][..count], scale, 1.0);
                    (place, scores) = (place + count, tail);
                }
            }
        }
    }
}
