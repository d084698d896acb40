//! Arithmetic of ropechat. The rooms, from the lowest to the highest; a room imports only from rooms above it in this list:
//!
//! - `quant`: how numbers are stored, in files and in packed weights.
//! - `kernel`: arithmetic on slices, one table of functions per instruction set.
//! - `compute`: the thread pool, cancelling, a matmul's input, and packed weights: the one way to a matmul.

#![deny(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("kernels read packed weights, which are little endian, as the processor's own numbers");

pub mod compute;
#[allow(unsafe_code)] // instruction sets beyond the compiler's baseline
pub mod kernel;
pub mod quant;
