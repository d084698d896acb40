//! AltUp and LAuReL (gemma3n): several residual streams, of which a layer computes one, and a low-rank branch beside attention.

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
pub mod parts;
