//! What is added to the scaled scores of a query.

use super::dynamic_mask::KeyNumbers;
use super::indexer::Columns;
use crate::forward::state::Pass;
use crate::kv_cache::BLOCK;
use crate::parts::{AttentionLayer, RelativeScoreWeights};
use ropechat_kernels::kernel::Kernels;

/// What is added to a layer's scores.
#[derive(Clone, Copy)]
pub(super) enum ScoreBias<'a> {
    None,
    /// The numbers of keys under a dynamic mask.
    OfKeys(&'a KeyNumbers),
    /// Learned scores by distance, mixed by columns of each row from `first` on.
    ByDistance {
        weights: &'a RelativeScoreWeights,
        qkv: &'a [f32],
        stride: usize,
        first: usize,
    },
}

/// A query whose scores are made.
#[derive(Clone, Copy)]
pub(super) struct ScoredQuery {
    /// Its row among the rows of all runs.
    pub row: usize,
    /// Its query head.
    pub head: usize,
    /// Its place in the sequence.
    pub place: usize,
    /// The place of the first score.
    pub first: usize,
}

impl<'a> ScoreBias<'a> {
    /// What a layer adds.
    pub fn of(pass: Pass<'_>, layer: &'a AttentionLayer, numbers: &'a KeyNumbers, qkv: &'a [f32]) -> Self {
        match (&layer.dynamic_mask, &layer.relative_scores) {
            (Some(_), _) => ScoreBias::OfKeys(numbers),
            (None, Some(weights)) => {
                let stride = layer.projection.stride(pass.config, layer);
                let first = Columns::of(pass.config, layer).relative.start;
                ScoreBias::ByDistance { weights, qkv, stride, first }
            }
            (None, None) => ScoreBias::None,
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
            ScoreBias::ByDistance {
                weights: RelativeScoreWeights { extent, profiles },
                qkv,
                stride,
                first,
            } => {
                kernels.scale(scores, scale);
                let end = (query.first + scores.len()).min(query.place + 1);
                let start = query.first.max((query.place + 1).saturating_sub(*extent));
                if start >= end {
                    return;
                }
                let scores = &mut scores[start - query.first..end - query.first];
                // The last number of a profile is that of distance 0.
                let farthest = extent - 1 - (query.place - start);
                let d_rel = profiles.len() / extent;
                let mix = &qkv[query.row * stride + first + query.head * d_rel..][..d_rel];
                for (profile, factor) in profiles.chunks_exact(*extent).zip(mix) {
                    kernels.axpby(scores, &profile[farthest..][..end - start], 1.0, *factor);
                }
            }
        }
    }
}
