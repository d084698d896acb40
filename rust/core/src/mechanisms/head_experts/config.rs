//! The facts of a mixture of attention heads.

use crate::config::Facts;

/// A router chooses experts, each with a projection of queries and one of outputs; keys and values are the same for all (Zhang
/// et al. 2022, <https://arxiv.org/abs/2210.05144>; jetmoe).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct HeadExperts {
    pub num_experts: usize,
    pub num_experts_per_tok: usize,
}

impl Facts for HeadExperts {}
