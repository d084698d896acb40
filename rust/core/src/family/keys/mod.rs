//! The keys of config.json: typed access, what nearly all families share, and which keys are refused.

pub(crate) mod base;
pub(crate) mod generation;
pub(crate) mod head;
pub(crate) mod known;
pub mod metadata;
pub(crate) mod mixers;
pub(crate) mod mla;
pub(crate) mod moe;
pub(crate) mod quantization;
pub(crate) mod refused;
pub(crate) mod rope;
pub(crate) mod windows;
