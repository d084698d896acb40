//! Attention of one key for all heads that reads compressed keys too (deepseek_v4); an indexer chooses among these.

pub mod config;
pub(crate) mod family;
pub(crate) mod forward;
pub mod parts;
