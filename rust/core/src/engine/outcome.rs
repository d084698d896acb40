//! One logit row: reads it out, samples from it, and appends the result to its sequence.

use super::event::{Event, FinishReason, Generation, Goal, Scored};
use super::sequence::Sequence;
use crate::sampling::channels::Channel;
use crate::sampling::readout::{Logprobs, logprob_and_rank, logprob_and_rank_with, read_logprobs_with};
use crate::sampling::{Draw, Mask, Sampler};
use ropechat_kernels::compute::phases::{Phase, within};
use ropechat_kernels::compute::pool::Pool;
use ropechat_platform::error::Result;
use std::sync::PoisonError;

/// A logit row to read out.
pub(super) struct RowJob<'a> {
    pub sequence: &'a Sequence,
    pub index: usize,
    pub position: usize,
    pub logits: &'a [f32],
    /// The ids that the sequence's grammar allows; None without a grammar.
    pub allowed: Option<&'a Mask>,
    pub sampler: &'a mut Sampler,
    /// The threads, where this row is the only one.
    pub pool: Option<&'a Pool>,
    pub outcome: Option<Result<Outcome>>,
}

/// The result of one row.
pub(super) struct Outcome {
    index: usize,
    position: usize,
    readout: Logprobs,
    /// The token after the row (given or drawn) with its logprob and rank; None after the last given one.
    next: Option<(u32, f64, usize)>,
    /// Whether `next` is the token that the sequence has there, given or drafted.
    is_given: bool,
    draw: Option<Draw>,
    /// What the settings of `Engine::explain` do to a given `next`.
    explained: Option<Draw>,
    looked_up: Vec<(f64, usize)>,
}

impl RowJob<'_> {
    pub fn read(&mut self) -> Result<Outcome> {
        let Self { sequence, index, position, logits, allowed, pool, .. } = *self;
        let (top_k, generation) = match &sequence.goal {
            Goal::Score { readout_top_k, .. } => (*readout_top_k, None),
            Goal::Generate(generation) => (generation.readout_top_k, Some(generation)),
        };
        let readout = within(Phase::ReadOut, || read_logprobs_with(pool, logits, top_k, position))?;
        let history = &sequence.ids[..=position];
        let trace = (top_k > 0).then_some(&readout);
        let next_position = (sequence.skipped + position) as u64 + 1;
        let sampler = &mut *self.sampler;
        let draw = within(Phase::Sample, || {
            let sample = |g: &Generation| {
                sampler.sample_within(allowed, logits, history, next_position, &g.sampling, trace)
            };
            generation.map(sample).transpose()
        })?;
        let given = sequence.ids.get(position + 1).copied(); // or drafted
        let id = draw.as_ref().map(|draw| draw.id).or(given);
        let next = id.map(|id| {
            let (logprob, rank) = logprob_and_rank_with(pool, &readout, logits, id);
            (id, logprob, rank)
        });
        let explained = match (&sequence.explained, next, &draw) {
            (Some(sampling), Some((id, ..)), None) => {
                Some(self.sampler.explain(logits, history, next_position, sampling, &readout, id)?)
            }
            _ => None,
        };
        let looked_up = sequence.looked_up.iter().map(|&id| logprob_and_rank(&readout, logits, id)).collect();
        let is_given = id.is_some() && id == given;
        Ok(Outcome { index, position, readout, next, is_given, draw, explained, looked_up })
    }
}

/// Appends the step's results to the sequences, without rows behind a drafted token that was not drawn. This cannot fail.
pub(super) fn commit(
    sequences: &mut [(u64, Sequence)],
    due: &[(usize, usize)],
    outcomes: Vec<Outcome>,
    context: usize,
) -> Vec<(u64, Event)> {
    let mut events = Vec::new();
    for &(index, rows) in due {
        let (number, sequence) = &mut sequences[index];
        let start = sequence.cache.len();
        let accepted = match sequence.drafted {
            0 => rows,
            _ => outcomes.iter().filter(|outcome| outcome.index == index).count(),
        };
        sequence.drop_draft();
        sequence.cache.commit_first(accepted, rows);
        if start < sequence.prompt_len {
            let done = sequence.cache.len().min(sequence.prompt_len);
            events.push((*number, Event::Prefill { done, total: sequence.prompt_len }));
        }
        let Goal::Score { from, .. } = sequence.goal else { continue };
        sequence.finished = sequence.waiting() == 0;
        if start == 0 && from == 0 {
            let first = Scored {
                position: 0,
                id: sequence.ids[0],
                logprob_and_rank: None,
                row: None,
                explained: None,
                looked_up: Vec::new(),
            };
            events.push((*number, Event::Score(first)));
        }
    }
    for outcome in outcomes {
        let (number, sequence) = &mut sequences[outcome.index];
        events.push((*number, outcome.into_event(sequence, context)));
    }
    events
}

impl Outcome {
    /// Whether a row is of another sequence, or comes next in this one: not behind a drafted token that was not drawn.
    pub fn is_followed_by(&self, index: usize, position: usize) -> bool {
        self.index != index || (self.is_given && self.position + 1 == position)
    }

    fn into_event(self, sequence: &mut Sequence, context: usize) -> Event {
        let Some((id, logprob, rank)) = self.next else {
            return Event::Next { position: self.position + 1, row: self.readout };
        };
        let position = self.position + 1;
        let (row, explained, looked_up) = (Some(self.readout), self.explained, self.looked_up);
        let scored =
            Scored { position, id, logprob_and_rank: Some((logprob, rank)), row, explained, looked_up };
        let (Some(draw), Goal::Generate(generation)) = (self.draw, &sequence.goal) else {
            return Event::Score(scored);
        };
        sequence.ids.push(id);
        let (mut channel, mut is_whole) = (Channel::Answer, false);
        if let Some(constraint) = &mut sequence.constraint {
            let constraint = constraint.get_mut().unwrap_or_else(PoisonError::into_inner);
            channel = constraint.commit(id);
            is_whole = constraint.is_done();
            if sequence.counted_from.is_none() && constraint.is_answer() {
                let last = sequence.ids.len();
                sequence.counted_from = Some(if channel == Channel::Answer { last - 1 } else { last });
            }
        }
        let finish_reason = if generation.stop_ids.contains(&id) {
            Some(FinishReason::Stop)
        } else if is_whole {
            Some(FinishReason::Grammar)
        } else if sequence.left(generation.max_tokens) == 0 {
            Some(FinishReason::Length)
        } else if sequence.ids.len() >= context {
            Some(FinishReason::Context)
        } else {
            None
        };
        sequence.finished = finish_reason.is_some();
        Event::Token { scored, draw, channel, drafted: self.is_given, finish_reason }
    }
}
