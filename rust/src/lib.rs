//! The engine of ropechat: rows of tokens through one forward pass.
//!
//! Where to start reading: [`forward`] is the forward pass; [`engine`] decides which rows go through it.
//! The modules in layer order (a module imports only from layers above it in this list):
//!
//! - L0 [`error`], [`quant`]: what can go wrong; how numbers are stored.
//! - L1 [`kernel`], [`parallel`]: arithmetic on slices, one table per instruction set; the thread pool.
//! - L2 [`weight`]: matrices packed for the kernels; the one door to a matmul.
//! - L3 [`checkpoint`]: tensors by Hugging Face name out of files that strangers wrote.
//! - L4 [`config`], [`family`]: what the model is, in the field's words.
//! - L5 [`rope`], [`kv_cache`], [`model`]: rotation angles; keys and values by position; config + weights.
//! - L6 [`forward`], [`readout`], [`sampler`]: THE forward pass; what a logit row says; which token comes next.
//! - L7 [`engine`]: sequences, steps, prefix reuse, cancel.
//! - L8 `python`: the bindings, nothing else.

pub mod checkpoint;
pub mod config;
pub mod error;
pub mod family;
pub mod quant;
pub mod rope;

pub use error::{Error, Result};
