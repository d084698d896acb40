//! Threads, a matmul's input, packed weights: the only way to a matmul with a matrix of the model.

pub mod activations;
pub mod cancel;
pub mod panels;
pub mod phases;
#[allow(unsafe_code)] // lends borrowed work to threads
pub mod pool;
pub mod progress;
#[allow(unsafe_code)] // threads write interleaved columns of one output
pub mod weight;
