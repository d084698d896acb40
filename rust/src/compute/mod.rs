//! The one door to a matmul: the thread pool, activations and packed weights.

pub mod activations;
pub mod pool;
pub mod weight;
