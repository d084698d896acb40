//! How many rows a forward pass takes.

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
/// Bytes of weights times rows of the first pass.
const BYTES_TIMES_ROWS: usize = 96 << 30;
/// A pass over fewer rows says little about the time of a row.
const MEASURED: usize = 16;

/// Rows of one forward pass at most, for a model of so many bytes.
pub(super) fn most_rows(weight_bytes: usize) -> usize {
    (BYTES_TIMES_ROWS / weight_bytes.max(1)).clamp(*MOST.start(), *MOST.end())
}

/// Chooses the rows of a pass by the time that the passes before it took. The results do not depend on it (law 1).
#[derive(Debug)]
pub(super) struct Pace {
    rows: usize,
    bounds: RangeInclusive<usize>,
}

impl Pace {
    /// For a model of so many bytes.
    pub fn new(weight_bytes: usize) -> Self {
        let most = most_rows(weight_bytes);
        Self { rows: most, bounds: LEAST.min(most)..=most }
    }

    /// Always so many rows.
    pub fn fixed(rows: usize) -> Self {
        Self { rows, bounds: rows..=rows }
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
        let wanted = TARGET.as_secs_f64() * rows as f64 / took.as_secs_f64().max(1e-6);
        let wanted = wanted.clamp(self.rows as f64 / 2.0, self.rows as f64 * 2.0) as usize;
        self.rows = (wanted - wanted % MEASURED).clamp(*self.bounds.start(), *self.bounds.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows per pass that follow from the seconds per row of this machine and the bytes of the model.
    fn settled(weight_bytes: usize, seconds_per_row: f64) -> usize {
        let mut pace = Pace::new(weight_bytes);
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
        let mut pace = Pace::new(100 << 20);
        pace.measure(512, Duration::from_secs(60));
        assert_eq!(pace.rows(), 256);
        pace.measure(1, Duration::from_secs(60));
        pace.measure(256, Duration::from_millis(20));
        assert_eq!(pace.rows(), 512);
        let mut fixed = Pace::fixed(7);
        fixed.measure(70, Duration::from_secs(60));
        assert_eq!(fixed.rows(), 7);
    }
}
