//! The facts of hyper-connections.

use crate::checkpoint::Checkpoint;
use crate::config::{Facts, Tensor};

/// Several residual streams: each branch reads a weighted sum of them, and its result is added to each with a weight of its
/// own (Zhu et al. 2024, <https://arxiv.org/abs/2409.19606>).
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct HyperConnections {
    /// The number of streams.
    pub hc_mult: usize,
    pub weights: StreamWeights,
    /// Of attention and of the MLP in a layer, and those after the last one.
    pub names: [HyperNames; 3],
}

/// How the weights of the streams are computed from the streams.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub enum StreamWeights {
    /// A sigmoid per stream, for reading and for writing (hy_v4).
    Sigmoid {
        /// The largest weight of a result.
        hc_magnitude: f32,
        /// Added to all weights.
        hc_eps: f32,
    },
    /// A sigmoid per stream, twice that for writing, and a matrix that mixes the streams where a result is added: a softmax
    /// whose columns and rows are normalized in turn until both sum to one (Sinkhorn and Knopp 1967; manifold-constrained
    /// hyper-connections, <https://arxiv.org/abs/2512.24880>; deepseek_v4).
    Sinkhorn {
        /// How often the columns are normalized.
        hc_sinkhorn_iters: usize,
        /// Added to the weights for reading, to the softmax, and to the sums that it is divided by.
        hc_eps: f32,
    },
    /// Each stream is normed; a sigmoid per channel, through a projection of low rank, weights what is read, and twice a
    /// sigmoid per stream what is written (qwen4_exp).
    LowRank { hc_lowrank: usize },
}

/// Where the tensors of a hyper-connection are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HyperNames {
    /// Matrix, base and scale.
    Sigmoid([&'static str; 3]),
    /// Norm, to the low rank and back, weights of what is written.
    LowRank([Tensor; 4]),
}

/// Those after the last layer as transformers writes them, and as deepseek_v4's own files have them.
pub const HEAD: HyperNames = HyperNames::Sigmoid(["hc_head.hc_fn", "hc_head.hc_base", "hc_head.hc_scale"]);
const PUBLISHED_HEAD: HyperNames = HyperNames::Sigmoid(["hc_head_fn", "hc_head_base", "hc_head_scale"]);

impl Facts for HyperConnections {
    fn use_names_of(&mut self, checkpoint: &Checkpoint) {
        if let (HEAD, HyperNames::Sigmoid([name, ..])) = (self.names[2], PUBLISHED_HEAD)
            && checkpoint.contains(name)
        {
            self.names[2] = PUBLISHED_HEAD;
        }
    }
}
