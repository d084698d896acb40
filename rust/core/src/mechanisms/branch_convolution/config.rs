//! The facts of short convolutions of a layer's branches.

use crate::config::Facts;

/// Short convolutions of keys, of values, and of what attention and the MLP add; each is added to what it reads (inkling).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BranchConvolutions {
    /// `conv_kernel_size`: positions that each sees.
    pub kernel_size: usize,
    /// Keys and values of the layer that has most.
    pub kv_channels: usize,
}

impl Facts for BranchConvolutions {}
