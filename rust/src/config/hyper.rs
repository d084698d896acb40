//! Hyper-connections.

/// Several residual streams: each branch reads a weighted sum of them, and its result is added to each with a weight of its
/// own; both weights are sigmoids of the streams (Zhu et al. 2024, <https://arxiv.org/abs/2409.19606>; without mixing of the
/// streams, hy_v4).
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct HyperConnections {
    /// The number of streams.
    pub hc_mult: usize,
    /// The largest weight of a result.
    pub hc_magnitude: f32,
    /// Added to all weights.
    pub hc_eps: f32,
}
