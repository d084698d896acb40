//! The one way to a matmul: the thread pool, activations and packed weights.

pub(crate) mod activations;
#[allow(unsafe_code)] // lends borrowed work to threads
pub mod pool;
#[allow(unsafe_code)] // threads write interleaved columns of one output
pub(crate) mod weight;
