//! Sequences and steps: which rows go through the forward pass, and what is read out of them.
//!
//! [`Engine::step`] gathers the rows that are due (prefill chunks and single decode tokens of any number of sequences),
//! runs [`forward`] once over them, reads the wanted logit rows out in blocks of at most [`READOUT_ROWS`] (law 2),
//! samples, and only then commits (law 3). A sequence's result does not depend on its company (law 1).

mod event;
pub mod fit;
mod row;

use crate::compute::pool::{CancelToken, Pool};
use crate::config::{RopeFrequencies, RopeVariant};
use crate::error::{Error, Result};
use crate::forward::{Compute, Run, Workspace, forward, lm_head};
use crate::kernel::Kernels;
use crate::kv_cache::{KvCache, KvSequence};
use crate::model::Model;
use crate::sampling::Sampler;
use row::{Job, Outcome, commit};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use event::{Context, Event, FinishReason, Generation, Goal, Scored};

/// Rows of one forward at most: more rows share one pass over the weights, fewer report progress sooner and let a
/// waiting sequence go on. Small models take many, large ones few, so that a step lasts about a tenth of a second.
const ROWS_PER_STEP: std::ops::RangeInclusive<usize> = 128..=512;
/// Bytes of weights times rows of one forward.
const BYTES_TIMES_ROWS: usize = 96 << 30;
/// Logit rows that exist at a time (law 2).
pub const READOUT_ROWS: usize = 32;
/// Ended sequences whose cache is kept for a later one with the same beginning.
const RETAINED: usize = 4;

struct Sequence {
    ids: Vec<u32>,
    prompt_len: usize,
    reused: usize,
    cache: KvSequence,
    regime: RopeVariant,
    goal: Goal,
    finished: bool,
}

/// A sequence that ended, kept for its cache.
struct Retained {
    ids: Vec<u32>,
    cache: KvSequence,
    regime: RopeVariant,
}

/// The sequences that a step works on. They go back when it ends, by a panic too, without what was not committed (law 3).
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
            self.engine.kv.rollback(&mut sequence.cache);
            self.engine.sequences.insert(number, sequence);
        }
    }
}

/// A loaded model and the sequences that go through it.
pub struct Engine {
    model: Arc<Model>,
    kernels: Kernels,
    pool: Pool,
    kv: KvCache,
    context: Context,
    sequences: BTreeMap<u64, Sequence>,
    retained: VecDeque<Retained>,
    next_number: u64,
    frequencies: Vec<(RopeVariant, Arc<Vec<RopeFrequencies>>)>,
    work: Workspace,
    logits: Vec<f32>,
    samplers: Vec<Sampler>,
    rows_per_step: usize,
}

impl Engine {
    /// An engine whose sequences are `context` long at most.
    pub fn new(model: Arc<Model>, kernels: Kernels, pool: Pool, context: Context) -> Self {
        let rows_per_step = Self::rows_at_once(model.weight_bytes());
        Self {
            kv: KvCache::new(model.kv_layout),
            model,
            kernels,
            pool,
            context,
            sequences: BTreeMap::new(),
            retained: VecDeque::new(),
            next_number: 1,
            frequencies: Vec::new(),
            work: Workspace::default(),
            logits: Vec::new(),
            samplers: Vec::new(),
            rows_per_step,
        }
    }

    /// Rows of one forward at most, for a model of so many bytes.
    pub fn rows_at_once(weight_bytes: usize) -> usize {
        let rows = BYTES_TIMES_ROWS / weight_bytes.max(1);
        rows.clamp(*ROWS_PER_STEP.start(), *ROWS_PER_STEP.end())
    }

    /// Rows of one forward at most (the results do not depend on it).
    pub fn set_rows_per_step(&mut self, rows: usize) {
        self.rows_per_step = rows.max(1);
    }

    /// Bytes of KV cache allocated now.
    pub fn kv_bytes(&self) -> usize {
        self.kv.bytes()
    }

    /// Adds a sequence; nothing is computed yet.
    ///
    /// # Errors
    /// Request: no ids, an id outside the vocabulary, a setting out of range. ContextFull.
    pub fn add(&mut self, ids: &[u32], goal: Goal) -> Result<u64> {
        self.validate(ids, &goal)?;
        let regime = self.model.config.rope_variant(ids.len());
        // A row that is read out is computed here and now, so only sequences to be continued start from a cache.
        let cache = match goal {
            Goal::Generate(_) => self.longest_cached_prefix(ids, regime),
            Goal::Score { .. } => KvSequence::default(),
        };
        let number = self.next_number;
        self.next_number += 1;
        let (prompt_len, reused) = (ids.len(), cache.len());
        let sequence =
            Sequence { ids: ids.to_vec(), prompt_len, reused, cache, regime, goal, finished: false };
        self.sequences.insert(number, sequence);
        Ok(number)
    }

    /// Tokens of a sequence that is generated: the context's, and no more than there are learned positions.
    fn longest_generated(&self) -> usize {
        self.context.tokens().min(self.model.config.position_limit())
    }

    fn validate(&self, ids: &[u32], goal: &Goal) -> Result<()> {
        let vocab_size = self.model.config.vocab_size;
        if ids.is_empty() {
            return Err(Error::Request("the prompt has no tokens; at least one is needed".into()));
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(Error::Request(format!("token id {id} is outside the vocabulary of {vocab_size}")));
        }
        let (wanted, context) = match goal {
            Goal::Generate(generation) => {
                generation.sampling.validate()?;
                if generation.max_tokens == 0 {
                    return Err(Error::Request("max_tokens: 0; at least 1 is needed".into()));
                }
                (ids.len() + 1, self.longest_generated())
            }
            Goal::Score { .. } => match self.context {
                Context::Stated(tokens) => (ids.len(), tokens),
                Context::Trained(_) => (ids.len(), usize::MAX),
            },
        };
        let context = context.min(self.model.config.position_limit());
        if wanted > context {
            return Err(Error::ContextFull { tokens: ids.len(), context });
        }
        Ok(())
    }

    /// The cache of the sequence that shares most of `ids`, forked; the last id is left to compute, for its row.
    fn longest_cached_prefix(&self, ids: &[u32], regime: RopeVariant) -> KvSequence {
        let live = self.sequences.values().map(|s| (&s.ids, &s.cache, s.regime));
        let ended = self.retained.iter().map(|r| (&r.ids, &r.cache, r.regime));
        let shared = |other: &[u32], cached: usize| {
            let same = ids.iter().zip(other).take_while(|(a, b)| a == b).count();
            same.min(cached).min(ids.len() - 1)
        };
        live.chain(ended)
            .filter(|&(_, _, other)| other == regime)
            .map(|(other, cache, _)| (shared(other, cache.len()), cache))
            .max_by_key(|&(len, _)| len)
            .map_or_else(KvSequence::default, |(len, cache)| self.kv.fork(cache, len))
    }

    /// Tokens of a sequence's prompt that came from another's cache.
    ///
    /// # Errors
    /// Request: no such sequence.
    pub fn reused(&self, number: u64) -> Result<usize> {
        self.sequences.get(&number).map(|s| s.reused).ok_or_else(|| unknown(number))
    }

    /// Forgets a sequence; its cache may serve a later one with the same beginning.
    pub fn free(&mut self, number: u64) {
        let Some(sequence) = self.sequences.remove(&number) else { return };
        let Sequence { ids, cache, regime, .. } = sequence;
        self.retained.push_back(Retained { ids, cache, regime });
        if self.retained.len() > RETAINED
            && let Some(oldest) = self.retained.pop_front()
        {
            self.kv.release(oldest.cache);
        }
    }

    /// Advances `numbers` by one forward pass; finished sequences are skipped.
    ///
    /// # Errors
    /// Cancelled, Memory, NonFinite, Request (no such sequence): every sequence is then as it was, also after a panic.
    pub fn step(&mut self, numbers: &[u64], cancel: &CancelToken) -> Result<Vec<(u64, Event)>> {
        if let Some(&number) = numbers.iter().find(|number| !self.sequences.contains_key(number)) {
            return Err(unknown(number));
        }
        self.revive_pool();
        let mut taken = Taken::new(self, numbers);
        let Taken { engine, sequences } = &mut taken;
        engine.advance(sequences, cancel)
    }

    /// Threads do not survive a fork of the process; the weights do.
    fn revive_pool(&mut self) {
        if !self.pool.is_alive() {
            self.pool = Pool::new(self.pool.threads());
        }
    }

    fn advance(&mut self, taken: &mut [(u64, Sequence)], cancel: &CancelToken) -> Result<Vec<(u64, Event)>> {
        let due = self.plan(taken)?;
        let frequencies: Vec<_> = due.iter().map(|&(i, _)| self.frequencies(taken[i].1.regime)).collect();
        let compute = Compute { kernels: self.kernels, pool: &self.pool, cancel };
        {
            let mut sequences: Vec<Option<&mut Sequence>> = taken.iter_mut().map(|(_, s)| Some(s)).collect();
            let mut runs: Vec<Run<'_>> = Vec::with_capacity(due.len());
            for (&(i, rows), frequencies) in due.iter().zip(&frequencies) {
                let Some(Sequence { ids, cache, .. }) = sequences[i].take() else { continue };
                let start = cache.len();
                runs.push(Run { ids: &ids[start..start + rows], cache, frequencies });
            }
            if runs.is_empty() {
                return Ok(Vec::new());
            }
            forward(&self.model, &mut runs, &mut self.work, compute)?;
        }
        let outcomes = self.read_rows(taken, &due, cancel)?;
        Ok(commit(taken, &due, outcomes, self.longest_generated()))
    }

    /// Which sequences go next, with how many rows, and room in their caches: (index, rows).
    ///
    /// Single tokens first, so that a long prompt never holds up those who are writing.
    fn plan(&mut self, taken: &mut [(u64, Sequence)]) -> Result<Vec<(usize, usize)>> {
        for (_, sequence) in taken.iter_mut() {
            let regime = self.model.config.rope_variant(sequence.ids.len());
            if regime != sequence.regime && !sequence.finished {
                // The rotation depends on the length: what is cached belongs to another rotation.
                self.kv.truncate(&mut sequence.cache, 0);
                sequence.regime = regime;
            }
        }
        let waiting = |sequence: &Sequence| sequence.ids.len() - sequence.cache.len();
        let mut order: Vec<usize> = (0..taken.len()).filter(|&i| !taken[i].1.finished).collect();
        order.sort_by_key(|&i| waiting(&taken[i].1) > 1);
        let (mut due, mut room) = (Vec::new(), self.rows_per_step);
        for i in order {
            let rows = waiting(&taken[i].1).min(room);
            if rows == 0 {
                break;
            }
            self.reserve(&mut taken[i].1.cache, rows)?;
            due.push((i, rows));
            room -= rows;
        }
        Ok(due)
    }

    /// Room in a cache; what ended sequences keep goes first when memory is short.
    fn reserve(&mut self, cache: &mut KvSequence, rows: usize) -> Result<()> {
        loop {
            match self.kv.reserve(cache, rows) {
                Err(Error::Memory { .. }) if !self.retained.is_empty() => {
                    if let Some(oldest) = self.retained.pop_front() {
                        self.kv.release(oldest.cache);
                    }
                }
                result => return result,
            }
        }
    }

    fn frequencies(&mut self, regime: RopeVariant) -> Arc<Vec<RopeFrequencies>> {
        if let Some((_, known)) = self.frequencies.iter().find(|(of, _)| *of == regime) {
            return Arc::clone(known);
        }
        let made = Arc::new(self.model.config.frequencies(regime));
        self.frequencies.truncate(7); // regimes come and go with the length; keep the recent ones
        self.frequencies.insert(0, (regime, Arc::clone(&made)));
        made
    }

    /// Reads out the rows that the goals want, in blocks: for each (index into `taken`, position of the row).
    fn read_rows(
        &mut self,
        taken: &[(u64, Sequence)],
        due: &[(usize, usize)],
        cancel: &CancelToken,
    ) -> Result<Vec<Outcome>> {
        let compute = Compute { kernels: self.kernels, pool: &self.pool, cancel };
        let mut wanted = Vec::new();
        let mut row = 0;
        for &(index, rows) in due {
            let sequence = &taken[index].1;
            let start = sequence.cache.len();
            let first = match sequence.goal {
                Goal::Score { .. } => start,
                Goal::Generate(_) => start.max(sequence.ids.len() - 1).min(start + rows),
            };
            wanted.extend((first..start + rows).map(|position| (row + position - start, index, position)));
            row += rows;
        }
        let mut outcomes = Vec::with_capacity(wanted.len());
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
                .map(|((&(_, index, position), logits), sampler)| Job {
                    sequence: &taken[index].1,
                    index,
                    position,
                    logits: &logits[..vocab_size],
                    sampler,
                    outcome: None,
                })
                .collect();
            self.pool.for_each(&mut jobs, |job| job.outcome = Some(job.read()));
            for job in jobs {
                outcomes.extend(job.outcome.transpose()?);
            }
        }
        Ok(outcomes)
    }

    /// Raw logits at every position of `ids`.  // [ids.len(), vocab_size]
    ///
    /// # Errors
    /// As [`Engine::add`] and [`Engine::step`]; Memory for the result.
    pub fn logits(&mut self, ids: &[u32], cancel: &CancelToken) -> Result<Vec<f32>> {
        self.validate(ids, &Goal::Score { readout_top_k: 0 })?;
        self.revive_pool();
        let mut cache = KvSequence::default();
        let result = self.logits_into(ids, &mut cache, cancel);
        self.kv.rollback(&mut cache);
        self.kv.release(cache);
        result
    }

    fn logits_into(&mut self, ids: &[u32], cache: &mut KvSequence, cancel: &CancelToken) -> Result<Vec<f32>> {
        let vocab_size = self.model.config.vocab_size;
        let mut all = Vec::new();
        let bytes = ids.len() * vocab_size * 4;
        all.try_reserve_exact(ids.len() * vocab_size).map_err(|_| Error::Memory {
            what: format!("{bytes} bytes for {} rows of logits are not to be had", ids.len()),
        })?;
        let frequencies = self.frequencies(self.model.config.rope_variant(ids.len()));
        for chunk in ids.chunks(self.rows_per_step) {
            self.reserve(cache, chunk.len())?;
            let compute = Compute { kernels: self.kernels, pool: &self.pool, cancel };
            let mut runs = [Run { ids: chunk, cache, frequencies: &frequencies }];
            forward(&self.model, &mut runs, &mut self.work, compute)?;
            let rows: Vec<usize> = (0..chunk.len()).collect();
            for rows in rows.chunks(READOUT_ROWS) {
                lm_head(&self.model, rows, &mut self.work, &mut self.logits, compute);
                for row in self.logits.chunks_exact(self.model.padded_vocab()) {
                    all.extend_from_slice(&row[..vocab_size]);
                }
            }
            cache.commit(chunk.len());
        }
        Ok(all)
    }
}

fn unknown(number: u64) -> Error {
    Error::Request(format!("there is no sequence {number}; it was freed"))
}

#[cfg(test)]
mod tests;
