//! Short convolutions of keys, of values, and of what attention and the MLP add (inkling).

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
pub mod parts;
