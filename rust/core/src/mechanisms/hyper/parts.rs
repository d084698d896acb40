//! The parts of hyper-connections.

use crate::parts::parts;

parts! {
    /// Those of a layer.
    pub struct InLayer {
        /// Of attention, and of the MLP.
        pub branches: [HyperConnection<L>; 2],
    }

    /// That after the last layer.
    pub struct Outside {
        /// What reads the streams for the head.
        pub head: HyperConnection<L>,
    }

    /// A hyper-connection.
    pub enum HyperConnection {
        /// A weight per stream.
        Sigmoid(Sigmoid<L>),
        /// A weight per channel of what is read.
        LowRank(LowRank<L>),
    }

    /// A hyper-connection with a weight per stream.
    pub struct Sigmoid {
        /// From all streams to the logits of the weights.  // [kinds * hc_mult, hc_mult * hidden_size]
        pub matrix: L::Numbers,
        /// Added to them.  // [kinds * hc_mult]
        pub base: L::Numbers,
        /// Factors of them: of the weights with which streams are read, and with which they are written.  // [kinds]
        pub scale: L::Numbers,
    }

    /// A hyper-connection with a weight per channel of what is read.
    pub struct LowRank {
        /// Norm of each stream.  // [hc_mult * hidden_size]
        pub norm: L::Norm,
        /// To the low rank, then to the weights with which streams are written.  // [hc_lowrank + hc_mult, all streams]
        pub down: L::Matrix,
        /// From the low rank to the weights with which they are read.  // [all streams, hc_lowrank]
        pub up: L::Matrix,
    }
}
