//! Two stacks of layers that run in cycles (hrm_text).

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
pub mod parts;
