//! A gated short convolution (lfm2).

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
