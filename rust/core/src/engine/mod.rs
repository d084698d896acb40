//! Sequences and steps: which rows go through the forward pass, and what is read out of them.
//!
//! [`Engine::step`] gathers the rows that are due (prefill chunks and single decode tokens of any number of sequences),
//! runs [`forward`] once over them, reads out the logit rows that are wanted in blocks of at most [`READOUT_ROWS`] (law
//! 2), samples, and only then commits (law 3). A sequence's result does not depend on the other sequences (law 1).

mod draft_model;
mod draft_statistics;
mod event;
pub mod fit;
mod hidden_states;
pub mod inside;
pub mod on_disk;
mod outcome;
mod pace;
mod prompt_lookup;
mod reuse;
mod row_reader;
mod rows;
mod schedule;
mod sequence;
mod share;
mod speculation;
mod step_times;

use crate::config::{RopeFrequencies, RopeVariant};
use crate::forward::{Compute, Run, Workspace, forward, hidden_states, lm_head};
use crate::kv_cache::{KvCache, KvSequence};
use crate::model::Model;
use crate::model::pack::Key as Identity;
use crate::sampling::channels::Channels;
use crate::sampling::constraint::Constraint;
use crate::sampling::grammar::Grammar;
use crate::sampling::{Mask, Sampler, Sampling};
use draft_statistics::Draft;
use hidden_states::{HiddenStates, KEPT_POSITIONS};
use outcome::{Outcome, RowJob, commit};
use pace::{Pace, experts_per_chosen};
use prompt_lookup::PromptLookup;
use reuse::ReusableCache;
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_kernels::compute::phases::{self, Phase, PhaseTimes, lap};
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::compute::progress::{PassProgress, Progress, Snapshot};
use ropechat_kernels::kernel::Kernels;
use ropechat_platform::error::{Error, Result};
use ropechat_platform::sync::Mutex;
use row_reader::RowReader;
use schedule::{READOUT_ROWS, all_rows, prompt_rows, prompts_read, readout_rows, schedule};
use sequence::{Sequence, unknown};
use speculation::Speculation;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

pub use event::{Context, Event, FinishReason, Generation, Goal, Scored};
pub use speculation::Speculative;

/// The sequences of a step. They go back to the engine when it ends, also by a panic, without what was not committed
/// (law 3).
struct Taken<'a> {
    engine: &'a mut Engine,
    sequences: Vec<(u64, Sequence)>,
}

impl<'a> Taken<'a> {
    fn new(engine: &'a mut Engine, numbers: &[u64]) -> Self {
        let take = |&number: &u64| Some((number, engine.sequences.remove(&number)?));
        Self { sequences: numbers.iter().filter_map(take).collect(), engine }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for (number, mut sequence) in self.sequences.drain(..) {
            sequence.drop_draft();
            self.engine.cache.kv.rollback(&mut sequence.cache);
            self.engine.sequences.insert(number, sequence);
        }
    }
}

/// A loaded model and the sequences that go through it.
pub struct Engine {
    model: Arc<Model>,
    kernels: Kernels,
    pool: Arc<Pool>,
    cache: ReusableCache,
    context: Context,
    sequences: BTreeMap<u64, Sequence>,
    readers: BTreeMap<u64, RowReader>,
    next_number: u64,
    frequencies: Vec<(RopeVariant, Arc<Vec<RopeFrequencies>>)>,
    work: Workspace,
    logits: Vec<f32>,
    samplers: Vec<Sampler>,
    pace: Pace,
    progress: Arc<Progress>,
    /// What identifies the weights; None: keys and values stay in memory.
    identity: Option<Identity>,
    speculation: Speculation,
    /// Proposes tokens.
    draft_model: Option<Box<Engine>>,
    /// Where the time of steps went, if somebody wants it.
    phase_times: Option<PhaseTimes>,
}

impl Engine {
    /// An engine whose sequences are `context` long at most.
    pub fn new(model: Arc<Model>, kernels: Kernels, pool: impl Into<Arc<Pool>>, context: Context) -> Self {
        let pace = Pace::new(model.weight_bytes(), experts_per_chosen(&model.config));
        Self {
            cache: ReusableCache::new(
                KvCache::new(model.kv_layout.clone()),
                context.tokens(),
                model.hidden_input.is_none(),
            ),
            work: Workspace::new(&model),
            model,
            kernels,
            pool: pool.into(),
            context,
            sequences: BTreeMap::new(),
            readers: BTreeMap::new(),
            next_number: 1,
            frequencies: Vec::new(),
            logits: Vec::new(),
            samplers: Vec::new(),
            pace,
            progress: Arc::default(),
            identity: None,
            speculation: Speculation::new(),
            draft_model: None,
            phase_times: None,
        }
    }

    /// From now on the phases of steps are timed, or not any more.
    pub fn time_phases(&mut self, wanted: bool) {
        self.phase_times = wanted.then(PhaseTimes::default);
    }

    /// The times of all steps since [`Engine::time_phases`]; zeros without it.
    pub fn phase_times(&self) -> PhaseTimes {
        self.phase_times.clone().unwrap_or_default()
    }

    /// Sets whether tokens are drafted (the results do not depend on it). The default is off.
    pub fn set_speculative(&mut self, mode: Speculative) {
        self.speculation.mode = mode;
    }

    /// Sets the rows of one forward pass at most (the results do not depend on it).
    pub fn set_rows_per_step(&mut self, rows: usize) {
        self.pace = Pace::fixed(rows.max(1));
    }

    /// Reports there how far prompts are read.
    pub fn set_progress(&mut self, progress: Arc<Progress>) {
        self.progress = progress;
    }

    /// Keeps at most so many bytes of KV cache for prompts that begin as an ended sequence did (default: what the context
    /// takes, at least 64 MB).
    pub fn set_prefix_bytes(&mut self, bytes: usize) {
        self.cache.set_most_kept(bytes);
    }

    /// Bytes of KV cache allocated now, that of a draft model included.
    pub fn kv_bytes(&self) -> usize {
        self.cache.kv.bytes() + self.draft_model.as_ref().map_or(0, |draft| draft.kv_bytes())
    }

    /// Adds a sequence; nothing is computed yet.
    ///
    /// # Errors
    /// Request: no ids, an id outside the vocabulary, a setting out of range. ContextFull.
    pub fn add(&mut self, ids: &[u32], goal: Goal) -> Result<u64> {
        self.validate(ids, &goal)?;
        let rope_variant = self.model.config.rope_variant(ids.len());
        let number = self.next_number;
        self.next_number += 1;
        let mut sequence = Sequence {
            ids: ids.to_vec(),
            prompt_len: ids.len(),
            reused: 0,
            cache: KvSequence::default(),
            place: self.cache.enter(rope_variant),
            rope_variant,
            goal,
            explained: None,
            constraint: None,
            counted_from: Some(ids.len()),
            looked_up: Vec::new(),
            drafted: 0,
            lookup: PromptLookup::default(),
            draft_number: None,
            proposed: Draft::default(),
            hidden: HiddenStates::default(),
            skipped: 0,
            certain: 0,
            finished: false,
        };
        self.cache.adopt(&mut sequence, self.sequences.values());
        self.sequences.insert(number, sequence);
        Ok(number)
    }

    /// Most tokens of a generated sequence: the context's, and no more than there are learned positions.
    fn longest_generated(&self) -> usize {
        self.context.tokens().min(self.model.config.position_limit())
    }

    fn check_ids(&self, ids: &[u32]) -> Result<()> {
        let vocab_size = self.model.config.vocab_size;
        match ids.iter().find(|&&id| id as usize >= vocab_size) {
            Some(id) => Err(Error::Request(format!(
                "token id: must be below the vocabulary size {vocab_size} (got {id})"
            ))),
            None => Ok(()),
        }
    }

    fn validate(&self, ids: &[u32], goal: &Goal) -> Result<()> {
        if ids.is_empty() {
            return Err(Error::Request("the prompt must have at least 1 token (got 0)".into()));
        }
        self.check_ids(ids)?;
        let (wanted, context) = match goal {
            Goal::Generate(generation) => {
                generation.sampling.validate()?;
                if generation.max_tokens == 0 {
                    return Err(Error::Request("max_tokens: must be at least 1 (got 0)".into()));
                }
                (ids.len() + 1, self.longest_generated())
            }
            Goal::Score { from, read_next, .. } => {
                let last = if *read_next { ids.len() } else { ids.len() - 1 };
                if *from > last || last == 0 {
                    return Err(Error::Request(format!(
                        "start: must be at most {last} for {} tokens (got {from})",
                        ids.len()
                    )));
                }
                match self.context {
                    Context::Stated(tokens) => (last, tokens),
                    Context::Trained(_) => (last, usize::MAX),
                }
            }
        };
        let context = context.min(self.model.config.position_limit());
        if wanted > context {
            return Err(Error::ContextFull { tokens: ids.len(), context });
        }
        Ok(())
    }

    /// From now on the sequence's score events have the stages of these settings for each given token.
    ///
    /// # Errors
    /// Request: a setting out of range, or the sequence does not exist. A bias outside the vocabulary fails the step.
    pub fn explain(&mut self, number: u64, sampling: Sampling) -> Result<()> {
        sampling.validate()?;
        self.sequences.get_mut(&number).ok_or_else(|| unknown(number))?.explained = Some(sampling);
        Ok(())
    }

    /// From now on the sequence's tokens belong to channels, and those of the answer match the grammar, from token `from` of
    /// its prompt on.
    ///
    /// # Errors
    /// Request: the prompt does not fit from there on, or the sequence does not exist.
    pub fn constrain(
        &mut self,
        number: u64,
        channels: Option<Channels>,
        grammar: Option<&Grammar>,
        from: usize,
    ) -> Result<()> {
        let sequence = self.sequences.get_mut(&number).ok_or_else(|| unknown(number))?;
        let mut constraint = Constraint::new(channels, grammar.map(Grammar::matcher));
        constraint.advance(sequence.ids.get(from..).unwrap_or_default())?;
        sequence.counted_from = constraint.is_answer().then_some(sequence.prompt_len);
        sequence.constraint = Some(Mutex::new(constraint));
        Ok(())
    }

    /// From now on the sequence's score events have the log probability and rank of these ids at each place.
    ///
    /// # Errors
    /// Request: an id outside the vocabulary, or the sequence does not exist.
    pub fn look_up(&mut self, number: u64, ids: Vec<u32>) -> Result<()> {
        self.check_ids(&ids)?;
        self.sequences.get_mut(&number).ok_or_else(|| unknown(number))?.looked_up = ids;
        Ok(())
    }

    /// Tokens of a sequence's prompt that came from another's cache, so far.
    ///
    /// # Errors
    /// Request: the sequence does not exist.
    pub fn reused(&self, number: u64) -> Result<usize> {
        self.sequences.get(&number).map(|s| s.reused.min(s.prompt_len)).ok_or_else(|| unknown(number))
    }

    /// Frees a sequence; its cache may serve a later one with the same prefix. Ends the reading of rows, too.
    pub fn free(&mut self, number: u64) {
        self.close_rows(number);
        if let Some(sequence) = self.sequences.remove(&number) {
            if let (Some(draft), Some(number)) = (&mut self.draft_model, sequence.draft_number) {
                draft.free(number);
            }
            self.cache.retain(sequence);
        }
        if self.sequences.is_empty() {
            self.cache.kv.trim();
        }
    }

    /// Advances `numbers` by one forward pass; finished sequences are skipped.
    ///
    /// # Errors
    /// Cancelled, Memory, NonFinite, Request (a sequence does not exist): every sequence is then as it was, also after a panic.
    pub fn step(&mut self, numbers: &[u64], cancel: &CancelToken) -> Result<Vec<(u64, Event)>> {
        if let Some(&number) = numbers.iter().find(|number| !self.sequences.contains_key(number)) {
            return Err(unknown(number));
        }
        self.revive_pool();
        let pool = Arc::clone(&self.pool);
        let _turn = pool.turn();
        let mut taken = Taken::new(self, numbers);
        let Taken { engine, sequences } = &mut taken;
        if engine.phase_times.is_some() {
            phases::start();
        }
        let progress = Arc::clone(&engine.progress);
        let result = engine.advance(sequences, &progress, cancel);
        match prompts_read(sequences) {
            Snapshot { stage, done, total } if result.is_ok() && done < total => {
                progress.begin(stage, done, total)
            }
            _ => progress.end(),
        }
        if let (Some(sum), Some(times)) = (&mut engine.phase_times, phases::stop(Phase::Schedule)) {
            sum.add(&times);
        }
        result
    }

    /// Threads do not survive a fork of the process; the weights do.
    fn revive_pool(&mut self) {
        if !self.pool.is_alive() {
            self.pool = Arc::new(Pool::new(self.pool.threads()));
            self.draft_model.iter_mut().for_each(|draft| draft.pool = Arc::clone(&self.pool));
        }
    }

    fn advance(
        &mut self,
        taken: &mut [(u64, Sequence)],
        progress: &Progress,
        cancel: &CancelToken,
    ) -> Result<Vec<(u64, Event)>> {
        let mut begun = Instant::now();
        let goes_on = |sequence: &&Sequence| !sequence.finished && !sequence.reads_prompt();
        let drawn = taken.iter().map(|(_, sequence)| sequence).filter(goes_on).map(Sequence::waiting).sum();
        let mut due = schedule(taken, &self.model.config, &mut self.cache, self.pace.rows_beside(drawn))?;
        let (rows, of_prompts) = (all_rows(&due), prompt_rows(taken, &due));
        let reads_no_prompt = of_prompts == 0;
        if reads_no_prompt && self.speculation.mode != Speculative::Off {
            let limits = (self.longest_generated(), self.pace.rows());
            if self.draft_model.is_some() {
                self.propose(taken, &due, limits, cancel)?;
                begun = Instant::now(); // the draft model's time is its own
            }
            self.speculation.draft(taken, &mut due, &mut self.cache, &self.model.config, limits);
        }
        let frequencies: Vec<_> =
            due.iter().map(|&(i, _)| self.frequencies(taken[i].1.rope_variant)).collect();
        let pass = (of_prompts > 0).then(|| PassProgress::new(progress, prompts_read(taken), of_prompts));
        let compute = Compute { kernels: self.kernels, pool: &self.pool, cancel, progress: pass };
        {
            let mut sequences: Vec<Option<&mut Sequence>> = taken.iter_mut().map(|(_, s)| Some(s)).collect();
            let mut runs: Vec<Run<'_>> = Vec::with_capacity(due.len());
            for (&(i, rows), frequencies) in due.iter().zip(&frequencies) {
                let Some(Sequence { ids, cache, hidden, .. }) = sequences[i].take() else { continue };
                let start = cache.len();
                let hidden = match &self.model.hidden_input {
                    None => &[][..],
                    Some(_) => hidden.get(start..start + rows).ok_or_else(no_hidden_states)?,
                };
                let ids = &ids[start..start + rows];
                runs.push(Run { ids, cache, frequencies, hidden, start_position: 0 });
            }
            if runs.is_empty() {
                return Ok(Vec::new());
            }
            lap(Phase::Schedule);
            forward(&self.model, &mut runs, &mut self.work, compute)?;
        }
        let outcomes = self.read_rows(taken, &due, cancel)?;
        if 2 * of_prompts >= rows {
            self.pace.measure(rows, begun.elapsed());
        }
        let starts: Vec<usize> = due.iter().map(|&(i, _)| taken[i].1.cache.len()).collect();
        let events = commit(taken, &due, outcomes, self.longest_generated());
        self.keep_hidden_states(taken, &due, &starts);
        for &(i, _) in &due {
            let sequence = &mut taken[i].1;
            if self.model.config.rope_variant(sequence.ids.len()) == sequence.rope_variant {
                self.cache.index(sequence);
            }
            if self.speculation.mode != Speculative::Off && sequence.ids.len() > sequence.prompt_len {
                sequence.lookup.observe(&sequence.ids);
                self.speculation.statistics.observe(&std::mem::take(&mut sequence.proposed), &sequence.ids);
            }
        }
        if reads_no_prompt {
            self.speculation.add_time(all_rows(&due), begun.elapsed());
        }
        Ok(events)
    }

    /// Keeps the hidden states that multi-token prediction reads. starts: where each run began.
    fn keep_hidden_states(&self, taken: &mut [(u64, Sequence)], due: &[(usize, usize)], starts: &[usize]) {
        let is_mtp = self.model.hidden_input.is_some();
        let is_read = self.draft_model.as_ref().is_some_and(|draft| draft.model.hidden_input.is_some());
        if !is_mtp && !is_read {
            return;
        }
        let (width, most) = (self.model.config.hidden_size, KEPT_POSITIONS / due.len().max(1));
        let mut row = 0;
        for (&(i, rows), &start) in due.iter().zip(starts) {
            let sequence = &mut taken[i].1;
            let (end, last) = (sequence.cache.len(), row + sequence.cache.len() - start);
            row += rows;
            // The layer's own hidden state is read at the next position, where there is none of the model.
            let (count, position) = match is_mtp {
                true => (usize::from(sequence.hidden.positions().end == end), end),
                false => ((end - start).min(most), end - (end - start).min(most)),
            };
            if matches!(sequence.goal, Goal::Generate(_)) && count > 0 {
                let hidden =
                    hidden_states(&self.model, last - count..last, &self.work, self.kernels, &self.pool);
                sequence.hidden.set(position, &hidden, width, most);
            }
        }
    }

    fn frequencies(&mut self, rope_variant: RopeVariant) -> Arc<Vec<RopeFrequencies>> {
        if let Some((_, known)) = self.frequencies.iter().find(|(of, _)| *of == rope_variant) {
            return Arc::clone(known);
        }
        let made = Arc::new(self.model.config.frequencies(rope_variant));
        self.frequencies.truncate(7); // variants change with the length; the recent ones are kept
        self.frequencies.insert(0, (rope_variant, Arc::clone(&made)));
        made
    }

    /// Reads out the rows that the goals want, in blocks of [`READOUT_ROWS`].
    fn read_rows(
        &mut self,
        taken: &[(u64, Sequence)],
        due: &[(usize, usize)],
        cancel: &CancelToken,
    ) -> Result<Vec<Outcome>> {
        let compute = Compute { kernels: self.kernels, pool: &self.pool, cancel, progress: None };
        let mut wanted = readout_rows(taken, due);
        let masks = self.masks(taken, &wanted)?;
        let allowed = |index: usize, position: usize| {
            let masks = masks.get(&index)?;
            Some(masks.get(position - taken[index].1.last()))
        };
        wanted.retain(|&(_, index, position)| allowed(index, position) != Some(None));
        lap(Phase::Grammar);
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(wanted.len());
        for block in wanted.chunks(READOUT_ROWS) {
            cancel.check()?;
            let rows: Vec<usize> = block.iter().map(|&(row, ..)| row).collect();
            lm_head(&self.model, &rows, &mut self.work, &mut self.logits, compute);
            self.samplers.resize_with(block.len().max(self.samplers.len()), Sampler::default);
            let vocab_size = self.model.config.vocab_size;
            let logits = self.logits.chunks_exact(self.model.padded_vocab());
            let mut jobs: Vec<_> = block
                .iter()
                .zip(logits)
                .zip(&mut self.samplers)
                .map(|((&(_, index, position), logits), sampler)| RowJob {
                    sequence: &taken[index].1,
                    index,
                    position,
                    logits: &logits[..vocab_size],
                    allowed: allowed(index, position).flatten().and_then(Option::as_ref),
                    sampler,
                    pool: (block.len() == 1).then_some(&*self.pool),
                    outcome: None,
                })
                .collect();
            match &mut jobs[..] {
                [job] => job.outcome = Some(job.read()), // which all threads take part in
                jobs => self.pool.for_each(jobs, |job| job.outcome = Some(job.read())),
            }
            lap(Phase::ReadOut);
            for job in jobs {
                if outcomes.last().is_none_or(|before| before.is_followed_by(job.index, job.position)) {
                    outcomes.extend(job.outcome.transpose()?);
                }
            }
        }
        Ok(outcomes)
    }

    /// The masks of the rows to read, by the index of their sequence; of generated sequences that are constrained.
    fn masks(
        &self,
        taken: &[(u64, Sequence)],
        wanted: &[(usize, usize, usize)],
    ) -> Result<BTreeMap<usize, Vec<Option<Mask>>>> {
        let mut indices: Vec<usize> = wanted.iter().map(|&(_, index, _)| index).collect();
        indices.dedup();
        indices.retain(|&index| taken[index].1.is_constrained());
        let mut jobs: Vec<_> = indices.into_iter().map(|index| (index, Ok(Vec::new()))).collect();
        self.pool.for_each(&mut jobs, |(index, masks)| *masks = taken[*index].1.masks());
        jobs.into_iter().map(|(index, masks)| Ok((index, masks?))).collect()
    }
}

/// Only a layer for multi-token prediction can lack them, whose errors count as wrong drafts.
fn no_hidden_states() -> Error {
    Error::Request("the hidden states at these tokens are not known".into())
}

#[cfg(test)]
mod tests;
