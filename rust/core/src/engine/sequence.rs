//! A sequence and its cached positions.

use super::draft_statistics::Draft;
use super::event::Goal;
use super::hidden_states::HiddenStates;
use super::prompt_lookup::PromptLookup;
use crate::config::RopeVariant;
use crate::kv_cache::{BLOCK, KvSequence, Place};
use crate::sampling::constraint::Constraint;
use crate::sampling::{Mask, Sampling};
use ropechat_platform::error::{Error, Result};
use ropechat_platform::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;

pub(super) struct Sequence {
    pub ids: Vec<u32>,
    pub prompt_len: usize,
    /// Tokens whose cache came from another sequence.
    pub reused: usize,
    pub cache: KvSequence,
    /// Its place in the tree of cached prefixes: after its last whole block there.
    pub place: Place,
    pub rope_variant: RopeVariant,
    pub goal: Goal,
    /// Settings whose stages are reported for each given token that is scored.
    pub explained: Option<Sampling>,
    /// What the generated tokens must match, and which channel they belong to.
    pub constraint: Option<Mutex<Constraint>>,
    /// The index of the first token that counts for `max_tokens`; None in a thought, whose tokens do not.
    pub counted_from: Option<usize>,
    /// Ids whose log probability and rank are reported for each row that is read out.
    pub looked_up: Vec<u32>,
    /// Tokens at the end of `ids` that are drafted; 0 between steps.
    pub drafted: usize,
    /// What drafts are taken from where there is no draft model, or it is expected to gain less.
    pub lookup: PromptLookup,
    /// The number of the draft model's sequence with the same tokens.
    pub draft_number: Option<u64>,
    /// What the draft model proposes in this step.
    pub proposed: Draft,
    /// Hidden states for multi-token prediction: the model's at each position; in a sequence of the layer for it those that
    /// it reads at each.
    pub hidden: HiddenStates,
    /// Tokens of the text before its first one, in a sequence of a layer for multi-token prediction.
    pub skipped: usize,
    /// In a sequence of that layer, tokens at the beginning that were read with hidden states of the model, not with the
    /// layer's own: their keys and values stay.
    pub certain: usize,
    pub finished: bool,
}

impl Sequence {
    /// Tokens that still have to go through the forward pass.
    pub fn waiting(&self) -> usize {
        self.goal.rows(self.ids.len()) - self.cache.len()
    }

    /// Whether it waits for tokens of its prompt, and not only for drawn ones: of these there are several where accepted drafts
    /// are computed again ([`KvSequence::commit_first`]).
    pub fn reads_prompt(&self) -> bool {
        self.waiting() > 1 && self.cache.len() < self.prompt_len
    }

    /// The tokens after its place whose rows nobody reads, so they may come from the cache.
    pub fn unread(&self) -> &[u32] {
        self.ids[..self.goal.first_row(self.ids.len())].get(self.place.blocks() * BLOCK..).unwrap_or_default()
    }

    /// Tokens that may be drafted: one more is drawn behind them, and none of them may be the last one. With a recurrent state
    /// a step ends where a block does, because the state is kept there, and has no draft if it computes tokens again.
    pub fn most_drafted(&self, context: usize) -> usize {
        let Goal::Generate(generation) = &self.goal else { return 0 };
        let most =
            self.left(generation.max_tokens).min(context.saturating_sub(self.ids.len())).saturating_sub(1);
        match self.cache.has_state() {
            false => most,
            true if self.waiting() > 1 => 0,
            true => most.min(BLOCK - 1 - self.cache.len() % BLOCK),
        }
    }

    /// Tokens that `max_tokens` leaves; a thought has no end.
    pub fn left(&self, max_tokens: usize) -> usize {
        self.counted_from.map_or(usize::MAX, |from| max_tokens.saturating_sub(self.ids.len() - from))
    }

    /// Tokens that are expected to follow: as many as were generated, and `more`; at most what `max_tokens` leaves.
    pub fn expected(&self, more: usize) -> usize {
        let Goal::Generate(generation) = &self.goal else { return 0 };
        let generated = self.ids.len() - self.prompt_len;
        (generated + more).min(self.left(generation.max_tokens))
    }

    /// For each of at most `most` tokens to draft: the chance that this token and all drafted tokens before it are right.
    pub fn chances(&self, most: usize) -> Vec<f64> {
        match self.proposed.ids.is_empty() {
            true => self.lookup.chances(most).collect(),
            false => self.proposed.chances.iter().copied().take(most).collect(),
        }
    }

    /// Appends `count` drafted tokens, as far as there are so many.
    pub fn append_draft(&mut self, count: usize) {
        match self.proposed.ids.is_empty() {
            true => self.lookup.draft(&mut self.ids, count),
            false => self.ids.extend(self.proposed.ids.iter().take(count)),
        }
    }

    /// Whether a token ends it.
    pub fn stops_at(&self, id: u32) -> bool {
        matches!(&self.goal, Goal::Generate(generation) if generation.stop_ids.contains(&id))
    }

    /// The position of the last token that is not drafted.
    pub fn last(&self) -> usize {
        self.ids.len() - self.drafted - 1
    }

    fn constraint(&self) -> Option<MutexGuard<'_, Constraint>> {
        Some(self.constraint.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether not every token may be drawn.
    pub fn is_constrained(&self) -> bool {
        matches!(self.goal, Goal::Generate(_))
            && self.constraint().is_some_and(|constraint| constraint.has_masks())
    }

    /// What is allowed behind the last token and behind the drafted ones, as far as those can be drawn.
    pub fn masks(&self) -> Result<Vec<Option<Mask>>> {
        let draft = &self.ids[self.last() + 1..];
        self.constraint().map_or(Ok(Vec::new()), |mut constraint| constraint.masks(draft))
    }

    /// A constraint at the same place; None without one.
    pub fn copy_constraint(&self) -> Option<Constraint> {
        self.constraint().map(|constraint| constraint.copy())
    }

    /// Removes the drafted tokens.
    pub fn drop_draft(&mut self) {
        self.ids.truncate(self.ids.len() - std::mem::take(&mut self.drafted));
    }
}

/// The error for a number that no sequence has.
pub(super) fn unknown(number: u64) -> Error {
    Error::Request(format!("sequence {number} does not exist; it was freed or never added"))
}
