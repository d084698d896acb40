//! What is added to the scaled scores of a query.

use super::columns::Columns;
use crate::forward::state::Pass;
use crate::parts::{AttentionLayer, RelativeScoreWeights};
use ropechat_kernels::kernel::Kernels;

/// What is added to a layer's scores.
#[derive(Clone, Copy)]
pub(crate) enum ScoreBias<'a> {
    None,
    /// What a step adds.
    Added(&'a dyn AddedScores),
    /// Learned scores by distance, mixed by columns of each row from `first` on.
    ByDistance {
        weights: &'a RelativeScoreWeights,
        qkv: &'a [f32],
        stride: usize,
        first: usize,
    },
}

/// What a step adds to scores.
pub(crate) trait AddedScores: Sync {
    /// scores = scale * scores + what is added.  // scores of the places from `query.first` on
    fn add(&self, kernels: Kernels, query: ScoredQuery, scale: f32, scores: &mut [f32]);
}

/// A query whose scores are made.
#[derive(Clone, Copy)]
pub(crate) struct ScoredQuery {
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
    pub fn of(
        pass: Pass<'_>,
        layer: &'a AttentionLayer,
        added: Option<&'a dyn AddedScores>,
        qkv: &'a [f32],
    ) -> Self {
        match (added, &layer.relative_scores) {
            (Some(added), _) => ScoreBias::Added(added),
            (None, Some(weights)) => {
                let stride = layer.stride(pass.config);
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
            ScoreBias::Added(added) => added.add(kernels, query, scale, scores),
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
