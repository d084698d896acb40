//! The facts of lightning attention.

use crate::config::MixerFacts;
use ropechat_kernels::kernel::Activation;

/// Linear attention with a fixed decay per head, which the layer's number slows down: S = decay * S + key (x) value, out = S^T
/// query; the output of all heads is normed, and gated by a sigmoid (Qin et al. 2024, Lightning Attention-2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lightning {
    /// Heads, each with its own queries, keys and values.
    pub num_heads: usize,
    /// Width of a query, of a key and of a value.
    pub head_dim: usize,
    /// The activation of queries, keys and values (`hidden_act`).
    pub activation: Activation,
    /// Where the file stores the decays, which its type rounds: positions of a block that they are for. transformers computes
    /// with them.
    pub stored_block: Option<usize>,
}

/// The stored decays below a layer's path: of the state, of queries and keys in a block, and of each pair of them.
pub(super) const DECAYS: [&str; 4] =
    ["self_attn.slope_rate", "self_attn.query_decay", "self_attn.key_decay", "self_attn.diagonal_decay"];

impl Lightning {
    /// Values of all queries, of all keys, or of all values.
    pub fn width(&self) -> usize {
        self.num_heads * self.head_dim
    }
}

impl MixerFacts for Lightning {
    fn window(&self) -> (usize, usize) {
        (3 * self.width(), self.stored_block.map_or(0, |block| block - 1))
    }

    fn matrices(&self) -> (usize, usize, usize) {
        // What was learned before a block, and in it.
        let matrices = if self.stored_block.is_some() { 2 } else { 1 };
        (self.num_heads, matrices * self.head_dim, self.head_dim)
    }

    fn use_shapes_of(&mut self, shape_of: &dyn Fn(&str) -> Option<Vec<usize>>) {
        let of_queries = shape_of(DECAYS[1]).and_then(|shape| shape.get(1).copied());
        self.stored_block = of_queries.filter(|block| (1..=1 << 16).contains(block));
    }

    /// They follow from the layer's number.
    fn buffers(&self) -> &'static [&'static str] {
        &DECAYS
    }
}
