//! The parts of embeddings of n-grams.

pub use crate::parts::NoPart as Outside;
use crate::parts::parts;

parts! {
    /// A layer's embedding of n-grams.
    pub struct InLayer {
        /// The rows that hashes choose.  // [rows, row_width]
        pub table: L::Matrix,
        /// From them to a key per stream, then to a value.  // [(hc_mult + 1) * hidden_size, ple_embed_dim]
        pub key_value_proj: L::Matrix,
        /// Norms of the keys, of the streams, and of what the convolution reads.  // [hc_mult * hidden_size] each
        pub norms: [L::Norm; 3],
        /// The depthwise convolution.  // [positions, hc_mult * hidden_size]
        pub conv: L::Numbers,
        ;
        /// Its place among the parts of the recurrent state.
        pub state_layer: usize,
        /// Its place among the layers with such an embedding.
        pub table_index: usize,
    }
}
