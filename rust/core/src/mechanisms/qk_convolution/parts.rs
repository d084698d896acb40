//! The parts of convolutions of queries and keys.

pub use crate::parts::NoPart as Outside;
use crate::parts::parts;

parts! {
    /// Convolutions of queries and keys.
    pub struct InLayer {
        /// Per channel.  // [positions, channels]
        pub depthwise: L::Numbers,
        /// Its bias.  // [channels]
        pub depthwise_bias: L::Numbers,
        /// The delayed values of the first position, which has none before it: their bias.  // [values / 2]
        pub first_values: L::Numbers,
        /// Per head.  // each [head_dim, head_dim * positions]
        pub grouped: Vec<L::Matrix>,
        ;
        /// The layer's place among the layers with a recurrent state.
        pub state_layer: usize,
    }
}
