//! The ids of a logit row in order, best first, sorted only as far as the caller asks.
//!
//! Two ideas: the n-th largest *block maximum* is a floor that at least n logits reach, so all other blocks are skipped;
//! and the logits above the floor are partitioned before they are sorted (incremental sorting, Paredes and Navarro 2006).

use crate::{Error, Result};
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::kernel::block_maxima;
use ropechat_kernels::kernel::maxima::BLOCK;
use std::sync::atomic::{AtomicBool, Ordering};

/// Logits of a row that a thread takes at a time: some microseconds.
pub const PART: usize = 8192;

/// Scratch memory for the top k of one row; `scan` starts a row.
#[derive(Debug, Default)]
pub struct TopK {
    /// Maximum of each block.  // [ceil(vocab_size / BLOCK)]
    block_max: Vec<f32>,
    scratch: Vec<f32>,
    /// Sort keys of every finite logit >= floor; the first `sorted` are the best, in order.
    keys: Vec<u64>,
    sorted: usize,
    floor: f32,
}

/// Ascending keys are descending logits, ties (0.0 and -0.0 too) by ascending id.
pub fn key(logit: f32, id: usize) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let descending = if bits >> 31 == 1 { bits } else { !(bits | 1 << 31) };
    u64::from(descending) << 32 | id as u64
}

/// The id inside a key.
pub fn id(key: u64) -> u32 {
    key as u32
}

/// How many finite logits come before `key`.
pub fn count_before(logits: &[f32], key: u64) -> usize {
    let before = |&(id, &logit): &(usize, &f32)| logit > f32::NEG_INFINITY && self::key(logit, id) < key;
    logits.iter().enumerate().filter(before).count()
}

impl TopK {
    /// Start a row and return its largest logit.
    ///
    /// Errors: [`Error::NonFinite`] for NaN, +inf, or nothing above -inf; [`Error::Request`] for an empty row.
    pub fn scan(&mut self, logits: &[f32], position: usize) -> Result<f32> {
        self.scan_with(None, logits, position)
    }

    /// As [`TopK::scan`], with threads.
    pub fn scan_with(&mut self, pool: Option<&Pool>, logits: &[f32], position: usize) -> Result<f32> {
        if logits.is_empty() || u32::try_from(logits.len()).is_err() {
            return Err(Error::Request(format!(
                "logits: there must be 1 to 2^32 - 1 of them (got {})",
                logits.len()
            )));
        }
        self.keys.clear();
        self.sorted = 0;
        self.floor = f32::INFINITY;
        self.block_max.resize(logits.len().div_ceil(BLOCK), 0.0);
        let sound = match pool {
            None => block_maxima(logits, &mut self.block_max),
            Some(pool) => {
                let is_sound = AtomicBool::new(true);
                pool.chunks(&mut self.block_max, PART / BLOCK, |index, maxima| {
                    let logits = &logits[index * PART..];
                    let logits = &logits[..PART.min(logits.len())];
                    if !block_maxima(logits, maxima) {
                        is_sound.store(false, Ordering::Relaxed);
                    }
                });
                is_sound.into_inner()
            }
        };
        let max = self.block_max.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
        if sound && max > f32::NEG_INFINITY { Ok(max) } else { Err(non_finite(logits, position)) }
    }

    /// The keys of the `n` highest logits in order, or of all finite logits where there are fewer.
    ///
    /// `logits` is the row given to `scan`.
    pub fn top(&mut self, logits: &[f32], n: usize) -> &[u64] {
        if n > self.keys.len() && self.floor > f32::NEG_INFINITY {
            self.lower_floor(logits, n);
        }
        let n = n.min(self.keys.len());
        if n > self.sorted {
            let unsorted = &mut self.keys[self.sorted..];
            let wanted = n - self.sorted;
            if wanted < unsorted.len() {
                unsorted.select_nth_unstable(wanted - 1);
            }
            unsorted[..wanted].sort_unstable();
            self.sorted = n;
        }
        &self.keys[..n]
    }

    /// Gather the keys of at least `n` logits (or of all finite ones).
    fn lower_floor(&mut self, logits: &[f32], n: usize) {
        let old = self.floor;
        let new = if n <= self.block_max.len() {
            self.scratch.clone_from(&self.block_max);
            *self.scratch.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a)).1
        } else {
            f32::NEG_INFINITY
        };
        for (index, (block, &block_max)) in logits.chunks(BLOCK).zip(&self.block_max).enumerate() {
            if block_max < new {
                continue;
            }
            for (offset, &logit) in block.iter().enumerate() {
                if logit >= new && logit < old && logit > f32::NEG_INFINITY {
                    self.keys.push(key(logit, index * BLOCK + offset));
                }
            }
        }
        self.floor = new;
    }
}

#[cold]
fn non_finite(logits: &[f32], position: usize) -> Error {
    let what = match logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY) {
        Some(id) => format!(
            "the logit of id {id} must be finite or -inf (got {}); the weights are damaged or overflow this dtype",
            logits[id]
        ),
        None => {
            "at least one logit must be above -inf (got none); the mask or the weights are wrong".to_owned()
        }
    };
    Error::NonFinite { position, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_order_that_a_full_sort_gives() {
        for len in [1, 2, 63, 64, 65, 1000, 5000] {
            // Few distinct values: many ties; some masked.
            let logits: Vec<f32> = (0..len)
                .map(|i| {
                    let x = (i * 7919 + 13) % 257;
                    if x % 11 == 0 { f32::NEG_INFINITY } else { (x % 16) as f32 - 8.0 }
                })
                .collect();
            let mut expected: Vec<usize> = (0..len).filter(|&i| logits[i].is_finite()).collect();
            expected.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            let mut top_k = TopK::default();
            top_k.scan(&logits, 0).unwrap();
            for n in [0, 1, 3, 20, 20, 70, 64, 300, len, len + 5] {
                let got: Vec<usize> = top_k.top(&logits, n).iter().map(|&k| id(k) as usize).collect();
                assert_eq!(got, expected[..n.min(expected.len())], "len {len}, n {n}");
            }
        }
    }

    #[test]
    fn zeros_of_both_signs_are_a_tie() {
        let mut top_k = TopK::default();
        let logits = [-1.0, -0.0, 0.0, -0.0, 0.0];
        top_k.scan(&logits, 0).unwrap();
        let ids: Vec<u32> = top_k.top(&logits, 9).iter().map(|&k| id(k)).collect();
        assert_eq!(ids, [1, 2, 3, 4, 0]);
    }
}
