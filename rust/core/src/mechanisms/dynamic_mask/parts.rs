//! The parts of dynamic mask attention.

pub use crate::parts::NoPart as Outside;
use crate::parts::parts;

parts! {
    /// What makes the number of a key in dynamic mask attention: exp(A softplus(dt_proj(v))).
    pub struct InLayer {
        /// [num_kv_heads]
        pub a: L::Numbers,
        /// [num_kv_heads, values of all heads]
        pub dt_proj: L::Numbers,
        /// Zeros without one.  // [num_kv_heads]
        pub dt_bias: L::Numbers,
    }
}
