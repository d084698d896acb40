//! Compressed keys: attention reads them in addition to a window of positions.

/// One key, which is its value too, for each window of `compress_rate` positions: a softmax over their gates, channel by
/// channel, sums their projections (DeepSeek-V4; DeepSeek-AI 2026, section 2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compression {
    /// Positions of a window. A window counts for a query when all of them are at most the query's.
    pub compress_rate: usize,
    /// Whether a second projection of the previous window is in the sum (compressed sparse attention).
    pub overlapping: bool,
}

impl Compression {
    /// Projections of a position: one for its own window, and one for the next where windows overlap.
    pub fn series(self) -> usize {
        1 + usize::from(self.overlapping)
    }

    /// Positions in one key.
    pub fn span(self) -> usize {
        self.compress_rate * self.series()
    }

    /// Windows that a query at `place` may read.
    pub fn complete(self, place: usize) -> usize {
        (place + 1) / self.compress_rate
    }

    /// Where the key of a window is kept: with the window's last position.
    pub fn place_of(self, window: usize) -> usize {
        (window + 1) * self.compress_rate - 1
    }
}
