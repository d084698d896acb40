//! The facts of attention with compressed keys.

use crate::config::{Facts, Tensor};
use crate::mechanisms::indexer::config::IndexHeads;

/// Attention of one key for all heads, which is the value too: queries through a latent, and outputs by groups of heads through a
/// latent of each group. Layers with compressed keys read them in addition to those that their mask allows (DeepSeek-V4;
/// DeepSeek-AI 2026, section 2.3).
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct CompressedAttention {
    pub q_lora_rank: usize,
    pub o_groups: usize,
    pub o_lora_rank: usize,
    /// The compressed keys of each layer.
    pub layers: Vec<Option<Compression>>,
    /// What chooses among those of overlapping windows.
    pub indexer: Option<CompressedIndexer>,
    /// From the outputs of the heads to the latents of their groups.
    pub o_a_proj: Tensor,
    /// Where the tensors of compressed keys are: of attention, and of its indexer.
    pub names: [CompressorNames; 2],
    /// Queries of the indexer, and weights of its heads.
    pub index_names: [Tensor; 2],
}

/// One key, which is its value too, for each window of `compress_rate` positions: a softmax over their gates, channel by
/// channel, sums their projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compression {
    /// Positions of a window. A window counts for a query when all of them are at most the query's.
    pub compress_rate: usize,
    /// Whether a second projection of the previous window is in the sum (compressed sparse attention).
    pub overlapping: bool,
}

/// The `index_topk` compressed keys with the largest sum over the indexer's heads of weight * relu(q k) are read; the indexer
/// has its own compressed keys.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct CompressedIndexer {
    pub heads: IndexHeads,
    pub index_topk: usize,
}

/// Where the tensors are that make compressed keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressorNames {
    /// What is summed up.
    pub kv_proj: Tensor,
    /// The logits of its weights.
    pub gate_proj: Tensor,
    /// Added to these by place in the window: [compress_rate, values].
    pub position_bias: &'static str,
    /// Norm of the key.
    pub norm: Tensor,
}

impl CompressedAttention {
    /// The indexer of a layer.
    pub fn indexer_of(&self, layer: usize) -> Option<CompressedIndexer> {
        self.indexer.filter(|_| self.layers[layer].is_some_and(|keys| keys.overlapping))
    }

    /// Values that one position keeps in the state of a layer, and how many positions do.
    pub fn window(&self, layer: usize, head_dim: usize) -> (usize, usize) {
        let Some(compression) = self.layers[layer] else { return (0, 0) };
        let index_dim = self.indexer_of(layer).map_or(0, |indexer| indexer.heads.index_head_dim);
        // Projections and gates.
        (2 * compression.series() * (head_dim + index_dim), compression.span() - 1)
    }
}

impl Facts for CompressedAttention {
    /// A key of the indexer.
    fn index_dim(&self, layer: usize, _: usize) -> usize {
        self.indexer_of(layer).map_or(0, |indexer| indexer.heads.index_head_dim)
    }

    /// Queries of the indexer, and weights of its heads.
    fn columns(&self, layer: usize) -> usize {
        self.indexer_of(layer)
            .map_or(0, |CompressedIndexer { heads, .. }| heads.q_width() + heads.index_n_heads)
    }

    /// Compressed keys.
    fn further_heads(&self, layer: usize) -> usize {
        usize::from(self.layers[layer].is_some())
    }

    fn depends_on_scores(&self) -> bool {
        true
    }
}

impl Compression {
    /// Projections of a position: one for its own window, and one for the next where windows overlap.
    pub fn series(self) -> usize {
        1 + usize::from(self.overlapping)
    }

    /// Positions in one key.
    pub fn span(self) -> usize {
        self.compress_rate * self.series()
    }

    /// Windows that a query at `place` may read.
    pub fn complete(self, place: usize) -> usize {
        (place + 1) / self.compress_rate
    }

    /// Where the key of a window is kept: with the window's last position.
    pub fn place_of(self, window: usize) -> usize {
        (window + 1) * self.compress_rate - 1
    }
}
