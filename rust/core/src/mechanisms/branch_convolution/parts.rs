//! The parts of convolutions of a layer's branches.

pub use crate::parts::NoPart as Outside;
use crate::parts::parts;

parts! {
    /// Those of a layer.
    pub struct InLayer {
        /// Of keys and values.
        pub kv: ShortConvolution<L>,
        /// Of what attention adds.
        pub attention: ShortConvolution<L>,
        /// Of what the MLP adds.
        pub mlp: ShortConvolution<L>,
    }

    /// A causal convolution per channel over the last positions.
    pub struct ShortConvolution {
        /// What the convolution reads is added to its result: one is added to the last weights.  // [positions, channels]
        pub weight: L::Numbers,
        ;
        /// The layer's place among the layers with a recurrent state.
        pub state_layer: usize,
        /// Where its inputs are in that state.
        pub state_start: usize,
        /// The number of channels that it convolves.
        pub channels: usize,
    }
}
