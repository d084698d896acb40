//! The log probabilities of one logit row: log-sum-exp, entropy, the most probable ids, any id's log probability and rank.
//!
//! All numbers are *raw*: temperature 1, no filter. Logits are f32, everything else is f64 and in nats.

use crate::Result;
use crate::sampling::top_k::{self, PART, TopK};
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::kernel::logsumexp::{CHUNK, ChunkSums, add_chunks, exp, varentropy};
use ropechat_kernels::kernel::{count_above, exp_chunks, exp_sums, exp_sums_with_squares};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The raw distribution of the next token.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// log sum exp of the logits; a logit is its log probability plus this.
    pub logsumexp: f64,
    /// Entropy over the full vocabulary, in nats.
    pub entropy: f64,
    /// Variance of the log probability over the full vocabulary, in nats^2; only of rows with candidates (top_k above 0).
    pub varentropy: Option<f64>,
    /// (id, log probability), best first, ties by lower id; masked ids (-inf) never appear.  // [<= top_k]
    pub top: Vec<(u32, f64)>,
    /// Sum of the probabilities of `top`, at most 1.
    pub top_mass: f64,
}

/// Computes the raw log probabilities of a logit row.  // logits: [vocab_size]
///
/// With m = max x: logsumexp = m + ln W, W = sum e^(x - m); entropy = ln W - (1/W) sum (x - m) e^(x - m);
/// varentropy = E[(ln p)^2] - E[ln p]^2 (Kontoyiannis and Verdu 2014, IEEE Transactions on Information Theory 60:2).
/// A logit of -inf is a masked id: it adds nothing to any.
///
/// Errors: [`crate::Error::NonFinite`] with `position` for NaN, +inf, or a row of nothing but -inf.
pub fn read_logprobs(logits: &[f32], top_k: usize, position: usize) -> Result<Logprobs> {
    read_logprobs_with(None, logits, top_k, position)
}

/// As [`read_logprobs`], with threads: the same bits.
///
/// Errors: as [`read_logprobs`].
pub fn read_logprobs_with(
    pool: Option<&Pool>,
    logits: &[f32],
    top_k: usize,
    position: usize,
) -> Result<Logprobs> {
    let mut best = TopK::default();
    let max = best.scan_with(pool, logits, position)?;
    let (sums, squares) = match pool {
        None if top_k == 0 => (exp_sums(logits, max, 1.0), 0.0),
        None => exp_sums_with_squares(logits, max),
        Some(pool) => {
            let mut chunks = vec![ChunkSums::default(); logits.len().div_ceil(CHUNK)];
            pool.chunks(&mut chunks, PART / CHUNK, |index, chunks| {
                let logits = &logits[index * PART..];
                exp_chunks(&logits[..PART.min(logits.len())], max, chunks);
            });
            add_chunks(&chunks)
        }
    };
    let varentropy = (top_k > 0).then(|| varentropy(sums, squares));
    let logsumexp = f64::from(max) + sums.exp.ln();
    let top: Vec<(u32, f64)> = best
        .top(logits, top_k)
        .iter()
        .map(|&key| {
            let id = top_k::id(key);
            (id, f64::from(logits[id as usize]) - logsumexp)
        })
        .collect();
    let top_mass = top.iter().map(|&(_, logprob)| exp(logprob)).sum::<f64>().min(1.0);
    Ok(Logprobs { logsumexp, entropy: sums.entropy(), varentropy, top, top_mass })
}

/// Log probability of `id` in nats, and its rank: 1 + how many ids have a larger logit (equal logits share a rank).
///
/// The log probability is logit - logsumexp in f64, so that a very sure token keeps its digits; -inf for a masked id.
/// `logits` is the row of this `readout`.
///
/// # Panics
///
/// When `id` is outside the row; callers check ids where they enter the engine.
pub fn logprob_and_rank(readout: &Logprobs, logits: &[f32], id: u32) -> (f64, usize) {
    logprob_and_rank_with(None, readout, logits, id)
}

/// As [`logprob_and_rank`], with threads.
///
/// # Panics
///
/// As [`logprob_and_rank`].
pub fn logprob_and_rank_with(
    pool: Option<&Pool>,
    readout: &Logprobs,
    logits: &[f32],
    id: u32,
) -> (f64, usize) {
    let logit = logits[id as usize];
    let above = match pool {
        None => count_above(logits, logit),
        Some(pool) => {
            let above = AtomicUsize::new(0);
            // Comparing is quick.
            pool.ranges(logits.len(), 4 * PART, &|range| {
                above.fetch_add(count_above(&logits[range], logit), Ordering::Relaxed);
            });
            above.into_inner()
        }
    };
    (f64::from(logit) - readout.logsumexp, 1 + above)
}

#[cfg(test)]
pub(crate) mod tests;
