//! Lightning attention (minimax): linear attention with a fixed decay per head.

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
