//! Convolutions of queries and keys, and delayed values (zaya).

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
pub mod parts;
