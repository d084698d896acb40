//! Hyper-connections (hy_v4, deepseek_v4, qwen4_exp).

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
pub mod parts;
