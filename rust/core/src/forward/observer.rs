//! Who looks into a forward pass. The pass computes the same with and without it, and asks once per layer whether it is there.

use super::attention::{AttentionBuffers, ObservedHeads};
use super::state::{Pass, Run};
use super::step::Steps;
use crate::parts::Layer;

/// Looks at the layers of a pass over one run.
pub trait Observer {
    /// Whether queries, keys and attention weights of a layer are wanted.
    fn wants_heads(&self, layer: usize) -> bool;

    /// The residual stream after a layer.  // x [rows, hidden_size]
    fn after_layer(&mut self, layer: usize, x: &[f32]);

    /// Queries, keys and attention weights of a layer, where they are wanted.
    fn heads(&mut self, heads: &ObservedHeads<'_>);
}

/// Shows a layer to its observer.  // x [rows, hidden_size]
pub(super) fn observe(
    observer: &mut dyn Observer,
    pass: Pass<'_>,
    layer: &Layer,
    run: &Run<'_>,
    (attention, steps): (&AttentionBuffers, &Steps<'_>),
    x: &[f32],
) {
    observer.after_layer(layer.index, x);
    if layer.attention.is_some() && observer.wants_heads(layer.index) {
        attention.observed(pass, layer, run, steps).iter().for_each(|heads| observer.heads(heads));
    }
}
