//! Recurrent mixers and convolutions.

use super::leaf::parts;
use crate::config::ResidualFactors;

parts! {
    /// The recurrent mixer of a layer.
    pub struct RecurrentWeights {
        /// Norm of its input.
        pub input_norm: Option<L::Norm>,
        /// What the normed row is projected to.
        pub in_proj: L::Matrix,
        /// The depthwise convolution.  // [positions, channels]
        pub conv: L::Numbers,
        /// Its bias; zeros without one.  // [channels]
        pub conv_bias: L::Numbers,
        /// -exp(A_log), or another rate at which the state decays; empty when the mixer has none.
        ///
        /// // [heads]; what else, the mechanism says
        pub decay_rate: L::Numbers,
        /// Bias of the step; empty when the mixer has none.  // [heads] or [keys of all heads]
        pub dt_bias: L::Numbers,
        /// Factor of the value that is added to the output; empty when the mixer has none.  // [heads] or [channels]
        pub d: L::Numbers,
        /// Norm of the output of linear attention.  // [heads * value_dim]
        pub norm: Option<L::Norm>,
        /// Matrices between the two projections; of RG-LRU one per head.
        pub inner_proj: Vec<L::Matrix>,
        /// Norms of what the first of them gives.
        pub inner_norms: Vec<L::Norm>,
        /// The output's projection.
        pub out_proj: L::Matrix,
        /// Norm of the mixer's output.
        pub out_norm: Option<L::Norm>,
        ;
        /// Its place among the layers with a recurrent state.
        pub state_layer: usize,
        /// Factors with which the output is added.
        pub factors: ResidualFactors,
    }
}
