//! The selective scan of Mamba (jamba): a state per channel, whose decay and input are computed from each token.

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
