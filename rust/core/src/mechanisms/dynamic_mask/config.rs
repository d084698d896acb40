//! The facts of dynamic mask attention.

use crate::config::Facts;

/// Dynamic mask attention (Shi et al. 2024, <https://arxiv.org/abs/2412.11834>; doge): a number exp(A softplus(dt)) per key,
/// computed from its values, is added to its scores, and a query reads the keys with the highest numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct DynamicMask {
    /// Keys that a query reads of each key/value head. transformers leaves open which of equal numbers comes first; here it
    /// is the later position.
    pub keep_window_size: usize,
}

impl Facts for DynamicMask {
    /// A number per head.
    fn index_dim(&self, _: usize, num_kv_heads: usize) -> usize {
        num_kv_heads
    }

    fn depends_on_scores(&self) -> bool {
        true
    }
}
