//! The selective scan of Mamba (jamba): a state per channel that decays and learns by its own steps.

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
