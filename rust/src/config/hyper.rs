//! Hyper-connections.

/// Several residual streams: each branch reads a weighted sum of them, and its result is added to each with a weight of its
/// own (Zhu et al. 2024, <https://arxiv.org/abs/2409.19606>).
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct HyperConnections {
    /// The number of streams.
    pub hc_mult: usize,
    pub weights: StreamWeights,
}

/// How the weights of the streams are made of the streams.
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
    /// Each stream is normed; a sigmoid per channel, through a projection of low rank, weights what is read, and twice a
    /// sigmoid per stream what is written (qwen4_exp).
    LowRank { hc_lowrank: usize },
}
