//! Attention that reads chosen positions only.

use super::compression::Compression;
use super::structure::Norm;

/// An indexer: small heads score every earlier position, and a query reads those that score highest (DeepSeek Sparse
/// Attention; DeepSeek-AI 2025, DeepSeek-V3.2).
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct Indexer {
    pub index_n_heads: usize,
    pub index_head_dim: usize,
    /// Norm of its key; also of its queries, except where the choice is by position or by compressed key.
    pub norm: Norm,
    /// The rope of its queries and keys: an index into `Config::ropes`.
    pub rope: usize,
    /// Which dimensions the file rotates; they are the first ones in memory.
    pub rotated: RotatedPart,
    pub choice: IndexChoice,
}

/// Which dimensions of an indexer's queries and keys are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotatedPart {
    /// The first ones.
    First,
    /// The last ones (hy_v4).
    Last,
}

/// Which positions a query reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // fields with the names of their keys
pub enum IndexChoice {
    /// The `index_topk` with the largest sum over the indexer's heads of weight * relu(q k), the same for all heads of
    /// attention (deepseek_v32, glm_moe_dsa).
    Positions { index_topk: usize },
    /// The `index_topk_blocks` blocks of positions with the largest q k in them; the `index_local_blocks` nearest to the
    /// query always come first. Each head of the indexer chooses for its share of the key/value heads
    /// (minimax_m3_vl_text).
    Blocks { index_block_size: usize, index_topk_blocks: usize, index_local_blocks: usize },
    /// The complete blocks of positions, `topk_blocks` of them, with the largest sum over the indexer's heads of
    /// relu(q k), and the positions behind the last complete block. A block has one key: the norm of the mean of its
    /// positions' keys, rotated as its first position (qwen4_exp).
    MeanBlocks { compress_ratio: usize, topk_blocks: usize },
    /// The `index_topk` compressed keys with the largest sum over the indexer's heads of weight * relu(q k); the indexer has
    /// its own compressed keys (deepseek_v4).
    CompressedKeys { compression: Compression, index_topk: usize },
}

impl Indexer {
    /// Values of a row of the indexer's queries.
    pub fn q_width(&self) -> usize {
        self.index_n_heads * self.index_head_dim
    }

    /// Weights of the heads in a row.
    pub fn num_weights(&self) -> usize {
        match self.choice {
            IndexChoice::Positions { .. } | IndexChoice::CompressedKeys { .. } => self.index_n_heads,
            IndexChoice::Blocks { .. } | IndexChoice::MeanBlocks { .. } => 0,
        }
    }

    /// Values of a row's key; compressed ones are computed from several rows.
    pub fn key_width(&self) -> usize {
        match self.choice {
            IndexChoice::CompressedKeys { .. } => 0,
            _ => self.index_head_dim,
        }
    }

    /// Values of a row of its queries, key and weights together.
    pub fn width(&self) -> usize {
        self.q_width() + self.key_width() + self.num_weights()
    }

    /// Choices of a row.
    pub fn num_choices(&self) -> usize {
        match self.choice {
            IndexChoice::Blocks { .. } => self.index_n_heads,
            IndexChoice::Positions { .. }
            | IndexChoice::MeanBlocks { .. }
            | IndexChoice::CompressedKeys { .. } => 1,
        }
    }
}
