//! The parts of stacks that run in cycles.

pub use crate::parts::NoPart as InLayer;
use crate::parts::parts;

parts! {
    /// What is learned.
    pub struct Outside {
        /// The first state of the low stack.  // [hidden_size]
        pub low_state: L::Numbers,
    }
}
