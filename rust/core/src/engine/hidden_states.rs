//! The hidden states of a sequence's last tokens (the normed output of the last layer), which the layer for multi-token
//! prediction reads.

use std::ops::Range;

/// Positions whose hidden states are kept, of a step's sequences together. Older ones are dropped, so
/// that the layer sees no text before them. Only the speed depends on it.
pub(super) const KEPT_POSITIONS: usize = 512;

/// Hidden states of consecutive positions.
#[derive(Debug, Default)]
pub(super) struct HiddenStates {
    width: usize,
    /// Position of the first.
    start: usize,
    rows: Vec<f32>, // [positions, width]
}

impl HiddenStates {
    /// The positions whose hidden states are known.
    pub fn positions(&self) -> Range<usize> {
        self.start..self.start + self.rows.len().checked_div(self.width).unwrap_or(0)
    }

    /// The hidden states of some positions; None unless all are known.  // [positions, width]
    pub fn get(&self, positions: Range<usize>) -> Option<&[f32]> {
        let known = self.positions();
        let is_known = known.start <= positions.start && positions.end <= known.end;
        let at = |position: usize| (position - self.start) * self.width;
        is_known.then(|| &self.rows[at(positions.start)..at(positions.end)])
    }

    /// Sets the hidden states from `start` on, and keeps the last `most`. Those before a gap are dropped.  // rows [positions, width]
    pub fn set(&mut self, start: usize, rows: &[f32], width: usize, most: usize) {
        let known = self.positions();
        if width != self.width || !(known.start..=known.end).contains(&start) {
            (self.width, self.start) = (width, start);
            self.rows.clear();
        }
        self.rows.truncate((start - self.start) * width);
        self.rows.extend_from_slice(rows);
        let surplus = self.positions().len().saturating_sub(most);
        self.rows.drain(..surplus * width);
        self.start += surplus;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rows_are_kept_and_a_gap_begins_anew() {
        let mut hidden = HiddenStates::default();
        assert!(hidden.get(0..1).is_none());
        hidden.set(4, &[4.0, 4.5, 5.0, 5.5], 2, 3);
        assert_eq!(hidden.get(5..6), Some(&[5.0, 5.5][..]));
        hidden.set(5, &[15.0, 15.5, 6.0, 6.5, 7.0, 7.5], 2, 3);
        assert_eq!(hidden.positions(), 5..8);
        assert_eq!(hidden.get(5..7), Some(&[15.0, 15.5, 6.0, 6.5][..]));
        assert!(hidden.get(4..6).is_none() && hidden.get(7..9).is_none());
        hidden.set(9, &[9.0, 9.5], 2, 3);
        assert_eq!(hidden.positions(), 9..10);
    }
}
