//! A block of attention and an MLP that layers share (zamba2).

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
pub mod parts;
