//! Which tensors make the weights of a [`Config`], under their hub names.

mod attention;
mod build;
mod check;
mod layout;
mod mechanisms;
mod mla;
mod moe;
mod prefix;
mod recurrent;
mod unread;

pub(crate) use build::{Build, BuildMixer, OwnAttention};
pub use check::{as_in, check_experts, check_tensors, embedding_names, num_parameters, required_tensors};
pub use layout::{layer, mtp_layer, outside_layers};
pub(crate) use prefix::Prefix;
