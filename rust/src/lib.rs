//! The engine of ropechat: rows of tokens through one forward pass.
//!
//! Where to start reading: [`forward`] is the forward pass; [`engine`] decides which rows go through it.
//! The modules in layer order (a module imports only from layers above it in this list, or its own):
//!
//! - L0 [`error`], [`quant`], [`buffer`], [`mapped`], [`system`], [`checksum`], [`exp64`], [`philox`]: what can go wrong;
//!   how numbers are stored; memory; mapped files; what the system tells; a checksum, an exponential and a random number
//!   generator.
//! - L1 [`kernel`], [`parallel`]: arithmetic on slices, one table per instruction set; the thread pool.
//! - L2 [`activations`], [`weight`]: a matmul's input in the type that kernels multiply; matrices packed for the kernels
//!   and the one door to a matmul.
//! - L3 [`checkpoint`], [`pack_cache`]: tensors by Hugging Face name out of files that strangers wrote; packed weights
//!   that an earlier start left on disk.
//! - L4 [`config`], [`family`]: what the model is, in the field's words.
//! - L5 [`rope`], [`kv_cache`], [`model`]: rotation angles; keys and values by position; config + weights.
//! - L6 [`attention`], `experts`, [`forward`], [`ranking`], [`readout`], [`sampler`]: THE forward pass; what a logit row says;
//!   which token comes next.
//! - L7 [`engine`], [`fit`]: sequences, steps, prefix reuse, cancel; whether a model fits into memory, and in which type.
//! - L8 `python`: the bindings, nothing else.

#[cfg(target_endian = "big")]
compile_error!("kernels read packed weights, which are little endian, as the processor's own numbers");

pub mod activations;
pub mod attention;
pub mod buffer;
pub mod checkpoint;
pub mod checksum;
pub mod config;
pub mod engine;
pub mod error;
pub mod exp64;
mod experts;
pub mod family;
pub mod fit;
pub mod forward;
pub mod kernel;
pub mod kv_cache;
pub mod mapped;
pub mod model;
pub mod pack_cache;
pub mod parallel;
pub mod philox;
#[cfg(feature = "python")]
mod python;
pub mod quant;
pub mod ranking;
pub mod readout;
pub mod rope;
pub mod sampler;
pub mod system;
pub mod weight;

pub use error::{Error, Result};
