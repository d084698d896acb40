//! The engine of ropechat: rows of tokens through one forward pass.
//!
//! Where to start reading: `forward` is the forward pass; [`engine`] decides which rows go through it.
//! The rooms, from the lowest to the highest; a room imports only from rooms above it in this list:
//!
//! - `error`: everything that can go wrong, with the exit code that it leads to.
//! - `platform`: what the system gives: aligned memory, mapped files, limits.
//! - `quant`: how numbers are stored, in files and in packed weights.
//! - `kernel`: arithmetic on slices, one table of functions per instruction set.
//! - `compute`: the thread pool, cancelling, a matmul's input, and packed weights: the one way to a matmul.
//! - `checkpoint`: tensors and metadata out of files that strangers wrote.
//! - `config`: what a model is, in the words of its model card.
//! - `family`: from the metadata of each family of models to its config and its tensors.
//! - `kv_cache`: keys and values by position.
//! - `model`: config and weights together; packs on disk.
//! - `forward`: THE forward pass.
//! - `sampling`: what a logit row says, and which token comes next.
//! - `engine`: sequences, steps, prefix reuse; whether a model fits into memory.
//! - `python`: the bindings, nothing else.

#![deny(unsafe_code)]

// Unit tests share the random models of `tests/common`, which imports the crate by its name.
#[cfg(test)]
extern crate self as ropechat_core;

#[cfg(target_endian = "big")]
compile_error!("kernels read packed weights, which are little endian, as the processor's own numbers");

pub mod checkpoint;
pub mod compute;
pub mod config;
pub mod engine;
pub mod error;
pub mod family;
pub(crate) mod forward;
#[allow(unsafe_code)] // instruction sets beyond the compiler's baseline
pub mod kernel;
pub mod kv_cache;
pub mod model;
pub mod platform;
#[cfg(feature = "python")]
mod python;
pub mod quant;
pub mod sampling;

pub use error::{Error, Result};
