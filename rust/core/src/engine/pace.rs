//! How many rows a forward pass takes.

use crate::config::Config;
use std::ops::RangeInclusive;
use std::time::Duration;

/// How long a forward pass over a prompt should take: a waiting sequence goes on after it, and a cancelled one loses no
/// more than this.
const TARGET: Duration = Duration::from_millis(200);
/// Fewest rows of a pass over a prompt: with fewer, reading the weights takes longer than multiplying with them (measured
/// with Q4_K and Q6_K: 32 rows cost 10 % more per row than 128, 16 rows 50 %).
const LEAST: usize = 48;
/// Rows of the first pass, by the size of the model, and the most rows of any.
const MOST: RangeInclusive<usize> = 128..=512;
/// The same of a mixture: experts have few rows each.
const MOST_OF_MIXTURE: usize = 1024;
/// Fewest rows of a pass per expert of a mixture, as [`LEAST`] of all weights; fewer there, since the other rows of a tile are
/// those of no other expert, and waiting costs more.
const LEAST_PER_EXPERT: usize = 16;
/// Bytes of weights times rows of the first pass.
const BYTES_TIMES_ROWS: usize = 96 << 30;
/// A pass over fewer rows says little about the time of a row.
const MEASURED: usize = 16;
/// Two passes of about the same size say nothing about what a pass costs besides its rows.
const OTHER_SIZE: f64 = 1.25;

/// Rows of one forward pass: least and most, for weights of so many bytes and a mixture's experts per chosen one (1 without).
pub(super) fn bounds(weight_bytes: usize, experts_per_chosen: usize) -> RangeInclusive<usize> {
    let most = (BYTES_TIMES_ROWS / weight_bytes.max(1)).clamp(*MOST.start(), *MOST.end());
    if experts_per_chosen <= 1 {
        return LEAST.min(most)..=most;
    }
    let least = (LEAST_PER_EXPERT * experts_per_chosen).clamp(LEAST, MOST_OF_MIXTURE / 2);
    least..=(2 * least).max(most)
}

/// Experts of a mixture per chosen one: of so many rows each expert has one. 1 for a model without a mixture.
pub(super) fn experts_per_chosen(config: &Config) -> usize {
    config.moe.as_ref().map_or(1, |moe| moe.num_experts / moe.num_experts_per_tok.max(1))
}

/// Chooses the rows of a pass by the time that the passes before it took: a + b * rows, where a is mostly the reading of the
/// weights. The results do not depend on it (law 1).
#[derive(Debug)]
pub(super) struct Pace {
    rows: usize,
    bounds: RangeInclusive<usize>,
    /// Rows and seconds of the last pass, and of the last one before it of another size.
    passes: [Option<(f64, f64)>; 2],
}

impl Pace {
    /// For weights of so many bytes, and [`experts_per_chosen`].
    pub fn new(weight_bytes: usize, experts_per_chosen: usize) -> Self {
        let bounds = bounds(weight_bytes, experts_per_chosen);
        // A mixture's first pass may take long: its experts are the size of what is read, not of what is multiplied.
        let rows = if experts_per_chosen > 1 { *bounds.start() } else { *bounds.end() };
        Self { rows, bounds, passes: [None; 2] }
    }

    /// Always so many rows.
    pub fn fixed(rows: usize) -> Self {
        Self { rows, bounds: rows..=rows, passes: [None; 2] }
    }

    /// Rows of the next pass over a prompt at most.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Most rows of the next pass, in addition to `single` sequences that each draw a token: these take no row from
    /// the prompts if all fit.
    pub fn rows_beside(&self, single: usize) -> usize {
        (self.rows + single).min(*self.bounds.end())
    }

    /// Takes in how long a pass took. The number of rows changes by a factor of two at most.
    pub fn measure(&mut self, rows: usize, took: Duration) {
        if rows < MEASURED {
            return;
        }
        let now = (rows as f64, took.as_secs_f64().max(1e-6));
        let is_other = |&(rows, _): &(f64, f64)| rows.max(now.0) >= OTHER_SIZE * rows.min(now.0);
        let other = self.passes.into_iter().flatten().find(is_other);
        self.passes = [Some(now), other];
        let (fixed, per_row) = line(now, other);
        let wanted = (TARGET.as_secs_f64() - fixed) / per_row;
        let wanted = wanted.clamp(self.rows as f64 / 2.0, self.rows as f64 * 2.0) as usize;
        self.rows = (wanted - wanted % MEASURED).clamp(*self.bounds.start(), *self.bounds.end());
    }
}

/// a and b of time = a + b * rows through two passes. Where that is not a time (one of them was disturbed), or there is only
/// one pass, a is 0.
fn line(now: (f64, f64), other: Option<(f64, f64)>) -> (f64, f64) {
    let through = |other: (f64, f64)| {
        let per_row = (now.1 - other.1) / (now.0 - other.0);
        (now.1 - per_row * now.0, per_row)
    };
    let is_sound = |&(fixed, per_row): &(f64, f64)| fixed >= 0.0 && per_row > 0.0;
    other.map(through).filter(is_sound).unwrap_or((0.0, now.1 / now.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows per pass that follow from the seconds per row of this machine and the bytes of the model.
    fn settled(weight_bytes: usize, seconds_per_row: f64) -> usize {
        let mut pace = Pace::new(weight_bytes, 1);
        for _ in 0..6 {
            let rows = pace.rows();
            pace.measure(rows, Duration::from_secs_f64(seconds_per_row * rows as f64));
        }
        pace.rows()
    }

    #[test]
    fn rows_follow_the_time_within_bounds() {
        assert_eq!(settled(100 << 20, 1e-5), 512);
        assert_eq!(settled(100 << 20, 1e-3), 192);
        assert_eq!(settled(5 << 30, 1e-3), 128);
        assert_eq!(settled(5 << 30, 2.0), 48);
    }

    #[test]
    fn a_single_slow_pass_is_forgotten_and_single_tokens_say_nothing() {
        let mut pace = Pace::new(100 << 20, 1);
        pace.measure(512, Duration::from_secs(60));
        assert_eq!(pace.rows(), 256);
        pace.measure(1, Duration::from_secs(60));
        pace.measure(256, Duration::from_millis(20));
        assert_eq!(pace.rows(), 512);
        let mut fixed = Pace::fixed(7);
        fixed.measure(70, Duration::from_secs(60));
        assert_eq!(fixed.rows(), 7);
    }

    /// A mixture of 17 GB reads its experts in 0.34 s, which is more than a pass should take.
    #[test]
    fn a_mixture_has_rows_for_each_expert() {
        let mut pace = Pace::new(17 << 30, 128 / 8);
        for rows in [512, 300, 256, 256, 256] {
            pace.measure(rows, Duration::from_secs_f64(0.34 + 1e-3 * rows as f64));
        }
        assert_eq!(pace.rows(), 256);
        assert_eq!(bounds(17 << 30, 2), 48..=128);
        assert_eq!(bounds(17 << 30, 1000), 512..=1024);
    }

    #[test]
    fn what_a_pass_costs_besides_its_rows_is_not_counted_per_row() {
        let mut pace = Pace::new(100 << 20, 1);
        for rows in [512, 100, 128, 160, 300] {
            pace.measure(rows, Duration::from_secs_f64(0.1 + 1e-3 * rows as f64));
        }
        // 100 rows fit into what 0.1 s leave of 0.2 s; by the time per row, 512 rows of 0.612 s would be 167.
        assert_eq!(pace.rows(), 96);
        let (fixed, per_row) = line((300.0, 0.4), Some((100.0, 0.2)));
        assert!((fixed - 0.1).abs() < 1e-9 && (per_row - 1e-3).abs() < 1e-9);
        assert_eq!(line((300.0, 0.3), Some((100.0, 60.0))), (0.0, 1e-3));
    }
}
