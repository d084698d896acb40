//! The measured cost of a step by its rows: the seconds of steps that read no prompt.

/// Rows of a step up to which times are kept.
pub(super) const MOST_ROWS: usize = 64;
/// The weight of a new time: larger for a shorter time, because a pause of the machine is not the cost of a row.
const WEIGHT_OF_SHORTER: f64 = 0.5;
const WEIGHT_OF_LONGER: f64 = 0.1;
/// A time counts twice the known one at most.
const OUTLIER: f64 = 2.0;
/// The assumed cost of a row without a measurement, as a share of the known rows' mean.
const UNKNOWN_ROW: f64 = 0.25;
/// A step that was not measured for long counts as cheaper, so it is tried again.
const FORGETTING: f64 = 1.0 / 256.0;

/// Seconds by rows; 0 where nothing was measured.
#[derive(Debug)]
pub(super) struct StepTimes([f64; MOST_ROWS + 1]);

impl Default for StepTimes {
    fn default() -> Self {
        Self([0.0; MOST_ROWS + 1])
    }
}

impl StepTimes {
    /// Records the time of a step.
    pub fn add(&mut self, rows: usize, seconds: f64) {
        let Some((time, more)) = self.0.get_mut(rows..).and_then(<[f64]>::split_first_mut) else { return };
        *time = match *time {
            0.0 => seconds,
            known if seconds < known => known + WEIGHT_OF_SHORTER * (seconds - known),
            known => known + WEIGHT_OF_LONGER * (seconds.min(OUTLIER * known) - known),
        };
        more.iter_mut().for_each(|other| *other -= *other * FORGETTING);
    }

    /// The seconds that a step of `rows` takes, from 1 to [`MOST_ROWS`]; None before anything was measured.
    pub fn of(&self, rows: usize) -> Option<f64> {
        let known = |(rows, &seconds): (usize, &f64)| (seconds > 0.0).then_some((rows, seconds));
        let below = self.0[..=rows].iter().enumerate().rev().find_map(known);
        let above = self.0.iter().enumerate().skip(rows).find_map(known);
        match (below, above) {
            (Some((low, a)), Some((high, b))) if high > low => {
                Some(a + (b - a).max(0.0) * (rows - low) as f64 / (high - low) as f64)
            }
            (Some((low, a)), _) => Some(a * (1.0 + UNKNOWN_ROW * (rows - low) as f64 / low as f64)),
            (None, above) => above.map(|(_, seconds)| seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_those_that_were_measured_are_interpolated() {
        let mut times = StepTimes::default();
        assert_eq!(times.of(3), None);
        times.add(9, 3.0);
        times.add(1, 1.0);
        assert_eq!(times.of(1), Some(1.0));
        assert!((times.of(5).unwrap() - 2.0).abs() < 0.01);
        assert!((times.of(18).unwrap() - 3.75).abs() < 0.02);
        times.add(MOST_ROWS + 1, 9.0); // not kept
        assert!(times.of(MOST_ROWS).unwrap() < 9.0);
    }

    #[test]
    fn a_pause_counts_little_and_a_high_time_is_tried_again() {
        let mut times = StepTimes::default();
        times.add(1, 1.0);
        times.add(1, 1000.0);
        assert!(times.of(1).unwrap() <= 1.11);
        times.add(8, 50.0);
        for _ in 0..1000 {
            times.add(1, 1.0);
        }
        let (one, eight) = (times.of(1).unwrap(), times.of(8).unwrap());
        assert!((one - 1.0).abs() < 0.01 && eight < 2.0, "{one} {eight}");
        times.add(8, 0.5); // less than one row, which noise can do
        assert!(times.of(4).unwrap() >= one);
    }
}
