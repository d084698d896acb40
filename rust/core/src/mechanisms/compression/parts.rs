//! The parts of attention with compressed keys.

use super::config::Compression;
pub use crate::parts::NoPart as Outside;
use crate::parts::parts;

parts! {
    /// Attention of a layer but for the projection of its row: the inputs of compressed keys (projections, then gates, of
    /// attention and of its indexer), the latent of queries, the key, and the weights of the indexer's heads.
    pub struct InLayer {
        /// Norm of the latent of queries.
        pub q_a_layernorm: L::Norm,
        /// Queries from it.  // [num_heads * head_dim, q_lora_rank]
        pub q_b_proj: L::Matrix,
        /// From the output of each group of heads to its latent.  // each [o_lora_rank, num_heads * head_dim / o_groups]
        pub o_a_proj: Vec<L::Matrix>,
        /// From these latents to the output.  // [hidden_size, o_groups * o_lora_rank]
        pub o_proj: L::Matrix,
        /// What makes compressed keys, where the layer reads them.
        pub compressed: Option<CompressedKeys<L>>,
    }

    /// What makes compressed keys, but for the projections.
    pub struct CompressedKeys {
        /// Added to the gates.  // [compress_rate, series * head_dim]
        pub position_bias: L::Numbers,
        /// Norm of a key.  // [head_dim]
        pub norm: L::Norm,
        /// What chooses among them.
        pub indexer: Option<KeyIndexer<L>>,
        ;
        /// What they are.
        pub spec: Compression,
        /// The layer's place among the layers with a recurrent state.
        pub state_layer: usize,
        /// Values that one position keeps in that state, and how many positions do.
        pub window: (usize, usize),
    }

    /// What chooses among compressed keys.
    pub struct KeyIndexer {
        /// Added to the gates of its own keys.  // [compress_rate, series * index_head_dim]
        pub position_bias: L::Numbers,
        /// Norm of such a key.
        pub k_norm: L::Norm,
        /// Queries from their latent.  // [index_n_heads * index_head_dim, q_lora_rank]
        pub q_proj: L::Matrix,
    }
}
