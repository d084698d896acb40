//! The engine of ropechat: rows of tokens through one forward pass.
//!
//! Where to start reading: `forward` is the forward pass; [`engine`] decides which rows go through it.
//! The rooms, from the lowest to the highest; a room imports only from rooms above it in this list:
//!
//! - `checkpoint`: tensors and metadata out of files that strangers wrote.
//! - `config`: what a model is, in the words of its model card.
//! - `parts`: what a model consists of, each part declared once, as a spec of its tensors and as packed weights.
//! - `family`: from the metadata of each family of models to its config and the specs of its parts.
//! - `kv_cache`: keys and values by position.
//! - `model`: config and weights together; packs on disk.
//! - `forward`: THE forward pass.
//! - `sampling`: what a logit row says, and which token comes next.
//! - `engine`: sequences, steps, prefix reuse; whether a model fits into memory.
//!
//! `mechanisms` is no room: a folder in it has all that one mechanism of a few families needs, a file for each room.

#![deny(unsafe_code)]

// Unit tests share the random models of `tests/common`, which imports the crate by its name.
#[cfg(test)]
extern crate self as ropechat_core;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

pub mod checkpoint;
pub mod config;
pub mod engine;
pub mod family;
pub(crate) mod forward;
pub mod kv_cache;
pub mod mechanisms;
pub mod model;
pub mod parts;
pub mod sampling;

pub use ropechat_platform::error::{Error, Result};
