//! What the tokens of a draft model cost, and how often they are right.

use super::share::Share;
use super::step_times::{MOST_ROWS, StepTimes};
use std::time::Duration;

/// The share of right drafts that a model begins with.
const PRIOR: f64 = 0.6;
/// How many drafts the prior counts as: few, so that a draft model that is always wrong is found out early.
const PRIOR_WEIGHT: f64 = 2.0;
/// Drafted tokens up to these probabilities are counted apart, and the others together; with the shares to begin with.
const CLASSES: [(f64, f64); 5] = [(0.3, 0.2), (0.5, 0.4), (0.7, 0.6), (0.9, 0.8), (1.0, 0.95)];
/// So many rows of a text that is read are assumed to take as long as a step with one row.
const READ_AS_ONE: f64 = 16.0;
/// What is assumed to take fewer seconds is tried.
const MOMENT: f64 = 0.5;
/// The share of the time that drafts may take while they are not expected to pay.
const TRIED: f64 = 0.005;
/// Rows that the draft model may always be tried with when nothing was for long: a time that was measured too high, because
/// the machine paused, must not last.
const TRIED_ROWS: usize = 32;

/// The tokens that a draft model expects behind a sequence.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// Tokens of the sequence before the drafted ones.
    start: usize,
    pub ids: Vec<u32>,
    /// What the draft model thinks of each, from 0 to 1.
    probabilities: Vec<f64>,
    /// The chance of each that it and all before it are right.
    pub chances: Vec<f64>,
}

impl Draft {
    /// No token yet behind so many of a sequence.
    pub fn behind(start: usize) -> Self {
        Self { start, ..Self::default() }
    }

    /// The chance that all of them are right.
    pub fn chance(&self) -> f64 {
        self.chances.last().copied().unwrap_or(1.0)
    }
}

/// Times and shares of a draft model. They are kept across sequences: most drafts are about as good as the previous
/// ones.
#[derive(Debug)]
pub(super) struct DraftStatistics {
    times: StepTimes,
    /// Seconds that a row is assumed to take before a row was measured.
    assumed: f64,
    /// The share of these seconds that prefill takes: the layers' share, without the projection to logits.
    pub read_share: f64,
    /// Measured seconds per row of steps with more than [`MOST_ROWS`] rows.
    seconds_per_row: f64,
    all: Share,
    by_probability: [Share; CLASSES.len()],
    /// The time that drafts may take although they are not expected to pay, in steps of the model; 1 at most.
    allowance: f64,
    /// How long a step is, if the draft model is only tried in this one.
    tried: Option<f64>,
}

impl Default for DraftStatistics {
    fn default() -> Self {
        Self {
            times: StepTimes::default(),
            assumed: 0.0,
            read_share: 1.0,
            seconds_per_row: 0.0,
            all: Share::prior(PRIOR, PRIOR_WEIGHT),
            by_probability: CLASSES.map(|(_, share)| Share::prior(share, PRIOR_WEIGHT)),
            allowance: 1.0,
            tried: None,
        }
    }
}

impl DraftStatistics {
    /// The chance of a drafted token of which nothing is known yet.
    pub fn share(&self) -> f64 {
        self.all.get()
    }

    /// The seconds that the draft model takes for `rows`; 0 where nothing was measured and it should take a moment only, so
    /// that it is tried.
    pub fn seconds(&self, rows: usize) -> f64 {
        let read = |row: f64| row * (1.0 + self.read_share * rows as f64 / READ_AS_ONE);
        match (rows, self.times.of(rows.clamp(1, MOST_ROWS))) {
            (0, _) => 0.0,
            (_, None) if read(self.assumed) < MOMENT => 0.0,
            (_, None) => read(self.assumed),
            (1..=MOST_ROWS, Some(seconds)) => seconds,
            _ if self.seconds_per_row > 0.0 => self.seconds_per_row * rows as f64,
            _ => read(self.times.of(1).unwrap_or_default()),
        }
    }

    /// Takes the time of the draft model for `rows`.
    pub fn add_time(&mut self, rows: usize, time: Duration) {
        self.times.add(rows, time.as_secs_f64());
        self.allowance -= self.tried.map_or(0.0, |step| time.as_secs_f64() / step);
        if rows > MOST_ROWS {
            self.seconds_per_row = time.as_secs_f64() / rows as f64;
        }
    }

    /// Before it is known whether the draft model is asked in a step. row: the seconds that it should take for one, by its
    /// size.
    pub fn begin_step(&mut self, row: f64) {
        (self.tried, self.assumed) = (None, row);
    }

    /// Counts a step for which the draft model was not asked.
    pub fn allow(&mut self) {
        self.allowance = (self.allowance + TRIED).min(1.0);
    }

    /// Whether the draft model may be tried with so many rows, in a step of the model that takes `step` seconds. What it
    /// then takes is used up.
    pub fn may_try(&mut self, rows: usize, step: f64) -> bool {
        let is_cheap = self.seconds(rows) <= self.allowance * step;
        let may = is_cheap || (rows <= TRIED_ROWS && self.allowance >= 1.0);
        self.tried = may.then_some(step);
        may
    }

    /// Appends a token of the draft model to a draft.
    pub fn extend(&self, draft: &mut Draft, id: u32, probability: f64) {
        draft.chances.push(draft.chance() * self.by_probability[class(probability)].get());
        draft.ids.push(id);
        draft.probabilities.push(probability);
    }

    /// Counts how much of a draft was right, by the tokens that the sequence has now.
    pub fn observe(&mut self, draft: &Draft, ids: &[u32]) {
        let drawn = ids.get(draft.start..).unwrap_or_default();
        for ((drafted, id), &probability) in draft.ids.iter().zip(drawn).zip(&draft.probabilities) {
            self.all.add(drafted == id);
            self.by_probability[class(probability)].add(drafted == id);
            if drafted != id {
                break; // what follows was drafted behind another token
            }
        }
    }

    /// Counts an error of the draft model as a wrong draft.
    pub fn fail(&mut self) {
        self.all.add(false);
    }
}

/// The index in [`CLASSES`] of a probability.
fn class(probability: f64) -> usize {
    CLASSES.iter().position(|&(most, _)| probability <= most).unwrap_or(CLASSES.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_what_was_right_up_to_the_first_wrong_token() {
        let mut statistics = DraftStatistics::default();
        let drafted = |statistics: &DraftStatistics| {
            let mut draft = Draft::behind(2);
            for (id, probability) in [(5, 0.95), (6, 0.95), (7, 0.1)] {
                statistics.extend(&mut draft, id, probability);
            }
            draft
        };
        for _ in 0..50 {
            let draft = drafted(&statistics);
            statistics.observe(&draft, &[1, 1, 5, 6, 9, 7]);
        }
        let draft = drafted(&statistics);
        assert!(draft.chances[1] > 0.98 && draft.chance() < 0.02, "{:?}", draft.chances);
        assert!((statistics.share() - 2.0 / 3.0).abs() < 0.05);
        let mut wrong = DraftStatistics::default();
        for _ in 0..10 {
            wrong.observe(&draft, &[1, 1, 4]);
        }
        assert!(wrong.share() < 0.15, "{}", wrong.share());
    }

    #[test]
    fn what_does_not_pay_is_tried_for_a_small_share_of_the_time() {
        let (mut statistics, mut tried) = (DraftStatistics::default(), 0);
        statistics.add_time(1, Duration::from_millis(500)); // a pause: a row takes 10
        for _ in 0..2000 {
            statistics.allow();
            statistics.begin_step(0.01);
            if statistics.may_try(1, 0.1) {
                statistics.add_time(1, Duration::from_millis(10));
                tried += 1;
            }
        }
        assert!((80..=115).contains(&tried), "{tried} of 2000 steps, each for a tenth of one");
        assert!(!statistics.may_try(1000, 0.1), "more than a step at once");
    }

    #[test]
    fn long_reads_are_measured_by_the_row() {
        let mut statistics = DraftStatistics::default();
        statistics.begin_step(0.01);
        assert!(statistics.seconds(500) == 0.0, "a moment");
        assert!((statistics.seconds(1600) - 1.01).abs() < 1e-9);
        statistics.read_share = 0.2;
        assert!(statistics.seconds(1600) == 0.0 && (statistics.seconds(8000) - 1.01).abs() < 1e-9);
        statistics.read_share = 1.0;
        statistics.add_time(1, Duration::from_millis(2));
        assert!((statistics.seconds(1) - 0.002).abs() < 1e-9 && statistics.seconds(500) > 0.06);
        statistics.add_time(200, Duration::from_millis(100));
        assert!((statistics.seconds(400) - 0.2).abs() < 1e-9);
    }
}
