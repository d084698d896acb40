//! One thread's share of a job: the units that nobody has claimed yet.

use super::sync::{Ordering, Word};
use std::ops::Range;

/// A claim takes this part of what is left, so that claims shrink and all threads end at about the same time, slow cores too.
const PART: u32 = 3;

/// Units `next..end`, as one word.
pub struct Share<W>(W);

impl<W: Word> Share<W> {
    /// A share without units.
    pub fn empty() -> Self {
        Self(W::new(0))
    }

    /// Sets the units, and publishes what was written before.
    pub fn set(&self, units: Range<u32>) {
        self.0.store(word(units), Ordering::Release);
    }

    /// Claims some of the units that are left: the owner the first ones, so that it reads weights in their order, another
    /// thread the last ones. None: there are none left.
    ///
    /// Whoever has claimed units sees what was written before [`Share::set`].
    pub fn claim(&self, is_own: bool) -> Option<Range<u32>> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let (next, end) = ((now >> 32) as u32, now as u32);
            if next >= end {
                return None;
            }
            let count = (end - next).div_ceil(PART);
            let (claimed, left) = match is_own {
                true => (next..next + count, next + count..end),
                false => (end - count..end, next..end - count),
            };
            match self.0.replace(now, word(left)) {
                Ok(()) => return Some(claimed),
                Err(other) => now = other,
            }
        }
    }
}

fn word(units: Range<u32>) -> u64 {
    u64::from(units.start) << 32 | u64::from(units.end)
}

/// The shares that thread `own` of `threads` looks at when its own is empty: a fixed number, so that the end of a job costs
/// each thread the same for any number of threads. Near and far ones: threads with neighbouring numbers may be of one
/// kind of core and end together. The caller of a job looks at all.
pub fn others(own: usize, threads: usize) -> impl Iterator<Item = usize> {
    let distances: [usize; 4] = match threads {
        ..=5 => [1, 2, 3, 4],
        _ => [1, threads / 8 + 1, threads / 4 + 1, threads / 2],
    };
    distances.into_iter().filter(move |distance| *distance < threads).map(move |d| (own + d) % threads)
}
