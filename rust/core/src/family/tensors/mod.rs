//! Which tensors make the weights of a [`Config`], under their hub names.

mod attention;
mod check;
mod compression;
mod layout;
mod mla;
mod moe;
mod prefix;
mod recurrent;
mod shared_block;
mod unread;

pub use check::{as_in, check_experts, check_tensors, embedding_names, num_parameters, required_tensors};
pub use layout::{layer, mtp_layer, outside_layers};
