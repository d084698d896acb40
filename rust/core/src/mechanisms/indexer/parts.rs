//! The parts of an indexer.

pub use crate::parts::NoPart as Outside;
use crate::parts::parts;

parts! {
    /// Of a layer that reads chosen positions.
    pub struct InLayer {
        /// None where it reads the choice of the last layer before it that has one.
        pub own: Option<IndexerWeights<L>>,
    }

    /// An indexer's parameters without the matrices that are part of the layer's projection: those of its key and of its
    /// heads' weights, and of its queries if they do not come from a latent.
    pub struct IndexerWeights {
        /// Queries from their latent.  // [index_n_heads * index_head_dim, q_lora_rank]
        pub q_proj: Option<L::Matrix>,
        /// Norm of a query.
        pub q_norm: Option<L::Norm>,
        /// Norm of the key.
        pub k_norm: L::Norm,
    }
}
