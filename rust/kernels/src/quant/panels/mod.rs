//! How weights are packed for the kernels: one file per format.

pub(crate) mod bit_planes;
pub(super) mod float;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(super) mod q4_0;
pub(super) mod q4_1_q5_1;
pub(crate) mod q4_k_q5_k;
pub(crate) mod q6_k;
pub(super) mod q8_0;
pub(super) mod step;
pub(crate) mod table;
pub(super) mod ternary;
