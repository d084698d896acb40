//! How a mechanism makes the specs of its parts.

use super::prefix::Prefix;
use crate::parts::{MatrixSpec, NormSpec, RecurrentWeights, Spec};

/// Facts of a recurrent mixer that make specs.
pub(crate) trait BuildMixer {
    /// The mixer of the layer at this path, without the norms of its input and output.
    fn specs(&self, at: &Prefix<'_>) -> RecurrentWeights<Spec>;
}

/// Attention whose row a mechanism projects, and whose outputs it adds.
pub(crate) struct OwnAttention {
    /// What the normed row is multiplied with.
    pub projection: MatrixSpec,
    /// Norms of q and k, written out for all heads.
    pub qk_norms: Option<[NormSpec; 2]>,
}

/// Facts of a mechanism that make specs.
pub(crate) trait Build {
    /// Its part of a layer.
    type InLayer;
    /// Its part outside the layers.
    type Outside;

    /// What the layer at this path has.
    fn in_layer(&self, _at: &Prefix<'_>) -> Option<Self::InLayer> {
        None
    }

    /// What is below the model's path.
    fn outside(&self, _at: &Prefix<'_>) -> Option<Self::Outside> {
        None
    }

    /// The layer's attention, where it is that of the mechanism.
    fn attention(&self, _at: &Prefix<'_>) -> Option<OwnAttention> {
        None
    }

    /// Adds rows for the columns of [`Facts::columns`], in their order, to what the layer's normed row is multiplied with.
    ///
    /// [`Facts::columns`]: crate::config::Facts::columns
    fn stack_on(&self, _at: &Prefix<'_>, _matrix: &mut MatrixSpec) {}

    /// A layer's path below the list of layers, and its number there, where the layers are in several lists.
    fn numbered(&self, _layer: usize) -> Option<(&'static str, usize)> {
        None
    }

    /// Where a layer's attention is if that is another path than the layer's, and the norm of what it reads. May change the path
    /// of the rest of the layer.
    fn attention_elsewhere<'a>(&self, _at: &mut Prefix<'a>) -> Option<(Prefix<'a>, NormSpec)> {
        None
    }
}
