//! Mixture of attention heads (jetmoe).

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
pub mod parts;
