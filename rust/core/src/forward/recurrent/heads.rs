//! The heads of a mixer that each have their own state: the work of a head on a run, and where its outputs are.

use crate::forward::state::Run;
use crate::parts::RecurrentWeights;
use std::ops::Range;

/// Rows whose inputs are prepared together: they stay in the second cache.
pub(crate) const ROWS: usize = 32;

/// One head of one run.
pub(crate) struct Job<'a> {
    pub head: usize,
    /// Rows among those of all runs.
    pub rows: Range<usize>,
    /// What the layer keeps before the first row, its window and the states of all heads; None: zeros.
    pub before: Option<&'a [f32]>,
    /// Values of the window.
    pub window: usize,
    /// The state to write.
    pub state: &'a mut [f32],
    pub out: &'a mut [f32], // [rows, width]
}

impl Job<'_> {
    /// The state before the first row.
    pub fn start(&mut self) {
        match self.before {
            Some(before) => {
                let values = self.state.len();
                self.state.copy_from_slice(&before[self.window + self.head * values..][..values]);
            }
            None => self.state.fill(0.0),
        }
    }

    /// The rows in portions, and each one's part of the output.
    pub fn portions(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let all = self.rows.clone();
        all.clone().step_by(ROWS).map(move |first| first..(first + ROWS).min(all.end))
    }
}

/// The sizes of the heads of a mixer.
#[derive(Clone, Copy, Default)]
pub(crate) struct HeadSizes {
    /// Heads.
    pub count: usize,
    /// Values of a head's state.
    pub state: usize,
    /// Values of a head's output.
    pub width: usize,
}

/// A job for every head of every run; their states come after the window of the convolution.
///
/// // out [run][heads, rows, width]
pub(crate) fn jobs<'a>(
    weights: &RecurrentWeights,
    runs: &'a mut [Run<'_>],
    sizes: HeadSizes,
    out: &'a mut Vec<f32>,
) -> Vec<Job<'a>> {
    let rows: usize = runs.iter().map(|run| run.ids.len()).sum();
    out.resize(rows * sizes.count * sizes.width, 0.0);
    let (mut jobs, mut out, mut first) = (Vec::new(), &mut out[..], 0);
    for run in runs {
        let rows = first..first + run.ids.len();
        let (before, next) = run.cache.recurrent_layer(weights.state_layer);
        let window = next.len() - sizes.count * sizes.state;
        for (head, state) in next[window..].chunks_exact_mut(sizes.state).enumerate() {
            let (own, others) = std::mem::take(&mut out).split_at_mut(rows.len() * sizes.width);
            jobs.push(Job { head, rows: rows.clone(), before, window, state, out: own });
            out = others;
        }
        first = rows.end;
    }
    jobs
}

/// The outputs of [`jobs`], to be read by rows.
pub(crate) struct HeadOutputs<'a> {
    out: &'a [f32],
    sizes: HeadSizes,
    /// Of each row: the first row of its run, the rows of the run, and its place among them.
    places: Vec<[usize; 3]>,
}

impl<'a> HeadOutputs<'a> {
    pub fn new(runs: &[Run<'_>], sizes: HeadSizes, out: &'a [f32]) -> Self {
        let (mut places, mut first) = (Vec::new(), 0);
        for run in runs {
            let rows = run.ids.len();
            places.extend((0..rows).map(|row| [first, rows, row]));
            first += rows;
        }
        Self { out, sizes, places }
    }

    /// Copies the outputs of a row's heads; the last head may be cut.  // into [<= heads * width]
    pub fn gather(&self, row: usize, into: &mut [f32]) {
        let HeadSizes { count, width, .. } = self.sizes;
        let [first, rows, row] = self.places[row];
        let run = &self.out[first * count * width..][..rows * count * width];
        for (head, into) in into.chunks_mut(width).enumerate() {
            into.copy_from_slice(&run[(head * rows + row) * width..][..into.len()]);
        }
    }
}
