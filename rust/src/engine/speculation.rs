//! Speculative decoding that changes nothing: drafted tokens go through the forward pass as further rows of their sequence.
//!
//! A row has the same bits in any batch (law 1) and a draw depends on its position alone, so the token drawn from each row
//! is the one that a step of its own would draw, as long as the drafted tokens before it were drawn too; what follows
//! the first that was not is dropped. How many tokens are drafted decides the speed only: it is chosen by the measured
//! times of steps and the share of drafts that were right. A recurrent state cannot go back to any position, so models
//! with such layers are computed without drafts.
//!
//! Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", with the draw of the
//! sequence in place of a random acceptance.

use super::event::Goal;
use super::reuse::ReusableCache;
use super::sequence::Sequence;
use super::step_times::{MOST_ROWS, StepTimes};
use crate::config::Config;
use std::time::Duration;

/// Drafted tokens of a sequence in a step at most.
const MOST_DRAFTED: usize = 15;
/// Less probable tokens are not drafted: times vary by more than they promise.
const LEAST_CHANCE: f64 = 0.15;
/// A draft must promise so many times the tokens per second.
const LEAST_GAIN: f64 = 1.03;

/// Whether tokens are drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speculative {
    /// Never.
    Off,
    /// Where the measured times say that it is faster.
    Auto,
    /// As many as possible, whatever it costs.
    Always,
}

/// Chooses how many tokens are drafted.
pub(super) struct Speculation {
    pub mode: Speculative,
    times: StepTimes,
}

impl Speculation {
    pub fn new() -> Self {
        Self { mode: Speculative::Off, times: StepTimes::default() }
    }

    /// Adds drafted tokens to the sequences of a step that reads no prompt, and their rows to `due`.
    ///
    /// context: tokens of a sequence at most; room: rows of a step at most.
    pub fn draft(
        &self,
        sequences: &mut [(u64, Sequence)],
        due: &mut [(usize, usize)],
        cache: &mut ReusableCache,
        config: &Config,
        (context, room): (usize, usize),
    ) {
        let counts = self.counts(sequences, due, context, room);
        for ((i, rows), count) in due.iter_mut().zip(counts).filter(|&(_, count)| count > 0) {
            let Sequence { ids, lookup, goal, rope_variant, cache: cached, drafted, .. } =
                &mut sequences[*i].1;
            let Goal::Generate(generation) = goal else { continue };
            let len = ids.len();
            lookup.draft(ids, count);
            // No row follows a token that ends the sequence.
            let stop = ids[len..].iter().position(|id| generation.stop_ids.contains(id));
            ids.truncate(stop.map_or(ids.len(), |stop| len + stop));
            // Where keys are rotated in another way from some length on, a draft ends before it.
            let fits = config.rope_variant(ids.len()) == *rope_variant;
            if !fits || cache.kv.reserve(cached, *rows + ids.len() - len).is_err() {
                ids.truncate(len);
            }
            *drafted = ids.len() - len;
            *rows += *drafted;
        }
    }

    /// How many tokens are drafted for each of `due`.
    fn counts(
        &self,
        sequences: &[(u64, Sequence)],
        due: &[(usize, usize)],
        context: usize,
        room: usize,
    ) -> Vec<usize> {
        let chances = due.iter().enumerate().flat_map(|(slot, &(i, _))| {
            let sequence = &sequences[i].1;
            let most = sequence.most_drafted(context).min(MOST_DRAFTED);
            sequence.lookup.chances(most).map(move |chance| (chance, slot))
        });
        let mut drafts: Vec<(f64, usize)> = chances.collect();
        // Within a sequence chances fall, so the best ones are the first ones of each.
        drafts.sort_by(|a, b| b.0.total_cmp(&a.0));
        drafts.truncate(room.min(MOST_ROWS).saturating_sub(due.len()));
        if self.mode == Speculative::Auto {
            drafts.retain(|&(chance, _)| chance >= LEAST_CHANCE);
            drafts.truncate(self.worthwhile(due.len(), &drafts));
        }
        let mut counts = vec![0; due.len()];
        drafts.iter().for_each(|&(_, slot)| counts[slot] += 1);
        counts
    }

    /// How many of the drafts, best first, make a step of `rows` rows fastest by its tokens.
    fn worthwhile(&self, rows: usize, drafts: &[(f64, usize)]) -> usize {
        if drafts.is_empty() {
            return 0;
        }
        let rate = |tokens: f64, rows| self.times.of(rows).map_or(0.0, |seconds| tokens / seconds);
        let mut tokens = rows as f64;
        let mut best = (0, rate(tokens, rows) * LEAST_GAIN);
        for (count, (chance, _)) in drafts.iter().enumerate() {
            tokens += chance;
            let rate = rate(tokens, rows + count + 1);
            if rate > best.1 {
                best = (count + 1, rate);
            }
        }
        best.0
    }

    /// Takes the time of a step that read no prompt.
    pub fn add_time(&mut self, rows: usize, time: Duration) {
        self.times.add(rows, time.as_secs_f64());
    }
}
