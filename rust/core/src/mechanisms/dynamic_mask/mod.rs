//! Dynamic mask attention (doge).

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
pub mod parts;
