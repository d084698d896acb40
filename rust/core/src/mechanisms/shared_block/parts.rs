//! The parts of shared blocks.

pub use crate::parts::NoPart as Outside;
use crate::parts::{DenseMlp, parts};

parts! {
    /// A block of attention and an MLP that layers share, without its attention.
    pub struct InLayer {
        /// Norm of the stream concatenated with the embedding.  // [2 * hidden_size]
        pub norm: L::Norm,
        /// Correction of the queries, keys and values.
        pub attention_adapter: Option<Adapter<L>>,
        /// Norm of the MLP's input.
        pub mlp_norm: L::Norm,
        /// The MLP.
        pub mlp: DenseMlp<L>,
        /// Correction of its first projections.
        pub mlp_adapter: Adapter<L>,
        /// From the block's output to what is added.
        pub linear: L::Matrix,
    }

    /// A correction of low rank to a matrix: product += up(down(x)), part by part.
    pub struct Adapter {
        /// To the latents of all parts.
        pub down: L::Matrix,
        /// From the latent of each part.
        pub ups: Vec<L::Matrix>,
        ;
        /// Columns of the product that each part has; None: all that the last one gives, padding included.
        pub columns: Vec<Option<usize>>,
        /// Width of a latent.
        pub rank: usize,
    }
}
