//! Speculative decoding that changes nothing: drafted tokens go through the forward pass as further rows of their sequence.
//!
//! A row has the same bits in any batch (law 1) and a draw depends on its position alone, so the token drawn from each row
//! is the one that its own step would draw, as long as the drafted tokens before it were drawn too; the tokens
//! after the first mismatch are dropped. Drafts come from the text itself (`prompt_lookup.rs`) or from a draft model
//! (`draft_model.rs`). Which of them, and how many tokens, decides the speed only: it is chosen by the measured times of
//! steps and the share of drafts that were right. A recurrent state cannot go back to any position: where a part of a draft
//! is wrong, the right tokens before it are computed once more, as further rows of the next step.
//!
//! Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", with the draw of the
//! sequence in place of a random acceptance.

use super::draft_statistics::DraftStatistics;
use super::reuse::ReusableCache;
use super::schedule::all_rows;
use super::sequence::Sequence;
use super::step_times::{MOST_ROWS, StepTimes};
use crate::config::Config;
use std::time::Duration;

/// Most drafted tokens of a sequence in a step.
pub(super) const MOST_DRAFTED: usize = 15;
/// Less probable tokens are not drafted: their gain is smaller than the noise of the times.
const LEAST_CHANCE: f64 = 0.15;
/// The least factor in tokens per second that a draft must promise.
const LEAST_GAIN: f64 = 1.03;
/// Tokens that a sequence is expected to have still, beside as many as it has: what a draft model reads first has to pay
/// by then.
const EXPECTED: usize = 32;

/// Whether tokens are drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speculative {
    /// Never.
    Off,
    /// Where the measured times say that it is faster.
    Auto,
    /// As many as possible, at any cost.
    Always,
}

/// Chooses how many tokens are drafted.
pub(super) struct Speculation {
    pub mode: Speculative,
    times: StepTimes,
    /// Of the draft model.
    pub statistics: DraftStatistics,
    /// Bytes of the draft model's weights, over those of the model's.
    pub draft_size: f64,
    /// Whether the draft model is asked in this step.
    asks_model: bool,
}

/// The drafted tokens of a sequence: what a wrong one costs where a recurrent state cannot go back to it.
#[derive(Debug, Clone, Copy, Default)]
struct Chances {
    count: usize,
    /// The expected number of right ones.
    right: f64,
    /// The chance that all are right.
    all: f64,
}

impl Chances {
    /// One more token; chance: that it and all before it are right.
    fn extend(&mut self, chance: f64) {
        (self.count, self.right, self.all) = (self.count + 1, self.right + chance, chance);
    }

    /// How many rows are expected to be computed once more: if one is wrong, the row before the draft and the right ones.
    fn rows_again(&self) -> f64 {
        match self.count {
            0 => 0.0,
            count => (1.0 + self.right) - (1.0 + count as f64) * self.all,
        }
    }
}

/// Which sequences of a step the draft model drafts for.
pub(super) struct Plan {
    /// Indices in `due`.
    pub slots: Vec<usize>,
    /// The expected tokens per second of the step.
    rate: f64,
}

impl Speculation {
    pub fn new() -> Self {
        Self {
            mode: Speculative::Off,
            times: StepTimes::default(),
            statistics: DraftStatistics::default(),
            draft_size: 1.0,
            asks_model: false,
        }
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
            let sequence = &mut sequences[*i].1;
            let len = sequence.ids.len();
            sequence.append_draft(count);
            // No row follows a token that ends the sequence.
            let stop = sequence.ids[len..].iter().position(|&id| sequence.stops_at(id));
            let Sequence { ids, rope_variant, cache: cached, drafted, .. } = sequence;
            ids.truncate(stop.map_or(ids.len(), |stop| len + stop));
            // If keys rotate differently from some length on, a draft ends before it.
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
            sequence.chances(most).into_iter().map(move |chance| (chance, slot))
        });
        let mut drafts: Vec<(f64, usize)> = chances.collect();
        // Within a sequence chances fall, so the best ones are the first ones of each.
        drafts.sort_by(|a, b| b.0.total_cmp(&a.0));
        drafts.truncate(room.min(MOST_ROWS).saturating_sub(all_rows(due)));
        if self.mode == Speculative::Auto {
            drafts.retain(|&(chance, _)| chance >= LEAST_CHANCE);
            let has_state = due.iter().any(|&(i, _)| sequences[i].1.cache.has_state());
            drafts.truncate(self.worthwhile(due, &drafts, has_state));
        }
        let mut counts = vec![0; due.len()];
        drafts.iter().for_each(|&(_, slot)| counts[slot] += 1);
        counts
    }

    /// How many of the drafts, best first, make a step fastest by its tokens.
    fn worthwhile(&self, due: &[(usize, usize)], drafts: &[(f64, usize)], has_state: bool) -> usize {
        let rows = all_rows(due);
        let Some(least) = self.times.of(rows.min(MOST_ROWS)).filter(|_| !drafts.is_empty()) else { return 0 };
        let mut tokens = due.len() as f64;
        let mut best = (0, tokens / least * LEAST_GAIN);
        let mut counts = vec![Chances::default(); due.len()];
        let mut again = 0.0;
        for (count, &(chance, slot)) in drafts.iter().enumerate() {
            tokens += chance;
            if has_state {
                again -= counts[slot].rows_again();
                counts[slot].extend(chance);
                again += counts[slot].rows_again();
            }
            let Some(seconds) = self.times.of(rows + count + 1) else { break };
            let rate = tokens / (seconds + self.seconds_of_more(rows, again));
            if rate > best.1 {
                best = (count + 1, rate);
            }
        }
        best.0
    }

    /// The seconds by which so many more rows make a step longer.
    fn seconds_of_more(&self, rows: usize, more: f64) -> f64 {
        let time = |rows: usize| self.times.of(rows.min(MOST_ROWS)).unwrap_or_default();
        time(rows + more.ceil() as usize) - time(rows)
    }

    /// Which of `due` the draft model drafts for, if any: those for which it promises more than the text itself, if the step
    /// is then faster by its tokens.
    ///
    /// missing: for each of `due` the rows that the draft model computes for its first token; None where it cannot.
    pub fn plan(
        &mut self,
        sequences: &[(u64, Sequence)],
        due: &[(usize, usize)],
        missing: &[Option<usize>],
        context: usize,
        room: usize,
    ) -> Option<Plan> {
        self.statistics.begin_step(self.times.of(1).unwrap_or_default() * self.draft_size);
        let counts = self.counts(sequences, due, context, room);
        let of = |slot: usize| &sequences[due[slot].0].1;
        let open: Vec<usize> = (0..due.len())
            .filter(|&slot| missing[slot].is_some() && of(slot).most_drafted(context) > 0)
            .collect();
        let plan = match self.mode {
            Speculative::Off => None,
            Speculative::Always => {
                let slots = open.into_iter().filter(|&slot| counts[slot] == 0).collect();
                Some(Plan { slots, rate: 0.0 })
            }
            Speculative::Auto => {
                let promised: Vec<f64> =
                    (0..due.len()).map(|slot| of(slot).chances(counts[slot]).iter().sum()).collect();
                let rows = all_rows(due) + counts.iter().sum::<usize>();
                let tokens = due.len() as f64 + promised.iter().sum::<f64>();
                let seconds = self.times.of(rows.min(MOST_ROWS))?;
                let mut best = Plan { slots: Vec::new(), rate: tokens / seconds * LEAST_GAIN };
                let (mut chance, mut expected) = (1.0, 0.0);
                for count in 1..=MOST_DRAFTED {
                    chance *= self.statistics.share();
                    expected += chance;
                    let promises_more = |&&slot: &&usize| promised[slot] < expected;
                    let slots: Vec<usize> = open.iter().filter(promises_more).copied().collect();
                    let sum =
                        |values: &dyn Fn(usize) -> f64| slots.iter().map(|&slot| values(slot)).sum::<f64>();
                    let replaced: usize = slots.iter().map(|&slot| counts[slot]).sum();
                    let rows = rows - replaced + count * slots.len();
                    if chance < LEAST_CHANCE || rows > room.min(MOST_ROWS) {
                        break;
                    }
                    let tokens = tokens + sum(&|slot| expected - promised[slot]);
                    let first: usize = slots.iter().filter_map(|&slot| missing[slot]).sum();
                    let step = self.statistics.seconds(slots.len());
                    let to_come = sum(&|slot| of(slot).expected(EXPECTED) as f64).max(1.0);
                    let share_of_rest = (tokens / to_come).min(1.0);
                    let catching_up = (self.statistics.seconds(first) - step).max(0.0) * share_of_rest;
                    let of_one = Chances { count, right: expected, all: chance };
                    let again =
                        sum(&|slot| if of(slot).cache.has_state() { of_one.rows_again() } else { 0.0 });
                    let seconds = self.times.of(rows)? + count as f64 * step + catching_up;
                    let seconds = seconds + self.seconds_of_more(all_rows(due), again);
                    if !slots.is_empty() && tokens / seconds > best.rate {
                        best = Plan { slots, rate: tokens / seconds };
                    }
                }
                if best.slots.is_empty() {
                    // The draft is only compared with the next tokens.
                    let cheapest = open.into_iter().min_by_key(|&slot| missing[slot])?;
                    if self.statistics.may_try(missing[cheapest]?, seconds) {
                        best.slots.push(cheapest);
                    }
                }
                Some(best)
            }
        };
        let plan = plan.filter(|plan| !plan.slots.is_empty());
        self.asks_model = plan.is_some();
        plan
    }

    /// Whether one more token is worth a step of the draft model over `count` sequences, behind a draft that is right with
    /// this chance, in a step of so many rows.
    pub fn goes_on(&self, plan: &Plan, chance: f64, rows: usize, count: usize) -> bool {
        if self.mode == Speculative::Always {
            return true;
        }
        let next = chance * self.statistics.share();
        let time = |rows: usize| self.times.of(rows.min(MOST_ROWS)).unwrap_or_default();
        let cost = self.statistics.seconds(count) / count as f64 + time(rows + 1) - time(rows);
        next >= LEAST_CHANCE && rows < MOST_ROWS && next >= plan.rate * cost
    }

    /// Takes the time of a step that read no prompt, without that of the draft model.
    pub fn add_time(&mut self, rows: usize, time: Duration) {
        self.times.add(rows, time.as_secs_f64());
        if !std::mem::take(&mut self.asks_model) {
            self.statistics.allow();
        }
    }
}
