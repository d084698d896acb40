//! The parts of AltUp and LAuReL.

use crate::parts::parts;

parts! {
    /// How a layer predicts and corrects several residual streams, and its low-rank branch parallel to attention.
    pub struct InLayer {
        /// Norm of the router's input, with the router's factor.
        pub router_norm: L::Norm,
        /// [num_inputs, hidden_size]
        pub modality_router: L::Numbers,
        /// [num_inputs * num_inputs, num_inputs]
        pub prediction_coefs: L::Numbers,
        /// [num_inputs, num_inputs]
        pub correction_coefs: L::Numbers,
        /// [hidden_size]
        pub correct_output_scale: L::Numbers,
        /// [laurel_rank, hidden_size]
        pub laurel_left: L::Matrix,
        /// [hidden_size, laurel_rank]
        pub laurel_right: L::Matrix,
        /// Norm of what the branch adds.
        pub laurel_norm: L::Norm,
    }

    /// Between the first stream and the others.
    pub struct Outside {
        /// From the first residual stream to the others, and back.  // each [hidden_size, hidden_size]
        pub projections: [Vec<L::Matrix>; 2],
    }
}
