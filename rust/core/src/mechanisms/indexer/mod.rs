//! Attention that reads chosen positions only: small heads score every earlier one (deepseek_v32 and others).

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
pub mod parts;
