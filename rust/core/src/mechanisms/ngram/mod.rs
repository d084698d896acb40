//! Embeddings of hashed n-grams (qwen4_exp), which are added to the streams of hyper-connections.

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
pub mod parts;
