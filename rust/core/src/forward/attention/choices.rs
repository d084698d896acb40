//! Which positions each row reads, where a mechanism chooses: a bit per position.
//!
//! Law 1: a choice depends on the row itself and on the keys up to it.

use crate::forward::state::Pass;
use ropechat_kernels::compute::activations::by_rows;

/// The choices of all rows, as the last layer with choices made them.
#[derive(Default)]
pub(crate) struct Choices {
    /// A bit per position, a word per tile.  // [rows, count, tiles]
    words: Vec<u32>,
    /// Choices per row.
    count: usize,
    /// Words per choice.
    tiles: usize,
}

impl Choices {
    /// A row's words for one of `heads` key/value heads.  // [tiles]
    pub fn of(&self, row: usize, head: usize, heads: usize) -> &[u32] {
        let choice = head * self.count / heads;
        &self.words[(row * self.count + choice) * self.tiles..][..self.tiles]
    }

    /// Whether every row reads all that it sees.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Makes room for `count` choices of each row, of so many tiles; returns their words, zeros.  // [rows, count, tiles]
    pub fn reset(&mut self, [rows, count, tiles]: [usize; 3]) -> &mut [u32] {
        (self.count, self.tiles) = (count, tiles);
        self.words.clear();
        self.words.resize(rows * count * tiles, 0);
        &mut self.words
    }

    /// Sets `count` choices of each row, of so many tiles, with `mark`, which is given row, choice and words.
    pub fn set(&mut self, pass: Pass<'_>, sizes: [usize; 3], mark: impl Fn(usize, usize, &mut [u32]) + Sync) {
        let [_, count, tiles] = sizes;
        by_rows(pass.pool, self.reset(sizes), (count * tiles).max(1), |row, words| {
            for (choice, words) in words.chunks_exact_mut(tiles).enumerate() {
                mark(row, choice, words);
            }
        });
    }
}

/// Calls `each` for the `n` highest of more than `n` scores, in ascending order; of equal ones the first are taken.
pub(crate) fn for_highest(scores: &[f32], n: usize, mut each: impl FnMut(usize)) {
    let mut sorted = scores.to_vec();
    let (_, &mut least, _) = sorted.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a));
    let is_higher = |score: &f32| score.total_cmp(&least).is_gt();
    let mut equal = n - scores.iter().filter(|score| is_higher(score)).count();
    for (at, score) in scores.iter().enumerate() {
        let is_equal = score.total_cmp(&least).is_eq() && equal > 0;
        equal -= usize::from(is_equal);
        if is_equal || is_higher(score) {
            each(at);
        }
    }
}
