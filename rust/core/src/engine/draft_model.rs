//! A draft model: a smaller model with the same vocabulary, whose tokens the engine's own model verifies.
//!
//! It is an [`Engine`] of its own, whose sequences follow those that it drafts for, so it has the same cache, prefix reuse
//! and steps. It draws with the settings, seeds and grammar of the sequence: where both models agree on the
//! probabilities, they draw the same token at any temperature.
//!
//! It may be the model's own layer for multi-token prediction ([`Model::mtp`](crate::model::Model)), which reads the model's
//! hidden states beside the tokens. Its sequences begin where these are known and share no keys and values.

use super::draft_statistics::{Draft, DraftStatistics};
use super::event::{Event, Generation, Goal};
use super::schedule::all_rows;
use super::sequence::{Sequence, unknown};
use super::speculation::MOST_DRAFTED;
use super::{Engine, no_hidden_states};
use crate::sampling::Sampling;
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_platform::error::{Error, Result};
use ropechat_platform::sync::Mutex;
use std::sync::Arc;
use std::time::Instant;

impl Engine {
    /// From now on this model drafts, where measured times say that it pays. It must have the same vocabulary, as far as both
    /// have ids; its threads are those of this engine.
    pub fn set_draft_model(&mut self, mut draft: Engine) {
        draft.pool = Arc::clone(&self.pool);
        let (own, other) = (self.model.weight_bytes(), draft.model.weight_bytes());
        self.speculation.draft_size = other as f64 / own.max(1) as f64;
        self.speculation.statistics.read_share = draft.model.layer_bytes() as f64 / other.max(1) as f64;
        self.draft_model = Some(Box::new(draft));
    }

    /// Has the draft model propose tokens for the sequences of a step that reads no prompt, where that pays.
    ///
    /// # Errors
    /// Cancelled. Any other error of the draft model counts as a wrong draft.
    pub(super) fn propose(
        &mut self,
        taken: &mut [(u64, Sequence)],
        due: &[(usize, usize)],
        (context, room): (usize, usize),
        cancel: &CancelToken,
    ) -> Result<()> {
        for (_, sequence) in &mut *taken {
            sequence.proposed = Draft::default();
        }
        let Self { draft_model, speculation, model, .. } = self;
        let Some(draft_model) = draft_model else { return Ok(()) };
        let missing: Vec<Option<usize>> =
            due.iter().map(|&(i, _)| draft_model.follow(&mut taken[i].1)).collect();
        let Some(plan) = speculation.plan(taken, due, &missing, context, room) else { return Ok(()) };
        let mut active: Vec<(u64, usize)> = Vec::new();
        for &slot in &plan.slots {
            let sequence = &mut taken[due[slot].0].1;
            let Some(number) = sequence.draft_number else { continue };
            sequence.proposed = Draft::behind(sequence.ids.len());
            if draft_model.rewrite(number, sequence).is_ok() {
                active.push((number, due[slot].0));
            }
        }
        let vocab_size = model.config.vocab_size;
        while !active.is_empty() {
            let tokens = match draft_model.draw(&active, &mut speculation.statistics, cancel) {
                Ok(tokens) => tokens,
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(_) => {
                    speculation.statistics.fail();
                    return Ok(());
                }
            };
            draft_model.mark_first(&active, taken);
            let drafted: usize = taken.iter().map(|(_, sequence)| sequence.proposed.ids.len()).sum();
            let rows = all_rows(due) + drafted + tokens.len();
            let count = active.len();
            active.retain(|&(number, i)| {
                let Some(&(_, id, probability)) = tokens.iter().find(|&&(of, ..)| of == number) else {
                    return false;
                };
                let sequence = &mut taken[i].1;
                // No row follows a token that ends the sequence, or one that only the draft model has.
                if id as usize >= vocab_size || sequence.stops_at(id) {
                    return false;
                }
                speculation.statistics.extend(&mut sequence.proposed, id, probability);
                sequence.proposed.ids.len() < sequence.most_drafted(context).min(MOST_DRAFTED)
                    && speculation.goes_on(&plan, sequence.proposed.chance(), rows, count)
            });
        }
        Ok(())
    }

    /// Ensures that the draft model has a sequence with the tokens of a sequence of the target model. Returns how many of
    /// these tokens must be prefilled before a draft; None if no draft is possible.
    fn follow(&mut self, sequence: &mut Sequence) -> Option<usize> {
        let Goal::Generate(generation) = &sequence.goal else { return None };
        let vocab_size = self.model.config.vocab_size;
        let is_known = |&id: &u32| (id as usize) < vocab_size;
        let longest = self.longest_generated();
        if sequence.ids.len() + MOST_DRAFTED >= longest || !sequence.ids.iter().all(is_known) {
            return None;
        }
        let is_mtp = self.model.hidden_input.is_some();
        let rows = sequence.hidden.positions();
        if is_mtp && (rows.is_empty() || rows.end + 1 != sequence.ids.len()) {
            return None;
        }
        if let Some(own) = sequence.draft_number.and_then(|number| self.sequences.get(&number)) {
            let ids = &sequence.ids[own.skipped..];
            let kept = own.cache.known_to(kept(own, ids).min(own.cache.len()));
            if !is_mtp || rows.contains(&(own.skipped + kept - 1)) {
                return Some(ids.len() - kept);
            }
        }
        if let Some(number) = sequence.draft_number.take() {
            self.free(number);
        }
        // The draft also needs the hidden state of the token before its first one.
        let skipped = if is_mtp { rows.start + 1 } else { 0 };
        let mut sampling: Sampling = generation.sampling.clone();
        sampling.logit_bias.retain(|(id, _)| is_known(id));
        sampling.answer_start = sampling.answer_start.saturating_sub(skipped);
        let goal = Goal::Generate(Generation {
            sampling,
            max_tokens: MOST_DRAFTED + 1,
            stop_ids: Vec::new(),
            readout_top_k: 0,
        });
        let number = self.add(&sequence.ids[skipped..], goal).ok()?;
        sequence.draft_number = Some(number);
        let own = self.sequences.get_mut(&number)?;
        own.skipped = skipped;
        Some(own.waiting())
    }

    /// Gives a sequence the tokens and the place in the grammar of another engine's one; what is cached of their common
    /// beginning stays.
    fn rewrite(&mut self, number: u64, like: &Sequence) -> Result<()> {
        let sequence = self.sequences.get_mut(&number).ok_or_else(|| unknown(number))?;
        let ids = &like.ids[sequence.skipped..];
        let kept = kept(sequence, ids);
        sequence.ids.truncate(kept);
        sequence.ids.extend_from_slice(&ids[kept..]);
        sequence.prompt_len = ids.len();
        sequence.finished = false;
        sequence.counted_from = Some(ids.len());
        sequence.constraint = like.copy_constraint().map(Mutex::new);
        self.cache.rewind(sequence, kept);
        sequence.certain = ids.len();
        if self.model.hidden_input.is_some() {
            let (start, end) = (sequence.cache.len(), ids.len());
            let before = sequence.skipped - 1;
            let rows = like.hidden.get(before + start..before + end).ok_or_else(no_hidden_states)?;
            sequence.hidden.set(start, rows, self.model.config.hidden_size, usize::MAX);
        }
        Ok(())
    }

    /// Remembers the recurrent states behind the tokens that are certain, if the first ones behind them were just drawn.
    fn mark_first(&mut self, active: &[(u64, usize)], like: &[(u64, Sequence)]) {
        for (number, _) in active.iter().filter(|&&(_, i)| like[i].1.proposed.ids.is_empty()) {
            self.sequences.get_mut(number).into_iter().for_each(|sequence| sequence.cache.mark());
        }
    }

    /// Draws one token of each of these sequences: (sequence, id, probability).
    fn draw(
        &mut self,
        active: &[(u64, usize)],
        statistics: &mut DraftStatistics,
        cancel: &CancelToken,
    ) -> Result<Vec<(u64, u32, f64)>> {
        let mut numbers: Vec<u64> = active.iter().map(|&(number, _)| number).collect();
        let rows =
            numbers.iter().filter_map(|number| self.sequences.get(number)).map(Sequence::waiting).sum();
        let (mut tokens, begun) = (Vec::new(), Instant::now());
        while !numbers.is_empty() {
            let events = self.step(&numbers, cancel)?;
            if events.is_empty() {
                break;
            }
            for (number, event) in events {
                if let Event::Token { scored, .. } = event {
                    let logprob = scored.logprob_and_rank.map_or(0.0, |(logprob, _)| logprob);
                    tokens.push((number, scored.id, logprob.exp()));
                    numbers.retain(|&other| other != number);
                }
            }
        }
        statistics.add_time(rows, begun.elapsed());
        Ok(tokens)
    }
}

/// How many tokens of a draft model's sequence stay as they are when it gets these: all but the last one at most, whose row
/// is wanted.
fn kept(own: &Sequence, ids: &[u32]) -> usize {
    let common = own.ids.iter().zip(ids).take_while(|(a, b)| a == b).count();
    let certain = if own.skipped > 0 { own.certain } else { usize::MAX };
    common.min(certain).min(ids.len() - 1)
}
