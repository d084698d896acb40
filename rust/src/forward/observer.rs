//! Who looks into a forward pass. The pass computes the same with and without it, and asks once per layer whether it is there.

use super::attention::ObservedHeads;

/// Looks at the layers of a pass over one run.
pub trait Observer {
    /// Whether queries, keys and attention weights of a layer are wanted.
    fn wants_heads(&self, layer: usize) -> bool;

    /// The residual stream after a layer.  // x [rows, hidden_size]
    fn after_layer(&mut self, layer: usize, x: &[f32]);

    /// Queries, keys and attention weights of a layer, where they are wanted.
    fn heads(&mut self, heads: &ObservedHeads<'_>);
}
