//! The facts of indexers.

use crate::config::{Facts, Norm, Tensor, tensor};

/// An indexer: small heads score every earlier position, and a query reads those that score highest (DeepSeek Sparse
/// Attention; DeepSeek-AI 2025, DeepSeek-V3.2).
#[derive(Debug, Clone, PartialEq)]
pub struct Indexer {
    /// Its heads.
    pub heads: IndexHeads,
    /// Which positions a query reads.
    pub choice: IndexChoice,
    /// Where its tensors are.
    pub names: IndexerNames,
    /// One per layer.
    pub layers: Vec<LayerIndexer>,
}

/// Heads whose queries score all keys of one head.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct IndexHeads {
    pub index_n_heads: usize,
    pub index_head_dim: usize,
    /// Norm of the key; also of the queries, except where the choice is by position.
    pub norm: Norm,
    /// The rope of queries and keys: an index into `Config::ropes`.
    pub rope: usize,
    /// Which dimensions the file rotates; they are the first ones in memory.
    pub rotated: RotatedPart,
}

/// Which dimensions of an indexer's queries and keys are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotatedPart {
    /// The first ones.
    First,
    /// The last ones (hy_v4, deepseek_v4).
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
}

/// Whether a layer's attention reads chosen positions only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerIndexer {
    /// It reads all that its mask allows.
    None,
    /// It has an indexer.
    Full,
    /// It reads the choice of the last indexer before it (`indexer_types`; glm_moe_dsa).
    Shared,
}

/// Where the tensors of an indexer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerNames {
    /// Queries, from their latent or from the normed row.
    pub q_proj: Tensor,
    /// The key.
    pub k_proj: Tensor,
    /// The weights of the heads.
    pub weights_proj: Tensor,
    /// Norm of a query.
    pub q_norm: Tensor,
    /// Norm of the key.
    pub k_norm: Tensor,
}

impl IndexerNames {
    /// DeepSeek's names.
    pub const DEEPSEEK: Self = Self {
        q_proj: tensor!("self_attn.indexer.wq_b"),
        k_proj: tensor!("self_attn.indexer.wk"),
        weights_proj: tensor!("self_attn.indexer.weights_proj"),
        q_norm: tensor!("self_attn.indexer.q_norm"),
        k_norm: tensor!("self_attn.indexer.k_norm"),
    };

    /// llama.cpp's names.
    const GGUF: Self = Self {
        q_proj: tensor!("indexer.attn_q_b"),
        k_proj: tensor!("indexer.attn_k"),
        weights_proj: tensor!("indexer.proj"),
        k_norm: tensor!("indexer.k_norm"),
        ..Self::DEEPSEEK
    };
}

impl IndexHeads {
    /// Values of a row of the queries.
    pub fn q_width(&self) -> usize {
        self.index_n_heads * self.index_head_dim
    }
}

impl Indexer {
    /// Weights of the heads in a row.
    pub fn num_weights(&self) -> usize {
        match self.choice {
            IndexChoice::Positions { .. } => self.heads.index_n_heads,
            IndexChoice::Blocks { .. } | IndexChoice::MeanBlocks { .. } => 0,
        }
    }

    /// Whether a layer has its own.
    pub fn is_of(&self, layer: usize) -> bool {
        self.layers[layer] == LayerIndexer::Full
    }
}

impl Facts for Indexer {
    fn use_gguf_names(&mut self) {
        self.names = IndexerNames::GGUF;
    }

    /// A key.
    fn index_dim(&self, layer: usize, _: usize) -> usize {
        if self.is_of(layer) { self.heads.index_head_dim } else { 0 }
    }

    /// Queries, a key, and weights of the heads.
    fn columns(&self, layer: usize) -> usize {
        match self.is_of(layer) {
            true => self.heads.q_width() + self.heads.index_head_dim + self.num_weights(),
            false => 0,
        }
    }

    fn depends_on_scores(&self) -> bool {
        true
    }
}
