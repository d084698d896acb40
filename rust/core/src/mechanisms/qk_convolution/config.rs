//! The facts of convolutions of queries and keys.

use crate::config::Facts;

/// Two convolutions of queries and keys, one per channel and one per head, each added to the mean of the query and its key; half
/// of the values are those of the position before (compressed convolutional attention; zaya).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QkConvolution {
    /// Queries, keys and delayed values.
    pub channels: usize,
    /// `cca_time0`: positions that the convolution per channel sees.
    pub depthwise_size: usize,
    /// `cca_time1`: positions that the convolution per head sees.
    pub grouped_size: usize,
}

impl QkConvolution {
    /// Earlier positions that are kept: a value is delayed by one position, with any convolution.
    pub fn positions(&self) -> usize {
        (self.depthwise_size + self.grouped_size - 2).max(1)
    }
}

impl Facts for QkConvolution {}
