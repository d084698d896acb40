//! The facts of shared blocks.

use crate::config::Facts;

/// Attention and an MLP that read the stream concatenated with the embedding, with adapters of low rank for each layer
/// that shares them; what they give is added to what the layer's recurrent mixer reads (zamba2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedBlock {
    /// `adapter_rank`.
    pub adapter_rank: usize,
    /// `use_shared_attention_adapter`: whether queries, keys and values have adapters too, not only the MLP.
    pub attention_adapter: bool,
    /// `num_mem_blocks`: different blocks, which the layers have in turn.
    pub num_mem_blocks: usize,
    /// The layers with a block, in order.
    pub layers: Vec<usize>,
}

impl SharedBlock {
    /// A layer's place among those with a block, and the layer whose tensors its block has.
    pub fn of_layer(&self, layer: usize) -> Option<[usize; 2]> {
        let place = self.layers.iter().position(|&other| other == layer)?;
        Some([place, self.layers[place % self.num_mem_blocks]])
    }
}

impl Facts for SharedBlock {
    fn shares_tensors_of(&self, layer: usize) -> Option<usize> {
        self.of_layer(layer).map(|[_, first]| first)
    }
}
