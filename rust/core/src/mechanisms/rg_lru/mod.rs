//! RG-LRU (recurrent_gemma): a number per channel that decays and learns through gates.

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
