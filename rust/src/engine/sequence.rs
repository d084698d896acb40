//! A sequence and its cached positions.

use super::event::Goal;
use crate::config::RopeVariant;
use crate::error::Error;
use crate::kv_cache::{BLOCK, KvSequence, Place};
use crate::sampling::Sampling;
use crate::sampling::grammar::Matcher;
use std::sync::Mutex;

pub(super) struct Sequence {
    pub ids: Vec<u32>,
    pub prompt_len: usize,
    /// Tokens whose cache came from another sequence.
    pub reused: usize,
    pub cache: KvSequence,
    /// Where it stands in the tree of cached prefixes: behind its last whole block there.
    pub place: Place,
    pub rope_variant: RopeVariant,
    pub goal: Goal,
    /// Settings whose stages are told for each given token that is scored.
    pub explained: Option<Sampling>,
    /// What the generated tokens must match; a step has one row of it.
    pub matcher: Option<Mutex<Matcher>>,
    /// Ids whose log probability and rank are told for each row that is read out.
    pub looked_up: Vec<u32>,
    pub finished: bool,
}

impl Sequence {
    /// Tokens that still have to go through the forward pass.
    pub fn waiting(&self) -> usize {
        self.goal.rows(self.ids.len()) - self.cache.len()
    }

    /// The tokens behind its place whose rows nobody reads, so that they may come from the cache.
    pub fn unread(&self) -> &[u32] {
        self.ids[..self.goal.first_row(self.ids.len())].get(self.place.blocks() * BLOCK..).unwrap_or_default()
    }
}

/// The error for a number that no sequence has.
pub(super) fn unknown(number: u64) -> Error {
    Error::Request(format!("sequence {number} does not exist; it was freed or never added"))
}
