//! The parts of a mixture of attention heads.

pub use crate::parts::NoPart as Outside;
use crate::parts::parts;

parts! {
    /// All but the projection of keys and values. The width of an expert is that of all keys.
    pub struct InLayer {
        /// A logit per expert, in f32.  // [num_experts, hidden_size]
        pub router: L::Matrix,
        /// q of each expert.  // each [width, hidden_size]
        pub queries: Vec<L::Matrix>,
        /// The output projection of each expert.  // each [hidden_size, width]
        pub outputs: Vec<L::Matrix>,
        /// Bias of the sum of all outputs.  // [hidden_size]
        pub bias: L::Numbers,
    }
}
